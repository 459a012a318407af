"""From the facts to one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import itertools
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from trtint8.report import text
from trtint8.report.charts import DASHES, histogram_chart, level_chart
from trtint8.report.facts import Report
from trtint8.report.network import LEVELS
from trtint8.report.pictures import data_uri
from trtint8.report.worst import WorstSample

#: Tensors whose card is open from the start; the others open on a click.
OPEN_CARDS = 6

#: Layers that are shown from the start.
SHOWN_LAYERS = 12

#: Widths of the chart of levels, for a wide page and for a phone.
_WIDE, _NARROW = 840, 330


def render(report: Report) -> str:
    """Writes the page.

    Args:
        report: What it says.

    Returns:
        HTML; the same for the same report.
    """
    # Names of tensors and nodes are the model's and may hold anything.
    environment = Environment(
        loader=PackageLoader("trtint8.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "db": text.decibels,
        "percent": text.percentage,
        "tiny": text.small_percentage,
        "interval": text.interval,
        "number": text.number,
        "size": text.size,
        "times": text.times,
        "breakable": text.breakable,
    }
    script = _asset("page.js")
    levels = [layer.cumulative_db for layer in report.sensitivity.layers] if report.sensitivity else []
    known = [level for level in levels if level is not None]
    return environment.get_template("page.html").render(
        report=report,
        head=report.headline,
        style=Markup(_asset("page.css")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        histogram=lambda card: Markup(histogram_chart(card)),
        dashes={method: " ".join(map(str, lengths)) for method, lengths in DASHES.items()},
        wide=Markup(level_chart(known, _WIDE)) if known else "",
        narrow=Markup(level_chart(known, _NARROW)) if known else "",
        picture=lambda sample: None if sample.picture is None else data_uri(sample.picture),
        outcome=outcome,
        levels=level_words(),
        precisions=list(dict.fromkeys(cell.precision for cell in report.cells)),
        anchors={bar.node: f"layer-{place}" for place, bar in enumerate(report.bars, start=1)},
        open_cards=OPEN_CARDS,
        shown_layers=SHOWN_LAYERS,
    )


def level_words() -> list[str]:
    """The legend of loudness: one text a level."""
    ends = [f"{100 * end:g}" for end in LEVELS]
    between = [f"{low}–{high} %" for low, high in itertools.pairwise(ends)]
    return [f"under {ends[0]} %", *between, f"over {ends[-1]} %"]


def outcome(sample: WorstSample) -> str:
    """What INT8 did to a sample, in a few words."""
    if sample.answers is None:
        return ""
    own, theirs = sample.answers.classes
    if not sample.flipped:
        return "same answer"
    if sample.label is None:
        return "another answer"
    if sample.label == own:
        return "INT8 lost it"
    return "INT8 got it right" if sample.label == theirs else "both wrong"


def _asset(name: str) -> str:
    return (files("trtint8.report") / "templates" / name).read_text(encoding="utf-8")
