"""What is compared of a model's outputs, and models cut at tensors, which become outputs."""
