"""What a loader counts, and how it is shown: records, reports, logs, Prometheus."""
