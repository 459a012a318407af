"""Models and tables that were made elsewhere."""
