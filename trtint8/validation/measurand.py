"""A metric that is ready to be measured on batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trtint8.validation.batch import Batch, BatchForm
from trtint8.validation.meters import Meter

#: The unit of a value in [0, 1] that is shown in per cent.
PERCENT = "%"

#: The unit of levels.
DECIBELS = "dB"


def _take_all(batch: Batch, form: BatchForm) -> None:
    """Takes any labels."""


@dataclass(frozen=True)
class Measurand:
    """A metric that was asked for.

    Attributes:
        name: The metric's name in results.
        relative: Whether it compares with the reference, which then has no value of its own.
        start: Makes the empty meter of one model.
        measure: Measures one batch; what it returns is merged into that meter.
        title: What tables call the metric; the name where it is empty.
        unit: ``%``, ``dB``, or empty where the unit is the metric's own.
        perfect: The value of a model whose outputs are the reference's, for a metric that compares with the
            reference. None where it has to be measured on the reference.
        output: The output that it compares with the reference's element by element; empty where it does not.
        check_labels: Refuses labels that the metric could not be measured with. It takes a batch that was not
            run, without outputs, and the form of one that was: so what would fail at the end of long work is
            known before it.
    """

    name: str
    relative: bool
    start: Callable[[], Meter]
    measure: Callable[[Batch], Any]
    title: str = ""
    unit: str = ""
    perfect: float | None = None
    output: str = ""
    check_labels: Callable[[Batch, BatchForm], None] = _take_all

    @property
    def on_reference(self) -> bool:
        """Whether the metric is measured on the reference too."""
        return self.perfect is None
