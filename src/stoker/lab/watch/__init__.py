"""Record loaders while they run: hooks into processes, counters, processes and cores over time."""
