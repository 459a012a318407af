"""Networks as backends compute them, in integers."""
