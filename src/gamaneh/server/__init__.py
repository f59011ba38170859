"""The OpenAI-compatible server over the async engine."""
