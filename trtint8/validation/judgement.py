"""What a comparison says of a budget."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Judgement:
    """Whether the samples of a comparison keep a budget.

    Attributes:
        goal: What has to be kept, in words.
        fits: Whether these samples keep it.
        value: The metric of the model: in per cent for a share, else in the metric's unit.
        drop: The metric of FP32 minus the model's, in points for a share, else in the metric's unit; for
            ``max_error`` the error itself. None for a metric that is infinite where outputs equal FP32's.
        step: How many points of a share one sample is; None for other metrics.
        too_fine: Whether the largest drop is a part of a sample, which these samples cannot show.
        notes: The same as sentences.
    """

    goal: str
    fits: bool
    value: float | None
    drop: float | None
    step: float | None
    too_fine: bool
    notes: tuple[str, ...]
