"""What a network does with the samples of a batch: each by itself or not, in how much memory."""
