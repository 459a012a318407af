"""Hostile files and documents: only the errors of this project may come out, soon and in little memory."""
