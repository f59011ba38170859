"""Small networks on top of a target's hidden states: what they compute, how they are kept and how they are learned."""
