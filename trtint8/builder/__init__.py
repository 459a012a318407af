"""Builds one engine with TensorRT."""
