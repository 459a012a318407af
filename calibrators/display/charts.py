"""Charts as SVG, which take their colours and fonts from the page around them, and as PNG with their own."""

from __future__ import annotations

import contextlib
import functools
import io
import math
import re
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec

from calibrators.display.cards import Card
from calibrators.histograms.thresholds import METHODS
from calibrators.imports import importing_matplotlib

with importing_matplotlib():
    import matplotlib

from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse
from matplotlib.ticker import EngFormatter, FixedLocator, MaxNLocator, NullLocator

#: The dashes of the methods' lines (SVG's stroke-dasharray), in the order of ``METHODS``. They distinguish
#: methods without colour; where there are more methods, the first dashes are used again.
_DASHES: Sequence[tuple[float, ...]] = (
    (),
    (7, 3),
    (7, 2, 1.5, 2),
    (1.5, 2.5),
    (12, 3),
    (12, 2, 1.5, 2, 1.5, 2),
)

#: The dashes of a range that no method gives.
_NO_METHOD = (3, 3)

#: Placeholders that Matplotlib draws with; the page's colours replace them in the SVG.
_COLOURS = {
    "#000001": "var(--bar)",
    "#000002": "var(--accent)",
    "#000003": "var(--line)",
    "#000004": "var(--grid)",
    "#000005": "var(--muted)",
    "#000006": "var(--loud)",
}

#: What they are drawn in: the colours of Matplotlib's cycle, which is another one for PNG.
_BAR, _ACCENT, _LINE, _GRID, _MUTED, _LOUD = (f"C{index}" for index in range(len(_COLOURS)))

#: The same colours for a white ground.
_ON_WHITE = ("#8fa3b5", "#2f7fc1", "#7a8591", "#dfe3e6", "#606870", "#d9633a")

#: Pixels of a PNG for each SVG unit.
_PIXELS = 3

#: What the axes show, x before y, with the unit where the numbers have none, and what the chart shows; None
#: where a page says it.
Labels = tuple[str, str, str] | None

#: Height of a label, and about the width of a character, in SVG units.
_LINE_HEIGHT, _CHARACTER = 15, 6

#: The most layers that are named in a chart, and the most characters of a name. A longer one is shown by its
#: end.
_MOST_NAMES, _LONGEST_NAME = 60, 40

#: Matplotlib's own settings and these, so that all pages look alike: not those of the user's other charts.
_SETTINGS: dict[Any, Any] = {
    **{key: value for key, value in matplotlib.rcParamsDefault.items() if not key.startswith("backend")},
    "svg.fonttype": "none",
    "svg.hashsalt": "trtint8",
    "font.size": 10,
    "path.simplify": False,
    "text.parse_math": False,  # names may have dollar signs
    "axes.prop_cycle": cycler(color=list(_COLOURS)),
}

#: Where the logarithmic axis begins, so that a bar with one value is visible.
_FLOOR = 0.7

#: Diameter of a point, in SVG units.
_DOT = 6.0

#: Diameter of the ring around a point, in SVG units.
_RING = 14.0


def dashes_of(method: str) -> tuple[float, ...]:
    """Returns the lengths of the dashes and gaps of a method's line; empty for a solid line.

    Args:
        method: A key of ``METHODS``, or a name for ranges that no method gives.
    """
    if method not in METHODS:
        return _NO_METHOD
    return _DASHES[list(METHODS).index(method) % len(_DASHES)]


@dataclass(frozen=True)
class Chart:
    """A chart that is drawn when it is asked for.

    Attributes:
        draw: Draws it.
    """

    draw: Callable[[], Figure]

    def svg(self) -> str:
        """Returns the chart as an SVG element for an HTML page."""
        stream = io.StringIO()
        with matplotlib.rc_context(_SETTINGS), _without_glyphs():
            self.draw().savefig(stream, format="svg", metadata={"Date": None})
        return _slim(stream.getvalue())

    def png(self) -> bytes:
        """Returns the chart as a PNG file, on a white ground and in colours for it."""
        stream = io.BytesIO()
        settings = {**_SETTINGS, "axes.prop_cycle": cycler(color=list(_ON_WHITE))}
        with matplotlib.rc_context(settings), _without_glyphs():
            figure = self.draw()
            figure.patch.set(visible=True, facecolor="white")
            figure.savefig(stream, format="png", dpi=72 * _PIXELS)
        return stream.getvalue()


