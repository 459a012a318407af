"""One metric of one model, and the names of the models in results."""

from __future__ import annotations

from dataclasses import dataclass

from trtint8.validation.significance import Comparison, Share

#: The name of the reference in results.
REFERENCE = "FP32"

#: The name in results of the model that a comparison describes.
VALIDATED = "INT8"


@dataclass(frozen=True)
class Measure:
    """One metric of one model.

    Attributes:
        name: The name of the metric.
        value: The model's value: a share for ``topK`` and ``agreement``, else a number.
        reference: The value of FP32; None for metrics that compare with FP32, such as ``agreement``.
        comparisons: The model's value minus that of FP32; for a metric that compares with FP32 the first
            model's value minus that of each other model. Empty where samples cannot be paired.
        title: What tables call the metric, with the output and what it is compared with; empty where the name
            says it.
        unit: ``%`` for a share or another value in [0, 1] that is shown in per cent, ``dB``, or empty where
            the unit is the metric's own.
        perfect: For a metric that compares with FP32, the value of a model whose outputs are FP32's; None for
            other metrics.
    """

    name: str
    value: Share | float
    reference: Share | float | None = None
    comparisons: tuple[Comparison, ...] = ()
    title: str = ""
    unit: str = ""
    perfect: float | None = None
