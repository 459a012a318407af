"""How results show themselves in notebooks: small HTML tables, charts, and data frames."""
