"""The public calls, typed: each turns its keywords into options for the package that does the work."""
