"""Sample to sample: what is done to data between its source and its batch, the same every time it is done."""
