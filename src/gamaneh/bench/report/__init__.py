"""Runs of the benchmark as one page to look at: HTML with nothing to load from elsewhere."""
