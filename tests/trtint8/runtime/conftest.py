"""Contexts on a GPU that is host memory."""

from tests.trtint8.runtime.doubling import device, graphs, make, tensorrt_context

__all__ = ["device", "graphs", "make", "tensorrt_context"]
