"""One build with TensorRT."""
