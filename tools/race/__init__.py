"""Ours against llama.cpp as `tools.peer` builds it: over HTTP, streaming, the same files and prompts, alternated."""
