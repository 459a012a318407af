"""Any source of samples as feed dicts for a model."""
