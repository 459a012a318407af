"""Renders a comparison of several runs as one HTML file that needs no other files."""

from __future__ import annotations

from markupsafe import Markup

from trtint8.report.comparison import RunComparison
from trtint8.report.page import asset, environment


def render_comparison(comparison: RunComparison) -> str:
    """Renders a comparison.

    Args:
        comparison: What the page shows.

    Returns:
        The HTML page; the same comparison always gives the same page.
    """
    template = environment().get_template("comparison.html")
    return template.render(comparison=comparison, style=Markup(asset("page.css")))
