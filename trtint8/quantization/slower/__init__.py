"""Which layers would be slower in INT8 than in FP16, because of the kernels that TensorRT makes of them."""
