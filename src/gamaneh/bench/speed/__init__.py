"""The speed benchmark: `python -m gamaneh.bench.speed`, which is `make bench`."""
