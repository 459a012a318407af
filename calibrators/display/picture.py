"""Results as data frames of pandas and as charts that stand by themselves, in a notebook or in a file.

pandas and Matplotlib are loaded when the first frame or chart is made.
"""

from __future__ import annotations

import html
import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from calibrators.checks import FilePath
from calibrators.display.cards import Card
from calibrators.errors import OutputError, UnsupportedError
from calibrators.files import write_atomically
from calibrators.imports import install_command


def data_frame(columns: Mapping[str, Sequence[object]]) -> Any:
    """A ``pandas.DataFrame``.

    Args:
        columns: The name of each column to its values, all of one length.

    Raises:
        UnsupportedError: pandas is not installed.
    """
    try:
        pandas = importlib.import_module("pandas")
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            f"a data frame needs pandas, which is not installed; run {install_command('notebook')}"
        ) from error
    return pandas.DataFrame({name: list(values) for name, values in columns.items()})


#: Colours that can be seen on a light and on a dark ground; in a report the page gives them.
_COLOURS = {
    "bar": "#8fa3b5",
    "accent": "#2f7fc1",
    "line": "#7a8591",
    "grid": "rgba(128,128,128,0.25)",
    "muted": "#808890",
    "loud": "#d9633a",
}

#: Width of a picture over that of its drawing.
_ENLARGED = 1.4


@dataclass(frozen=True)
class Picture:
    """A chart. Notebooks display it.

    Attributes:
        svg: The chart as an SVG element.
        title: What it shows, in words.
        png: Makes the chart as a PNG file; None if there is only the SVG element.

    Examples:
        >>> picture = trtint8.CalibrationTable.load("table.json").plot("images")
        >>> picture.save("images.png")
        PosixPath('images.png')
    """

    svg: str
    title: str
    png: Callable[[], bytes] | None = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        return f"<Picture: {self.title}>"

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, path: FilePath) -> Path:
        """Writes the chart as an SVG or a PNG file, atomically.

        Args:
            path: The file, whose name ends in ``.svg`` or ``.png``. A PNG has a white ground.

        Returns:
            ``path``.

        Raises:
            OutputError: The name ends otherwise, or the file cannot be written.
        """
        kind = Path(path).suffix.lower()
        if kind == ".png" and self.png is not None:
            return write_atomically(path, self.png())
        if kind != ".svg":
            kinds = "SVG" if self.png is None else "SVG or PNG"
            ends = ".svg" if self.png is None else ".svg or .png"
            raise OutputError(
                f"cannot write the picture '{os.fspath(path)}': it is written as {kinds}; "
                f"end the name in {ends}"
            )
        return write_atomically(path, self.svg.encode())


def picture_of(chart: str, title: str, png: Callable[[], bytes] | None = None) -> Picture:
    """Makes a picture of a chart that takes its colours from a page.

    Args:
        chart: The SVG element of one of :mod:`calibrators.display.charts`.
        title: What it shows, in words.
        png: Makes the chart as a PNG file.
    """
    width, height = (float(length) for length in chart.split('viewBox="', 1)[1].split('"', 1)[0].split()[2:])
    colours = ";".join(f"--{name}:{colour}" for name, colour in _COLOURS.items())
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_ENLARGED * width:g}" '
        f'height="{_ENLARGED * height:g}" role="img" aria-label="{html.escape(title)}" '
        f'style="{colours};font:10px sans-serif;overflow:visible" '
    )
    svg = head + chart.removeprefix("<svg ").replace(' class="chart" aria-hidden="true"', "", 1)
    # Names may have control characters, and an SVG may not.
    return Picture("".join(one if one.isprintable() else "?" for one in svg), title, png)


def plot_histogram(card: Card) -> Picture:
    """A tensor's histogram on a logarithmic scale, with the threshold of every method.

    Args:
        card: The tensor, with at least one value that is not zero.

    Raises:
        UnsupportedError: Matplotlib is not installed.
    """
    used = card.used
    title = f"'{card.name}': amax {used.amax:.6g} by {used.method}, {100 * used.clipped:.3f} % clipped"
    labels = "magnitude of a value", "number of values", title
    return _drawn(title, lambda charts: charts.histogram_chart(card, labels))


def plot_levels(levels: Sequence[tuple[str, float]], title: str) -> Picture:
    """A line of levels in decibels.

    Args:
        levels: The name and the level of each layer; levels that are not finite are left out.
        title: What it shows.

    Raises:
        UnsupportedError: Matplotlib is not installed.
    """
    labels = "SQNR after each layer, dB", "layers, in the order in which they run", title
    return _drawn(title, lambda charts: charts.layer_chart(levels, labels))


def plot_points(
    points: Sequence[tuple[float, float, bool]],
    unit: str,
    title: str,
    labels: tuple[str, str],
    **marked: Any,
) -> Picture:
    """Points over a share.

    Args:
        points: The share in [0, 1], the value, and whether the point is drawn filled.
        unit: The unit of the values, or empty.
        title: What it shows.
        labels: What the share and the value are.
        marked: What else :func:`calibrators.display.charts.point_chart` marks.

    Raises:
        UnsupportedError: Matplotlib is not installed.
    """
    return _drawn(title, lambda charts: charts.point_chart(points, unit, labels=(*labels, title), **marked))


def _drawn(title: str, chart_of: Callable[[ModuleType], Any]) -> Picture:
    """The picture of a chart, which ``chart_of`` makes with :mod:`calibrators.display.charts`."""
    try:
        from calibrators.display import charts
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            f"a picture needs Matplotlib, which is not installed; run {install_command('notebook')}"
        ) from error
    chart = chart_of(charts)
    return picture_of(chart.svg(), title, chart.png)
