"""What runs an engine elsewhere: a folder for Triton, DeepStream, ONNX Runtime, C++ or a container."""
