"""What an INT8 engine does beside FP32 and FP16 engines of one model: kernels, bytes, estimated times."""
