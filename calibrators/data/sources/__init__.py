"""What samples are read from: one module for each kind of source."""
