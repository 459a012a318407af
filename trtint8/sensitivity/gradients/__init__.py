"""What a change of any tensor does to a network's outputs, computed backwards by ONNX operators."""