@contextlib.contextmanager
def _without_glyphs() -> Iterator[None]:
    """Lets names have characters that Matplotlib's font lacks; a page shows them in fonts of its own."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        yield


_Parameters = ParamSpec("_Parameters")


def _chart(draw: Callable[_Parameters, Figure]) -> Callable[_Parameters, Chart]:
    """A function that draws a figure, as one that returns the chart."""

    @functools.wraps(draw)
    def chart(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> Chart:
        return Chart(lambda: draw(*args, **kwargs))

    return chart


@_chart
def histogram_chart(card: Card, labels: Labels = None) -> Figure:
    """A tensor's histogram on a log scale, with the threshold of every method, in 340 x 150 units.

    Args:
        card: The tensor, with at least one value that is not zero.
        labels: What the axes show.
    """
    legend = 0 if labels is None else _LINE_HEIGHT
    figure, axes = _axes(340, 150 + legend, left=36, bottom=20 + legend, right=10, top=8, labels=labels)
    top = 2.0 * max(card.bar_counts)
    edges = [card.bar_width * i for i in range(len(card.bar_counts) + 1)]
    right = max(edges[-1], *(choice.amax for choice in card.ranges)) * 1.015
    axes.set(xlim=(0, right), ylim=(_FLOOR, top), yscale="log")
    used = card.used.amax
    axes.axvspan(used, right, color=_LOUD, alpha=0.1, lw=0)
    # The logarithm of an empty bar is not defined.
    heights = [max(count, _FLOOR) for count in card.bar_counts]
    axes.stairs(heights, edges, fill=True, baseline=_FLOOR, color=_BAR, lw=0, clip_on=False)
    for choice in card.ranges:
        dashes, width = dashes_of(choice.method), 2 if choice.in_use else 1.2
        axes.axvline(
            choice.amax,
            color=_ACCENT if choice.in_use else _LINE,
            lw=width,
            ls=(0, tuple(length / width for length in dashes)) if dashes else "-",
            clip_on=False,
            label=choice.method,
        )
    if labels is not None:
        place = (0, _LINE_HEIGHT / 72 / figure.get_figheight())
        figure.legend(
            loc="lower left",
            bbox_to_anchor=place,
            ncols=len(card.ranges),
            labelcolor=_MUTED,
            frameon=False,
            fontsize=9,
            borderpad=0.2,
            handletextpad=0.4,
            columnspacing=1.0,
        )
    decades = math.ceil(math.log10(top))
    step = 1 if decades <= 4 else 2 if decades <= 7 else 3
    axes.yaxis.set_major_locator(FixedLocator([10**decade for decade in range(0, decades, step)]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(EngFormatter())
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.4g}")
    return figure


@_chart
def level_chart(levels: Sequence[float], width: int) -> Figure:
    """A line chart of the SQNR from layer to layer, in ``width`` x 170 units.

    Args:
        levels: The SQNR after each layer in decibels, in the order of the graph; infinite ones are left out.
        width: Width of the chart, in SVG units.
    """
    figure, axes = _axes(width, 170, left=36, bottom=22, right=10, top=10)
    finite = [level if math.isfinite(level) else math.nan for level in levels]
    places = range(1, len(levels) + 1)
    axes.plot(places, finite, color=_ACCENT, lw=1.6, clip_on=False, solid_joinstyle="round")
    axes.set_xlim(0.5, len(levels) + 0.5)
    axes.margins(y=0.12)
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0f} dB")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    return figure


@_chart
def layer_chart(levels: Sequence[tuple[str, float]], labels: Labels) -> Figure:
    """A line chart of the SQNR from layer to layer, with the names of the layers, from top to bottom.

    Of more than 60 layers only every second, or third, and so on, is named.

    Args:
        levels: Name of each layer and the SQNR after it in decibels, in the order of the graph; those that
            are not finite are left out.
        labels: What the axes show.
    """
    values = [level if math.isfinite(level) else math.nan for _, level in levels]
    named = range(0, len(levels), max(1, math.ceil(len(levels) / _MOST_NAMES)))
    names = [levels[place][0] for place in named]
    shown = [name if len(name) <= _LONGEST_NAME else f"...{name[3 - _LONGEST_NAME :]}" for name in names]
    left, height = 12 + _CHARACTER * max(map(len, shown), default=0), 30 + _LINE_HEIGHT * len(named)
    figure, axes = _axes(left + 320, height, left=left, bottom=20, right=14, top=10, labels=labels)
    axes.plot(values, range(len(values)), color=_ACCENT, lw=1.6, clip_on=False, solid_joinstyle="round")
    for place in named if len(named) == len(levels) else ():
        # No marker of Matplotlib: these refer to definitions, which a page does not keep.
        dot = [values[place]] * 2, [place - 0.01, place + 0.01]
        axes.plot(*dot, color=_ACCENT, lw=_DOT, solid_capstyle="round", clip_on=False)
    axes.set_ylim(len(levels) - 0.5, -0.5)
    axes.set_yticks(named, shown, fontsize=9)
    axes.margins(x=0.06)
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.4g}")
    return figure


@_chart
def point_chart(
    points: Sequence[tuple[float, float, bool]],
    y_unit: str,
    *,
    width: int = 340,
    ringed: tuple[float, float] | None = None,
    name: str = "",
    interval: tuple[float, float] | None = None,
    limit: float | None = None,
    labels: Labels = None,
) -> Figure:
    """A chart of points over a share, such as accuracy over the share of the arithmetic in float.

    It has ``width`` x 200 units.

    Args:
        points: The share in [0, 1], the value, and whether the point is drawn filled; values that are not
            finite are left out.
        y_unit: The unit of the values, or empty.
        width: Width of the chart, in SVG units.
        ringed: The share and the value of a point that a ring marks, or None.
        name: What is written of that point, in its colour.
        interval: The ends of the value of that point, which a line connects, or None.
        limit: The value that a dashed line marks as the budget, or None.
        labels: What the axes show.
    """
    left, bottom, right, top = 52.0, 22.0, 14.0, 10.0
    figure, axes = _axes(width, 200, left=left, bottom=bottom, right=right, top=top, labels=labels)
    shown = [(100 * x, y, marked) for x, y, marked in points if math.isfinite(y)]
    ends = [end for end in (*(interval or ()), limit) if end is not None and math.isfinite(end)]
    axes.set(xlim=_around([x for x, _, _ in shown]), ylim=_around([*(y for _, y, _ in shown), *ends]))
    if limit is not None and math.isfinite(limit):
        axes.axhline(limit, color=_MUTED, lw=1.0, ls=(0, (4.0, 3.0)))
        axes.text(*(axes.get_xlim()[1], limit), "budget", color=_MUTED, fontsize=9, ha="right", va="bottom")
    # Ellipses of the axes' units that are circles in the picture: Matplotlib's own markers refer to
    # definitions, which a page does not keep.
    unit_x = (axes.get_xlim()[1] - axes.get_xlim()[0]) / (width - left - right)
    unit_y = (axes.get_ylim()[1] - axes.get_ylim()[0]) / (200 - bottom - top)
    for x, y, marked in shown:
        face = _ACCENT if marked else "none"
        dot = Ellipse((x, y), _DOT * unit_x, _DOT * unit_y, facecolor=face, edgecolor=_ACCENT)
        axes.add_patch(dot).set_clip_on(False)
    if ringed is not None and math.isfinite(ringed[1]):
        place = (100 * ringed[0], ringed[1])
        ring = Ellipse(place, _RING * unit_x, _RING * unit_y, fill=False, edgecolor=_LOUD, lw=1.8)
        axes.add_patch(ring).set_clip_on(False)
        if interval is not None and all(map(math.isfinite, interval)):
            axes.plot([place[0]] * 2, interval, color=_LOUD, lw=1.2)
        shortened = textwrap.shorten(name, width // 6, placeholder="…")
        axes.text(0.0, 1.0, shortened, color=_LOUD, fontsize=9, va="top", transform=axes.transAxes)
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(lambda value, _: _with_unit(value, "%"))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(lambda value, _: _with_unit(value, y_unit))
    return figure


def _around(values: Sequence[float]) -> tuple[float, float]:
    """Limits of an axis with some room around the values."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    room = 0.08 * (high - low) or 0.5
    return low - room, high + room


