"""What is checked, mended and declared in a model before anything else reads it."""
