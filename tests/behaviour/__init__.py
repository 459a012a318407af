"""What every public call and verb does, kept in files in which a change shows as a few lines."""
