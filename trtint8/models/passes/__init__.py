"""Graph rewrites that prepare a float model, each a pass with pre- and postconditions of its own."""
