"""Passes that rewrite the graph of a float model to prepare it for quantization."""
