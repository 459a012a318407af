"""The accuracy of INT8: what is compared with the FP32 model, and what the comparison found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from calibrators.data.batches import FeedDict
from trtint8.validation.fidelity import Fidelity
from trtint8.validation.significance import Comparison, Share

#: Runs a model: a feed to the list of its outputs, in the order of the output names.
Runner = Callable[[FeedDict], list[NDArray[Any]]]

#: The name of the reference in results.
REFERENCE = "FP32"

#: The name in results of the model that a comparison describes.
VALIDATED = "INT8"


@dataclass(frozen=True)
class ValidatedModel:
    """A model that is compared with the reference.

    Attributes:
        name: The model's name in results, such as INT8.
        run: Runs the model; its outputs are the reference's, in the reference's order.
        description: How the model is run, in words, such as "the engine on NVIDIA T1000".
    """

    name: str
    run: Runner
    description: str


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


@dataclass(frozen=True)
class Accuracy:
    """How a model, usually in INT8, compares with FP32.

    Attributes:
        judged: How the model was run, in words.
        samples: Number of samples that the models were run on.
        top1: Share of samples whose largest logit is the label's; None where it was not measured.
        top5: Share of samples whose label is among the five largest logits; None where it was not measured.
        reference_top1: The same share as ``top1`` for FP32.
        reference_top5: The same share as ``top5`` for FP32.
        agreement: Share of samples where the model and FP32 give the same class; None where it was not
            measured.
        outputs: How close each output is to FP32's; empty where that was not asked for.
        measures: All metrics except those of single outputs, in the order in which they were asked for.
        also: The results of the other models on the same samples, by name.
        chosen: Which metrics were chosen by the shapes of the outputs, and why, in words; None where metrics
            were asked for.
    """

    judged: str
    samples: int
    top1: Share | None
    top5: Share | None
    reference_top1: Share | None
    reference_top5: Share | None
    agreement: Share | None
    outputs: tuple[Fidelity, ...]
    measures: tuple[Measure, ...] = ()
    also: Mapping[str, Accuracy] = field(default_factory=dict)
    chosen: str | None = None
