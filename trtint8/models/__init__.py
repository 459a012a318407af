"""Reads, checks, prepares and fingerprints ONNX models."""
