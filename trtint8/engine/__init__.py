"""The engine file and what is in it."""
