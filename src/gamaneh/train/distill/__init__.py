"""Small draft models that learn to speak as the target does."""
