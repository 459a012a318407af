"""Where a calibration runs the model and counts: the CPU, or a GPU."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from calibrators.errors import UnsupportedError
from calibrators.histograms.counting import ParallelHistograms
from calibrators.histograms.histogram import Histogram
from calibrators.host.cuda_session import Gpu, open_gpu
from calibrators.host.onnx_session import open_session, run_in_place
from calibrators.host.weights import LightModel

_NAME = re.compile(r"(cpu)|cuda(?::(\d{1,4}))?")


@dataclass(frozen=True)
class Cpu:
    """The CPU; :class:`calibrators.host.cuda_session.Gpu` has the same three methods."""

    def open_session(self, model: LightModel | bytes | Path, **options: Any) -> Any:
        """See :func:`calibrators.host.onnx_session.open_session`."""
        return open_session(model, **options)

    def run(self, session: Any, names: Sequence[str], feed: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """See :func:`calibrators.host.onnx_session.run_in_place`."""
        return run_in_place(session, names, feed)

    def histograms(
        self, start: Mapping[str, Histogram], threads: int, rectified: Mapping[str, str]
    ) -> ParallelHistograms:
        """See :class:`calibrators.histograms.counting.ParallelHistograms`."""
        return ParallelHistograms(start, threads, rectified)


def device_kind(device: str) -> str:
    """What kind of device it is: results of two kinds differ in their last bits.

    Args:
        device: ``cpu``, ``cuda``, or ``cuda:1`` for the second GPU.

    Returns:
        ``cpu`` or ``cuda``.

    Raises:
        UnsupportedError: There is no such kind of device.
    """
    return "cpu" if _index(device) is None else "cuda"


def open_device(device: str) -> Cpu | Gpu:
    """Finds a device and what is needed to count there.

    Args:
        device: ``cpu``, ``cuda``, or ``cuda:1`` for the second GPU.

    Raises:
        UnsupportedError: There is no such kind of device, or something that it needs is not installed.
        GpuUnavailableError: There is no GPU with that index.
    """
    index = _index(device)
    return Cpu() if index is None else open_gpu(index)


def _index(device: str) -> int | None:
    """A GPU's index; None for the CPU."""
    match = _NAME.fullmatch(str(device))
    if not match:
        raise UnsupportedError(f"the device is '{device}'; give cpu, cuda, or cuda:1 for the second GPU")
    return None if match[1] else int(match[2] or 0)
