"""From logits to tokens: the sampling pipeline, keyed noise, and the rules that judge drafts."""
