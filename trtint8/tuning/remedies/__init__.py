"""What lessens the loss of accuracy at no cost at run time: ranges, weights and biases chosen anew."""
