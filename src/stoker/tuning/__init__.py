"""`"auto"`: measure what samples cost, choose how many workers and threads, resize the running engine."""
