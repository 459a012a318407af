"""CUDA: whether a GPU can be used, and memory, streams and events on its primary context."""

from __future__ import annotations

from calibrators.cuda.device import Device, DeviceBuffer, Event, PinnedBuffer, Stream
from calibrators.cuda.driver import (
    compute_capability,
    driver_version,
    gpu_names,
    gpu_problem,
    require_gpu,
    synchronize_stream,
)
from calibrators.cuda.graph import Graph, capture
from calibrators.cuda.opening import open_device

__all__ = [
    "Device",
    "DeviceBuffer",
    "Event",
    "Graph",
    "PinnedBuffer",
    "Stream",
    "capture",
    "compute_capability",
    "driver_version",
    "gpu_names",
    "gpu_problem",
    "open_device",
    "require_gpu",
    "synchronize_stream",
]
