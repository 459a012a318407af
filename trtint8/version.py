"""The version of trtint8."""

__version__ = "0.3.0"
