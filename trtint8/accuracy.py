"""What INT8 costs: an engine's or a Q/DQ model's outputs beside those of the FP32 model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators.batches import Batches, FeedDict
from calibrators.errors import CalibrationDataError, ModelError
from calibrators.inputs import InputSpec
from calibrators.onnx_session import first_line, open_session
from calibrators.preflight import Preflight
from calibrators.progress import progress_bar

#: Feeds to outputs, in the order of the output names.
Runner = Callable[[FeedDict], list[NDArray[Any]]]


@dataclass(frozen=True)
class Share:
    """How many of how many, with what that says about the population."""

    count: int
    total: int

    @property
    def value(self) -> float:
        """The share, in [0, 1]."""
        return self.count / self.total

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval (Wilson's score interval, JASA 22, 1927)."""
        z = 1.959963984540054
        n, p = self.total, self.value
        centre = (p + z * z / (2 * n)) / (1 + z * z / n)
        half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return max(0.0, centre - half), min(1.0, centre + half)


@dataclass(frozen=True)
class Fidelity:
    """How close one output is to FP32's.

    Attributes:
        name: The output.
        sqnr_db: Signal to quantization noise, 10 log10(sum(fp32^2) / sum((fp32 - int8)^2)) over all
            samples, in decibels; infinite where they are equal.
        cosine: Cosine of the angle between the two, over all samples.
    """

    name: str
    sqnr_db: float
    cosine: float


@dataclass(frozen=True)
class Accuracy:
    """INT8 beside FP32.

    Attributes:
        judged: What stood for INT8, in words.
        samples: How many samples were fed.
        top1: Share of samples whose largest INT8 logit is the label's; None without labels.
        top5: The same for the five largest; None without labels or with five classes or fewer.
        reference_top1: FP32's.
        reference_top5: FP32's.
        agreement: Share of samples where INT8 and FP32 give the same class; None where the first output is
            not a row of classes a sample.
        outputs: How close each output is.
    """

    judged: str
    samples: int
    top1: Share | None
    top5: Share | None
    reference_top1: Share | None
    reference_top5: Share | None
    agreement: Share | None
    outputs: tuple[Fidelity, ...]


def onnx_runner(model: bytes | Path, *, optimize: bool) -> tuple[Runner, list[str]]:
    """Runs a model in ONNX Runtime on the CPU.

    Args:
        model: Serialized, or a path.
        optimize: False runs a Q/DQ model as true fake quantization.

    Returns:
        The runner and the names of the outputs.
    """
    session = open_session(model, optimize=optimize)

    def run(feed: FeedDict) -> list[NDArray[Any]]:
        try:
            outputs: list[NDArray[Any]] = session.run(None, feed)
        except Exception as error:
            raise CalibrationDataError(f"the model fails on a batch: {first_line(error)}") from error
        return outputs

    return run, [output.name for output in session.get_outputs()]


def compare(
    judged: Runner,
    reference: Runner,
    output_names: Sequence[str],
    inputs: Sequence[InputSpec],
    batches: Batches,
    *,
    description: str,
    progress: bool = True,
) -> Accuracy:
    """Feeds both sides every batch and compares what comes out, batch by batch.

    Args:
        judged: The INT8 side.
        reference: The FP32 side, with the same outputs.
        output_names: Names of the outputs, in order.
        inputs: What both are fed.
        batches: The data; its labels, where it has some, are class indices.
        description: What the INT8 side is, in words.
        progress: Show a progress bar on a terminal.

    Returns:
        The comparison.

    Raises:
        CalibrationDataError: The data does not fit the model, or a label is not one of its classes.
        ModelError: The two sides' outputs differ in shape.
    """
    sums = np.zeros((len(output_names), 4))
    tally = _Tally(batches.labels)
    preflight = Preflight(inputs)
    with progress_bar("Validating", batches.num_samples, enabled=progress) as advance:
        for feed in batches:
            before = preflight.samples
            preflight.observe(feed)
            got, wanted = judged(feed), reference(feed)
            for index, (a, b) in enumerate(zip(got, wanted, strict=True)):
                if a.shape != b.shape:
                    raise ModelError(
                        f"output '{output_names[index]}' has shape {a.shape}, the reference's {b.shape}; "
                        "compare with the model that it was made from"
                    )
                sums[index] += _sums(a, b)
            tally.add(got[0], wanted[0])
            advance(preflight.samples - before)
    preflight.finish()
    outputs = tuple(_fidelity(name, row) for name, row in zip(output_names, sums, strict=True))
    return Accuracy(description, preflight.samples, *tally.shares(), outputs)


class _Tally:
    """Counts of right and of equal classes."""

    def __init__(self, labels: NDArray[np.int64] | None) -> None:
        self._labels = labels
        self._fed = 0
        self._classes: int | None = None
        self._hits = np.zeros(5, np.int64)  # top1, top5, reference top1, reference top5, agreement

    def add(self, got: NDArray[Any], wanted: NDArray[Any]) -> None:
        if wanted.ndim != 2 or wanted.shape[1] < 2:
            return
        self._classes = wanted.shape[1]
        ranked = [_top5(got), _top5(wanted)]
        self._hits[4] += int((ranked[0][:, 0] == ranked[1][:, 0]).sum())
        if self._labels is not None:
            labels = self._labels[self._fed : self._fed + len(wanted)]
            bad = labels[(labels < 0) | (labels >= self._classes)]
            if len(bad):
                raise CalibrationDataError(
                    f"label {bad[0]} is not one of the model's {self._classes} classes (0 to "
                    f"{self._classes - 1}); check the labels"
                )
            for side, order in enumerate(ranked):
                hit = order == labels[:, None]
                self._hits[2 * side] += int(hit[:, 0].sum())
                self._hits[2 * side + 1] += int(hit.any(axis=1).sum())
        self._fed += len(wanted)

    def shares(self) -> tuple[Share | None, Share | None, Share | None, Share | None, Share | None]:
        """top1, top5, reference_top1, reference_top5, agreement."""
        if self._classes is None:
            return None, None, None, None, None
        top1, top5, reference_top1, reference_top5, agreement = (Share(int(h), self._fed) for h in self._hits)
        if self._labels is None:
            return None, None, None, None, agreement
        if self._classes <= 5:
            return top1, None, reference_top1, None, agreement
        return top1, top5, reference_top1, reference_top5, agreement


def _top5(logits: NDArray[Any]) -> NDArray[np.intp]:
    return np.argsort(-logits, axis=1, kind="stable")[:, :5]


def _sums(got: NDArray[Any], wanted: NDArray[Any]) -> NDArray[np.float64]:
    """Sums of wanted^2, got^2, wanted*got and (wanted-got)^2."""
    a, b = wanted.astype(np.float64).ravel(), got.astype(np.float64).ravel()
    return np.array([a @ a, b @ b, a @ b, (a - b) @ (a - b)])


def _fidelity(name: str, sums: NDArray[np.float64]) -> Fidelity:
    wanted, got, product, noise = sums
    sqnr = math.inf if noise == 0 else (10 * math.log10(wanted / noise) if wanted else -math.inf)
    norm = math.sqrt(wanted * got)
    return Fidelity(name, float(sqnr), float(product / norm) if norm else float(noise == 0))
