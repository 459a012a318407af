"""What each layer's quantization costs: measured on the CPU, with the reasons."""
