"""What a loader has done: counters, reports, logs, Prometheus, and where a sample comes."""
