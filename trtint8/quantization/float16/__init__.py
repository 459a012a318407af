"""FP16 for the layers that do not run in INT8."""
