"""How the ranges of a calibration table show themselves in a notebook and as a data frame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from calibrators.display.frames import data_frame
from calibrators.display.html import Cell, html_table
from calibrators.display.sparkline import sparkline
from calibrators.histograms.histogram import Histogram
from calibrators.tables.scales import QMAX


@dataclass(frozen=True)
class ShownRange:
    """One tensor of a table.

    Attributes:
        tensor: The tensor's name.
        amax: The tensor's range.
        method: How the range was chosen.
        histogram: The histogram that it was computed from; None where there is none.
    """

    tensor: str
    amax: float
    method: str
    histogram: Histogram | None

    @property
    def scale(self) -> float:
        """``amax / 127``."""
        return self.amax / QMAX

    @property
    def largest(self) -> float | None:
        """The largest magnitude that was observed."""
        return self.histogram.amax if self.histogram else None

    @property
    def zeros(self) -> float | None:
        """The share of values that are zero, in [0, 1]."""
        return self._share(self.histogram.zeros) if self.histogram else None

    @property
    def clipped(self) -> float | None:
        """The share of values beyond the range, in [0, 1]."""
        return self._share(self.histogram.above(self.amax)) if self.histogram else None

    def _share(self, count: int) -> float | None:
        total = self.histogram.total if self.histogram else 0
        return count / total if total else None


def ranges_html(title: str, ranges: Sequence[ShownRange]) -> str:
    """A table with one row per tensor, and a small histogram where there is one.

    Args:
        title: The title above the table.
        ranges: The tensors.
    """
    columns = ["tensor", "amax", "scale", "method"]
    with_histograms = any(shown.histogram for shown in ranges)
    if with_histograms:
        columns += ["largest", "clipped", "magnitudes"]
    return html_table(title, columns, (_row(shown, with_histograms) for shown in ranges))


def ranges_frame(ranges: Sequence[ShownRange]) -> Any:
    """A ``pandas.DataFrame`` with one row per tensor.

    Args:
        ranges: The tensors.

    Raises:
        UnsupportedError: pandas is not installed.
    """
    names = ("tensor", "amax", "scale", "method", "largest", "zeros", "clipped")
    return data_frame({name: [getattr(shown, name) for shown in ranges] for name in names})


def _row(shown: ShownRange, with_histograms: bool) -> list[Cell]:
    row: list[Cell] = [shown.tensor, f"{shown.amax:.6g}", f"{shown.scale:.6g}", shown.method]
    if shown.histogram:
        clipped = "" if shown.clipped is None else f"{100 * shown.clipped:.3f} %"
        row += [f"{shown.histogram.amax:.6g}", clipped, sparkline(shown.histogram, shown.amax)]
    elif with_histograms:
        row += ["", "", ""]
    return row
