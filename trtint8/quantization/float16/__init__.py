"""FP16 for what stays outside INT8."""
