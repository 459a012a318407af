"""Ranges chosen by what they cost the network: the method ``auto``."""
