"""Channels followed through a network, from the constants that produce them to the weights that read them."""
