"""A reference for the integer arithmetic of quantized networks."""
