"""Peak signal-to-noise ratio, for networks whose output is an image."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators.data.inputs import shape_text
from calibrators.errors import CalibrationDataError
from trtint8.validation.batch import Batch, BatchForm, by_sample
from trtint8.validation.measurand import DECIBELS, Measurand
from trtint8.validation.meters import SumsMeter
from trtint8.validation.significance import Comparison

#: Outputs whose values are all closer to zero than this are images from 0 to 1, or from -1 to 1.
_NORMALIZED = 1.5

#: The largest value of a dark image, for which an output from 0 to 255 may be as close to zero.
_BRIGHT = 16

#: What messages call the labels.
_LABELS = "the labels"


def psnr(name: str, output: str, form: BatchForm) -> Measurand:
    """The peak signal-to-noise ratio of an output.

    It is 10 log10(peak^2 / mean squared error), with the mean over all elements of all samples and the peak
    of :func:`peak`. It is measured against the labels where these have the output's shape, else against the
    reference. Either has to be finite.

    Args:
        name: The metric's name in results.
        output: The output.
        form: The form of a batch.

    Raises:
        CalibrationDataError: The labels have the output's rank, or its number of elements, but another shape.
    """
    own, labels = form.outputs[output], form.labels
    if labels is not None and not form.has_class_indices and _are_meant_for(labels.shape, own.shape):
        raise CalibrationDataError(
            f"metric '{name}' cannot compare labels of shape {shape_text(labels.shape)} with output "
            f"'{output}' of shape {shape_text(own.shape)}; give labels of the output's shape, or none to "
            "compare with the float model"
        )
    with_labels = labels is not None and labels.shape == own.shape and not form.has_class_indices
    return Measurand(
        name,
        not with_labels,
        PsnrMeter,
        partial(_measure, name, output, with_labels),
        title=f"PSNR of '{output}' against {'the labels' if with_labels else 'FP32'}",
        unit=DECIBELS,
        perfect=None if with_labels else math.inf,
        output=output,
        check_labels=partial(_check_labels, name, with_labels),
    )


def _are_meant_for(labels: tuple[int, ...], output: tuple[int, ...]) -> bool:
    """Whether labels of another shape than an output's were meant to be compared with it."""
    same_rank = len(labels) == len(output) > 1
    return labels != output and (same_rank or math.prod(labels) == math.prod(output))


def peak(low: float, high: float, *, is_uint8: bool) -> float:
    """The signal's peak in a peak signal-to-noise ratio.

    Args:
        low: The smallest value of the labels or of the reference's output, over the data set.
        high: The largest value of the labels or of the reference's output, over the data set.
        is_uint8: Whether these values are uint8.

    Returns:
        255 for uint8; 1 where all values lie in [0, 1]; else the largest value minus the smallest.
    """
    if is_uint8:
        return 255.0
    if low >= 0 and high <= 1:
        return 1.0
    return high - low or 1.0


def noise_level(totals: NDArray[np.float64]) -> NDArray[np.float64]:
    """The level of a mean squared error, for a peak of 1.

    Args:
        totals: The sum of squared errors and the number of elements, float64 of shape (..., 2).

    Returns:
        10 log10(elements / squared errors) in decibels, shape (...); infinite where there is no error.
    """
    with np.errstate(divide="ignore"):
        return np.asarray(10 * np.log10(totals[..., 1] / totals[..., 0]))


class PsnrMeter:
    """Squared errors of each sample, and the extent of the values that were wanted.

    Args:
        sums: The squared error and the number of elements of each sample; empty where None.
        low: The smallest value that was wanted.
        high: The largest value that was wanted.
        is_uint8: Whether the values that were wanted are uint8.
    """

    def __init__(
        self,
        sums: SumsMeter | None = None,
        low: float = math.inf,
        high: float = -math.inf,
        *,
        is_uint8: bool = False,
    ) -> None:
        self._sums = sums or SumsMeter(noise_level)
        self._low, self._high, self._is_uint8 = low, high, is_uint8

    def merge(self, other: PsnrMeter) -> None:
        """Adds what the same metric measured on the same model in later batches."""
        self._sums.merge(other._sums)
        self._low, self._high = min(self._low, other._low), max(self._high, other._high)
        self._is_uint8 = other._is_uint8

    def value(self) -> float:
        """The peak signal-to-noise ratio over all samples, in decibels."""
        return 20 * math.log10(peak(self._low, self._high, is_uint8=self._is_uint8)) + self._sums.value()

    def against(self, other: PsnrMeter, name: str) -> Comparison | None:
        """Compares by a paired bootstrap; both models have the same peak."""
        return self._sums.against(other._sums, name)


def _measure(name: str, output: str, with_labels: bool, batch: Batch) -> PsnrMeter:
    target = batch.labels if with_labels and batch.labels is not None else batch.reference[output]
    wanted = target.astype(np.float64)
    _check_finite(name, wanted, batch, _LABELS if with_labels else f"FP32's output '{output}'")
    if target.dtype == np.uint8 and with_labels:
        _check_scale(name, output, wanted, batch)
    error = wanted - batch.outputs[output].astype(np.float64)
    return PsnrMeter(
        SumsMeter(noise_level, [_squares(by_sample(error, batch.rows))], batch.rows),
        float(wanted.min(initial=math.inf)),
        float(wanted.max(initial=-math.inf)),
        is_uint8=target.dtype == np.uint8,
    )


def _check_labels(name: str, with_labels: bool, batch: Batch, _form: BatchForm) -> None:
    if with_labels and batch.labels is not None:
        _check_finite(name, batch.labels.astype(np.float64), batch, _LABELS)


def _check_finite(name: str, wanted: NDArray[np.float64], batch: Batch, source: str) -> None:
    """Refuses what no error can be computed with.

    Raises:
        CalibrationDataError: A value is NaN or infinite.
    """
    broken = ~np.isfinite(by_sample(wanted, batch.rows)).all(axis=1)
    if broken.any():
        sample = batch.name_of(batch.first + int(broken.argmax()))
        raise CalibrationDataError(
            f"metric '{name}' compares with {source}, of which {sample} has values that are NaN or infinite; "
            "mend them, or leave the sample out"
        )


def _check_scale(name: str, output: str, labels: NDArray[np.float64], batch: Batch) -> None:
    """Refuses labels of pixels from 0 to 255 for an output from 0 to 1, or from -1 to 1.

    All models would be equally far from them.

    Raises:
        CalibrationDataError: The labels have another scale than the reference's output.
    """
    found = batch.reference[output]
    low, high, largest = found.min(initial=math.inf), found.max(initial=-math.inf), labels.max(initial=0)
    if largest > _BRIGHT and low > -_NORMALIZED and high < _NORMALIZED:
        raise CalibrationDataError(
            f"metric '{name}' cannot compare labels of uint8, up to {largest:g}, with output '{output}', "
            f"which is from {low:.3g} to {high:.3g} in FP32; give labels of the output's scale"
        )


def _squares(errors: NDArray[Any]) -> NDArray[np.float64]:
    """The sum of squares and the number of elements of each row."""
    squares = np.einsum("ij,ij->i", errors, errors)
    return np.stack([squares, np.full(len(errors), float(errors.shape[1]))], axis=1)
