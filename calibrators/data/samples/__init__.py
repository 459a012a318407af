"""What is known of samples: which they are, what they are called, and how large they are."""
