"""What every room may use: the machine, numbers as text, nested batches, random numbers, torch's private names."""
