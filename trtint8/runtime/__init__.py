"""Loads, runs, measures and refits engines."""
