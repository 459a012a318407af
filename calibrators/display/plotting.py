"""Pictures of results, for which Matplotlib is loaded when the first one is drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from calibrators.display.cards import Card
from calibrators.display.picture import Picture, picture_of
from calibrators.errors import UnsupportedError
from calibrators.imports import install_command

#: Width of a chart of levels, in units of the SVG.
_WIDTH = 520


def plot_histogram(card: Card) -> Picture:
    """A tensor's histogram on a logarithmic scale, with the threshold of every method.

    Args:
        card: The tensor, with at least one value that is not zero.

    Raises:
        UnsupportedError: Matplotlib is not installed.
    """
    used = card.used
    title = f"'{card.name}': amax {used.amax:.6g} by {used.method}, {100 * used.clipped:.3f} % clipped"
    labels = "magnitude of a value", "number of values"
    return _drawn(title, lambda charts: charts.draw_histogram(card, labels))


def plot_levels(levels: Sequence[float], title: str) -> Picture:
    """A line of levels in decibels.

    Args:
        levels: One level per layer; those that are not finite are left out.
        title: What it shows.

    Raises:
        UnsupportedError: Matplotlib is not installed.
    """
    labels = "layers, in the order in which they run", "SQNR after each layer, dB"
    return _drawn(title, lambda charts: charts.draw_levels(levels, _WIDTH, labels))


def plot_points(
    points: Sequence[tuple[float, float, bool]], unit: str, title: str, labels: tuple[str, str]
) -> Picture:
    """Points over a share.

    Args:
        points: The share in [0, 1], the value, and whether the point is drawn filled.
        unit: The unit of the values, or empty.
        title: What it shows.
        labels: What the share and the value are.

    Raises:
        UnsupportedError: Matplotlib is not installed.
    """
    return _drawn(title, lambda charts: charts.draw_points(points, unit, labels=labels))


def _drawn(title: str, draw: Callable[[ModuleType], Any]) -> Picture:
    """The picture of a chart, which ``draw`` draws with :mod:`calibrators.display.charts`."""
    charts = _charts()
    return picture_of(
        charts.as_svg(lambda: draw(charts)), title, lambda: bytes(charts.as_png(lambda: draw(charts)))
    )


def _charts() -> ModuleType:
    try:
        from calibrators.display import charts
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            f"a picture needs Matplotlib, which is not installed; run {install_command('notebook')}"
        ) from error
    return charts
