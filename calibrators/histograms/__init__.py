"""Mergeable histograms of magnitudes, how they are counted, and the range each method takes from them."""
