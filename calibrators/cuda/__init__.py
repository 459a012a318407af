"""CUDA: whether a GPU can be used, and memory, streams and events on its primary context."""

from __future__ import annotations

from calibrators.cuda.device import (
    Buffer,
    Device,
    Event,
    Graph,
    PinnedBuffer,
    Stream,
    TensorMemory,
    capture,
    context_problem,
    current_device,
    pointer_problem,
    primary_context,
)
from calibrators.cuda.driver import (
    check_ordinal,
    compute_capability,
    driver_version,
    gpu_clocks,
    gpu_name,
    gpu_names,
    gpu_problem,
    gpu_uuid,
    require_gpu,
)
from calibrators.cuda.opening import open_device
from calibrators.cuda.turns import turn_on_gpu

__all__ = [
    "Buffer",
    "Device",
    "Event",
    "Graph",
    "PinnedBuffer",
    "Stream",
    "TensorMemory",
    "capture",
    "check_ordinal",
    "compute_capability",
    "context_problem",
    "current_device",
    "driver_version",
    "gpu_clocks",
    "gpu_name",
    "gpu_names",
    "gpu_problem",
    "gpu_uuid",
    "open_device",
    "pointer_problem",
    "primary_context",
    "require_gpu",
    "turn_on_gpu",
]
