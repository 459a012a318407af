"""The parts of scripts/zoo.py."""
