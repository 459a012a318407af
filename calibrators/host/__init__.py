"""The FP32 model in ONNX Runtime, with its activations observed."""
