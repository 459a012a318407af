"""Detections of INT8 beside those of FP32, and beside true boxes."""
