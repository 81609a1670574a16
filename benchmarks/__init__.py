"""What the loader costs, beside its peers: `python -m benchmarks --list`."""
