"""The same work on many machines, over Ray."""
