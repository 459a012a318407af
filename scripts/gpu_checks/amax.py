"""TensorRT's ranges beside those of calibration on the CPU, tensor by tensor."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from calibrators.data.batches import Batches
from calibrators.histograms.histogram import BINS, Histogram
from calibrators.host.session import open_session
from calibrators.tables.table import CalibrationTable

#: A ratio within this of 1 counts as the same.
CLOSE = 0.02


@dataclass(frozen=True)
class AmaxComparison:
    """The ranges of one table, divided by those of another.

    Attributes:
        tensors: How many both have.
        only_first: How many only the first has.
        only_second: How many only the second has.
        median: Median of first over second; NaN without a common tensor.
        worst: The ratio that is farthest from 1 either way; infinite where only one of two is zero.
        worst_tensor: The tensor with that ratio; empty without a common tensor.
        close: Share of the common tensors whose ratio is within :data:`CLOSE` of 1.
    """

    tensors: int
    only_first: int
    only_second: int
    median: float
    worst: float
    worst_tensor: str
    close: float


def compare_amax(first: Mapping[str, float], second: Mapping[str, float]) -> AmaxComparison:
    """Compares the ranges of the tensors that both tables have.

    Args:
        first: Tensor name to amax, not negative, in the first table.
        second: Tensor name to amax, not negative, in the second table.
    """
    common = [name for name in first if name in second]
    ratios = {name: ratio(first[name], second[name]) for name in common}
    worst = max(common, key=lambda name: _distance(ratios[name]), default="")
    values = list(ratios.values())
    return AmaxComparison(
        tensors=len(common),
        only_first=len(first) - len(common),
        only_second=len(second) - len(common),
        median=float(np.median(values)) if values else math.nan,
        worst=ratios[worst] if values else math.nan,
        worst_tensor=worst,
        close=sum(abs(value - 1) <= CLOSE for value in values) / len(values) if values else math.nan,
    )


def ratio(first: float, second: float) -> float:
    """First over second; 1 where both are equal, infinite where only the second is zero."""
    if first == second:
        return 1.0
    return first / second if second else math.inf


def conventions(table: CalibrationTable, even: Mapping[str, Histogram]) -> dict[str, dict[str, float]]:
    """A table's ranges under each convention of what a threshold's bin means.

    Args:
        table: The table of a calibration on the CPU, with histograms.
        even: Histograms of the same tensors from :func:`even_histograms`.

    Returns:
        ``edge``, the upper edge of the last bin in range, as trtint8 takes it; ``centre``, half a bin above
        that, as the slides of S7310 have it with (m + 0.5) * width; ``even bins``, the upper edge over bins
        that divide (0, amax) evenly instead of being a power of two wide.
    """
    edge = dict(table.amax)
    # A range that is the largest magnitude itself comes from no bin.
    centre = {
        name: amax + table.histograms[name].bin_width / 2 if amax < table.histograms[name].amax else amax
        for name, amax in edge.items()
    }
    stretched = CalibrationTable.from_histograms(even, table.method, table.provenance)
    return {"edge": edge, "centre": centre, "even bins": dict(stretched.amax)}


def even_histograms(model: bytes, batches: Batches, peaks: Mapping[str, float]) -> dict[str, Histogram]:
    """Histograms whose bins divide (0, largest magnitude) evenly.

    Args:
        model: The FP32 model, serialized.
        batches: The data that ``peaks`` come from.
        peaks: Tensor name to its largest magnitude.
    """
    proto = onnx.ModelProto.FromString(model)
    inputs = {value.name for value in proto.graph.input}
    present = {value.name for value in proto.graph.output}
    computed = [name for name in peaks if name not in inputs]
    proto.graph.output.extend(
        onnx.helper.make_empty_tensor_value_info(name) for name in computed if name not in present
    )
    session = open_session(proto.SerializeToString(), optimize=True)
    histograms = {name: Histogram(bin_width=peak / BINS, amax=peak) for name, peak in peaks.items()}
    for feed in batches:
        values = dict(zip(computed, session.run(computed, feed), strict=True)) | feed
        for name, histogram in histograms.items():
            _add(histogram, np.abs(values[name]).ravel())
    return histograms


def write_csv(path: Path, device: Mapping[str, float], host: Mapping[str, Mapping[str, float]]) -> None:
    """Writes every range: one line per tensor, TensorRT's range first.

    Args:
        path: The file.
        device: Tensor name to TensorRT's amax.
        host: Name of a convention to the ranges that the CPU found by it.
    """
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(("tensor", "TensorRT", *host))
        for name in dict.fromkeys((*device, *(name for table in host.values() for name in table))):
            writer.writerow((_cell(name), device.get(name), *(table.get(name) for table in host.values())))


def _cell(name: str) -> str:
    """A name as a spreadsheet shows it, which would compute what begins with one of these signs."""
    return f"'{name}" if name.startswith(("=", "+", "-", "@", "\t", "\r")) else name


def _distance(value: float) -> float:
    return abs(math.log(value)) if 0 < value < math.inf else math.inf


def _add(histogram: Histogram, magnitudes: NDArray[np.float32]) -> None:
    zeros = magnitudes.size - int(np.count_nonzero(magnitudes))
    histogram.zeros += zeros
    if histogram.bin_width:
        index = np.minimum((magnitudes / histogram.bin_width).astype(np.intp), BINS - 1)
        histogram.counts += np.bincount(index, minlength=BINS)
        histogram.counts[0] -= zeros