def _with_unit(value: float, unit: str) -> str:
    """The label of a tick; none beyond the ends of a share, where the axis has room."""
    return "" if unit == "%" and not 0 <= value <= 100 else f"{value:.4g} {unit}".strip()


def _axes(
    width: float,
    height: float,
    *,
    left: float,
    bottom: float,
    right: float,
    top: float,
    labels: Labels = None,
) -> tuple[Figure, Axes]:
    """An empty chart with margins, and room for labels above and below; all lengths are in SVG units."""
    x_label, y_label, title = labels or ("", "", "")
    lines = textwrap.wrap(title, int(width / _CHARACTER))
    if labels is not None:
        above = (len(lines) + 1.5) * _LINE_HEIGHT
        height, bottom, top = height + above + _LINE_HEIGHT, bottom + _LINE_HEIGHT, top + above
    figure = Figure(figsize=(width / 72, height / 72))
    box = (left / width, bottom / height, 1 - (left + right) / width, 1 - (bottom + top) / height)
    axes = figure.add_axes(box)
    figure.patch.set_visible(False)
    axes.patch.set_visible(False)
    for side, spine in axes.spines.items():
        spine.set(visible=side == "bottom", color=_MUTED, lw=0.8)
    axes.grid(axis="y", color=_GRID, lw=0.8, clip_on=False)
    axes.set_axisbelow(True)
    # No tick marks: Matplotlib would give them the same ids in all charts of a page.
    axes.tick_params(which="both", bottom=False, left=False, labelcolor=_MUTED, pad=3)
    if labels is not None:
        figure.text(1 - right / width, 4 / height, x_label, ha="right", va="bottom", color=_MUTED)
        places = [*range(len(lines)), len(lines) + 0.5]
        for place, text in zip(places, [*lines, y_label], strict=True):
            y = 1 - (3 + place * _LINE_HEIGHT) / height
            figure.text(4 / width, y, text, ha="left", va="top", color=_MUTED)
    return figure, axes


