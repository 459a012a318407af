"""The accuracy of INT8: what is compared with the FP32 model, and what the comparison found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from calibrators.data.feeds import FeedDict
from calibrators.display.counts import counted
from calibrators.records import PositiveCount
from trtint8.arithmetic.simulation import InIntegers
from trtint8.validation.display import accuracy_frame, accuracy_html, accuracy_summary
from trtint8.validation.fidelity import Fidelity
from trtint8.validation.judgement import Judgement
from trtint8.validation.measure import Measure
from trtint8.validation.significance import Share

#: Runs a model: a feed to the list of its outputs, in the order of the output names.
Runner = Callable[[FeedDict], list[NDArray[Any]]]


@dataclass(frozen=True)
class ValidatedModel:
    """A model that is compared with the reference.

    Attributes:
        name: The model's name in results, such as INT8.
        run: Runs the model; its outputs are the reference's, in the reference's order, and ``sources`` come
            behind them.
        description: How the model is run, in words, such as "the engine on NVIDIA T1000".
        sources: The tensors that outputs are picked from, where the model gives them; empty or all that the
            reference gives.
        half: Names of the tensors that the model holds in FP16, where ONNX Runtime runs it on a CPU.
        in_integers: Tells what was computed in integers so far, where the model is run in an arithmetic.
    """

    name: str
    run: Runner
    description: str
    sources: tuple[str, ...] = ()
    half: tuple[str, ...] = ()
    in_integers: Callable[[], InIntegers] | None = None


@dataclass(frozen=True, repr=False)
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
        chosen: What nobody has asked for, and why, in words: which metrics were chosen by the shapes of the
            outputs, and in which layout detections were read; None where all of that was asked for.
        judgement: Whether the samples keep a budget; None where there is none.
        judged_fingerprint: Identifies the engine that was judged: its Q/DQ model, or its plan where it has
            none; None for a model, and in results of trtint8 0.1.
        reference_fingerprint: Identifies the FP32 model, or the one that its weights were changed from; None
            where no model says what it was made from, and in results of trtint8 0.1.
        in_integers: What a backend computes in integers, where the model was run in its arithmetic; else
            None.
    """

    judged: str
    samples: PositiveCount
    top1: Share | None
    top5: Share | None
    reference_top1: Share | None
    reference_top5: Share | None
    agreement: Share | None
    outputs: tuple[Fidelity, ...]
    measures: tuple[Measure, ...] = ()
    also: Mapping[str, Accuracy] = field(default_factory=dict)
    chosen: str | None = None
    judgement: Judgement | None = None
    judged_fingerprint: str | None = None
    reference_fingerprint: str | None = None
    in_integers: InIntegers | None = None

    def __repr__(self) -> str:
        parts = (counted(self.samples, "sample"), accuracy_summary(self))
        return f"<Accuracy: {', '.join(filter(None, parts))}>"

    def _repr_html_(self) -> str:
        title = f"{counted(self.samples, 'sample')}; INT8 is {self.judged}"
        return accuracy_html(title, self, (self.chosen,) if self.chosen else ())

    def to_pandas(self) -> Any:
        """The metrics as a data frame.

        Returns:
            A ``pandas.DataFrame`` with one row per metric, the column ``metric``, and one column per model.
            Shares are in [0, 1]; the metrics of single outputs have the output's name behind a colon.

        Raises:
            UnsupportedError: pandas is not installed.
        """
        return accuracy_frame(self)
