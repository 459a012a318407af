"""What INT8 costs: engines' or Q/DQ models' outputs beside those of the FP32 model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from calibrators.data.batches import FeedDict
from calibrators.errors import CalibrationDataError
from calibrators.host.onnx_session import first_line, open_session
from trtint8.validation.fidelity import Fidelity
from trtint8.validation.significance import Comparison, Share

#: Feeds to outputs, in the order of the output names.
Runner = Callable[[FeedDict], list[NDArray[Any]]]

#: What the reference is called in results.
REFERENCE = "FP32"

#: What the model is called that it is about.
JUDGED = "INT8"


@dataclass(frozen=True)
class Judged:
    """A model to judge.

    Attributes:
        name: What it is called in results, such as INT8.
        run: Runs it, with the reference's outputs in the reference's order.
        description: What stands for it, in words.
    """

    name: str
    run: Runner
    description: str


@dataclass(frozen=True)
class Measure:
    """One metric of one model.

    Attributes:
        name: The metric.
        value: The model's: a share for ``topK`` and ``agreement``, else a number.
        reference: FP32's; None for ``agreement``, which FP32 has no value of.
        comparisons: The model less FP32; for ``agreement`` the first model less each other one. Empty where
            nothing can be paired.
    """

    name: str
    value: Share | float
    reference: Share | float | None = None
    comparisons: tuple[Comparison, ...] = ()


@dataclass(frozen=True)
class Accuracy:
    """A model, mostly INT8, beside FP32.

    Attributes:
        judged: What stood for the model, in words.
        samples: How many samples were fed.
        top1: Share of samples whose largest logit is the label's; None where it was not measured.
        top5: The same for the five largest.
        reference_top1: FP32's.
        reference_top5: FP32's.
        agreement: Share of samples where the model and FP32 give the same class; None where it was not
            measured.
        outputs: How close each output is; empty where that was not asked for.
        measures: The metrics but those of single outputs, in the order in which they were asked for.
        also: The other models that were judged on the same samples, by name.
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


def onnx_runner(
    model: bytes | Path, *, optimize: bool, threads: int | None = None
) -> tuple[Runner, list[str]]:
    """Runs a model in ONNX Runtime on the CPU.

    Args:
        model: Serialized, or a path.
        optimize: False runs a Q/DQ model as true fake quantization.
        threads: Threads within an operator; ONNX Runtime's choice where None.

    Returns:
        The runner and the names of the outputs.
    """
    session = open_session(model, optimize=optimize, threads=threads)

    def run(feed: FeedDict) -> list[NDArray[Any]]:
        try:
            outputs: list[NDArray[Any]] = session.run(None, feed)
        except Exception as error:
            raise CalibrationDataError(f"the model fails on a batch: {first_line(error)}") from error
        return outputs

    return run, [output.name for output in session.get_outputs()]
