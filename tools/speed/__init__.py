"""The speed benchmark: `python -m tools.speed`, which is `make bench`."""
