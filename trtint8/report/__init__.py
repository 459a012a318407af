"""A report on one INT8 model: a self-contained HTML page, and the facts that it shows."""