#: A number with decimals.
_NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")


def _in_tenths(match: re.Match[str]) -> str:
    return f"{float(match[0]):.1f}".removesuffix(".0")


def _slim(svg: str) -> str:
    """Shortens Matplotlib's SVG for a page: without head, ids and fonts, with short numbers.

    Args:
        svg: The SVG file that Matplotlib wrote, with the placeholders of colours.

    Returns:
        One SVG element in which the page's colours replace the placeholders.
    """
    box = re.search(r'viewBox="([^"]*)"', svg)
    assert box is not None  # Matplotlib always writes one
    body = svg[svg.index(">", svg.index("<svg")) + 1 : svg.rindex("</svg>")]
    body = re.sub(r"<metadata>.*?</metadata>|<defs>.*?</defs>|<!--.*?-->", "", body, flags=re.DOTALL)
    body = re.sub(r' (?:id|clip-path)="[^"]*"', "", body)
    body = re.sub(r"font[a-z-]*: [^;\"]*;? ?", "", body)
    body = re.sub(r' transform="rotate\(-?0(?:\.0)? [^"]*\)"', "", body)
    for placeholder, colour in _COLOURS.items():
        body = body.replace(placeholder, colour)
    body = re.sub("<[^>]*>", lambda tag: _NUMBER.sub(_in_tenths, tag[0]), body)  # not those of texts
    body = re.sub(r"\s+", " ", body).replace("> <", "><")
    if "<g " not in body:  # groups without attributes have no effect
        body = re.sub("</?g>", "", body)
    return f'<svg viewBox="{box[1]}" class="chart" aria-hidden="true">{body}</svg>'
