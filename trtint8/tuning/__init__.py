"""Tuning: the cheapest combination of remedies that keeps the loss of accuracy within a budget."""
