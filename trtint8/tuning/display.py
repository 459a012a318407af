"""How what a search tried shows itself in a notebook and as a data frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from calibrators.display.frames import data_frame
from calibrators.display.html import html_table
from calibrators.display.picture import Picture
from calibrators.display.plotting import plot_points
from trtint8.tuning.trial import Trial
from trtint8.validation.budget import Goal


def trials_html(trials: Sequence[Trial], goal: Goal) -> str:
    """A table with one row per candidate that was tried.

    Args:
        trials: The candidates, in the order in which they were tried.
        goal: What the result had to keep.
    """
    rows = [
        (
            trial.what,
            "yes" if trial.taken else "",
            goal.describe(trial.score),
            f"{trial.score.sqnr_db:.2f} dB",
            f"{100 * trial.float_cost:.1f} %",
            f"{trial.seconds:.1f} s",
        )
        for trial in trials
    ]
    return html_table(f"tried for {goal}", ("", "taken", goal.name, "SQNR", "in float", "time"), rows)


def plot_trials(trials: Sequence[Trial], goal: Goal) -> Picture:
    """The metric of every candidate over the share of the arithmetic that stays in float.

    Args:
        trials: The candidates; those without a value of the metric are left out.
        goal: What the result had to keep.

    Raises:
        UnsupportedError: Matplotlib is not installed.
    """
    scored = [(trial, trial.score.value) for trial in trials]
    points = [(trial.float_cost, value, trial.taken) for trial, value in scored if value is not None]
    return plot_points(points, goal.unit, f"{goal.name} over the share of the arithmetic in float")


def trials_frame(trials: Sequence[Trial]) -> Any:
    """A ``pandas.DataFrame`` with one row per candidate that was tried.

    Args:
        trials: The candidates, in the order in which they were tried.

    Raises:
        UnsupportedError: pandas is not installed.
    """
    return data_frame(
        {
            "what": [trial.what for trial in trials],
            "taken": [trial.taken for trial in trials],
            "value": [trial.score.value for trial in trials],
            "drop": [trial.score.drop for trial in trials],
            "sqnr_db": [trial.score.sqnr_db for trial in trials],
            "keep_float": [trial.keep_float for trial in trials],
            "float_cost": [trial.float_cost for trial in trials],
            "seconds": [trial.seconds for trial in trials],
        }
    )
