"""Training of what proposers need, from the target itself."""
