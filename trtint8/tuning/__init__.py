"""The cheapest mix of remedies that keeps accuracy within a budget."""
