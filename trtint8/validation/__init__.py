"""INT8 beside FP32: metrics, comparison and significance."""
