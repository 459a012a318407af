"""A device and a context that only count their calls: what is left is what an inference costs in Python."""
