"""Calibration tables: tensor name to range."""
