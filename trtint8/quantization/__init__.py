"""Where Q/DQ pairs go, and the graph rewriting that puts them there."""
