"""ONNX models: read, checked, prepared and fingerprinted."""
