"""Images: read, resized, placed and preprocessed, and the true boxes in them."""
