"""How a loader's cost grows with samples, workers, ranks and steps: `python -m benchmarks.scale`."""
