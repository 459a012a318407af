"""Reference arithmetic on integers."""
