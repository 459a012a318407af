"""Renders a report as one HTML file that needs no other files.

Renders a comparison of several runs as one HTML file that needs no other files.
"""

from __future__ import annotations

import itertools
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from calibrators.checks import doubts_among, notes_among
from calibrators.display.charts import dashes_of, histogram_chart, level_chart, point_chart
from trtint8.report import text
from trtint8.report.comparison import RunComparison
from trtint8.report.facts import Report
from trtint8.report.graph import BADGES, LIBRARIES, PRECISION_NAMES, graph_json, library_script, script_hash
from trtint8.report.layers import LEVELS, Tried
from trtint8.report.worst import Worst, WorstSample, data_uri
from trtint8.validation.accuracy import REFERENCE
from trtint8.validation.tensors import TENSOR_COLUMNS, tensor_notes, tensor_rows

#: Number of tensors whose cards are open at first; the others open on a click.
OPEN_CARDS = 6

#: Number of layers that are shown at first.
_SHOWN_LAYERS = 12

#: Widths of the chart of levels in SVG units, for a wide page and for a phone.
_WIDE, _NARROW = 840, 330


def render(report: Report) -> str:
    """Renders a report.

    Args:
        report: What the page shows.

    Returns:
        The HTML page; the same report always gives the same page.
    """
    anchors = {bar.layer.node: f"layer-{place}" for place, bar in enumerate(report.bars, start=1)}
    graph = report.graph if report.graph and not report.graph.too_large and report.cells else None
    scripts = [_asset("page.js")]
    precisions = [node.cell.precision for node in graph.nodes if node.cell.precision] if graph else []
    if graph:
        scripts += [*map(library_script, LIBRARIES), _asset("graph.js")]
    sensitivity = report.files.sensitivity
    levels = [layer.cumulative_db for layer in sensitivity.layers] if sensitivity else []
    known = [level for level in levels if level is not None]
    return (
        _environment()
        .get_template("page.html")
        .render(
            report=report,
            style=Markup(_asset("page.css")),
            scripts=list(map(Markup, scripts)),
            script_hashes=list(map(script_hash, scripts)),
            graph=Markup(graph_json(graph, anchors)) if graph else "",
            badges=BADGES,
            histogram=lambda card: Markup(histogram_chart(card).svg() if card.bar_counts else ""),
            dashes=lambda method: " ".join(map(str, dashes_of(method))),
            wide=Markup(level_chart(known, _WIDE).svg()) if known else "",
            narrow=Markup(level_chart(known, _NARROW).svg()) if known else "",
            tried_wide=_tried_chart(report.tried, _WIDE),
            tried_narrow=_tried_chart(report.tried, _NARROW),
            picture=lambda sample: None if sample.picture is None else data_uri(sample.picture),
            outcome=describe_outcome,
            answers=_describe_answers,
            levels=level_labels(),
            precision_names=PRECISION_NAMES,
            graph_precisions=list(dict.fromkeys(precisions)) if graph else [],
            precisions=list(dict.fromkeys(cell.precision for cell in report.cells)),
            tensor_columns=TENSOR_COLUMNS,
            tensor_rows=tensor_rows,
            tensor_notes=tensor_notes,
            anchors=anchors,
            open_cards=OPEN_CARDS,
            shown_layers=_SHOWN_LAYERS,
        )
    )


def _environment() -> Environment:
    """What renders the templates of this package."""
    # Names of tensors and nodes come from the model and may contain HTML, so all texts are escaped.
    made = Environment(
        loader=PackageLoader("trtint8.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "db": text.decibels,
        "percent": text.percentage,
        "tiny": text.small_percentage,
        "interval": text.interval,
        "number": text.number,
        "size": text.size,
        "duration": text.duration,
        "times": text.times,
        "breakable": breakable,
        "full_stop": text.full_stop,
    }
    return made


def breakable(name: str, after: str = "/") -> Markup:
    """A name as HTML in which lines may break after each slash, or after another sign."""
    return Markup(f"{after}<wbr>").join(map(escape, name.split(after)))


def level_labels() -> list[str]:
    """The legend of the levels of noise: one text per level."""
    ends = [f"{100 * end:g}" for end in LEVELS]
    between = [f"{low}–{high} %" for low, high in itertools.pairwise(ends)]
    return [f"under {ends[0]} %", *between, f"over {ends[-1]} %"]


def describe_outcome(sample: WorstSample, name: str) -> str:
    """How a model's answer for a sample compares with FP32's and with the label, in a few words.

    Args:
        sample: The sample.
        name: What the model is called.
    """
    if sample.answers is None:
        return ""
    fp32, int8 = sample.answers.classes
    if not sample.flipped:
        return "same answer"
    if sample.label is None:
        return "another answer"
    if sample.label == fp32:
        return f"{name} lost it"
    return f"{name} got it right" if sample.label == int8 else "both wrong"


def _describe_answers(sample: WorstSample, worst: Worst) -> str:
    """What FP32 and INT8 say of a sample, in words; empty for models that are no classifiers."""
    if sample.answers is None:
        return ""
    fp32, other = map(worst.class_name, sample.answers.classes)
    if not sample.flipped:
        return f"Both say {fp32}"
    return f"{REFERENCE} says {fp32}, {worst.name} says {other}"


def _tried_chart(tried: Tried | None, width: int) -> Markup:
    """The chart of what was tried; empty where there is nothing to draw."""
    if tried is None or not tried.drawn:
        return Markup("")
    points = [(trial.int8_share, trial.value, trial.taken) for trial in tried.drawn]
    chosen = tried.chosen
    ringed = (chosen.int8_share, chosen.value) if chosen else None
    return Markup(point_chart(points, tried.unit, width=width, ringed=ringed).svg())


def _asset(name: str) -> str:
    """The text of a file beside the templates."""
    return (files("trtint8.report") / "templates" / name).read_text(encoding="utf-8")


def render_comparison(comparison: RunComparison) -> str:
    """Renders a comparison.

    Args:
        comparison: What the page shows.

    Returns:
        The HTML page; the same comparison always gives the same page.
    """
    template = _environment().get_template("comparison.html")
    return template.render(
        comparison=comparison,
        style=Markup(_asset("page.css")),
        doubted=doubts_among(comparison.warnings),
        notes=notes_among(comparison.warnings),
    )
