"""Loads engines and runs them."""
