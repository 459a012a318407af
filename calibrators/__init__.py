"""Inputs in, ranges out: data sources, host calibration, calibration tables and TensorRT calibrators."""
