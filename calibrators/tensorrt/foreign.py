"""Calibrators that others wrote, with what a build asks of the calibrators of this package."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from calibrators.cuda import current_device
from calibrators.data.samples import SampleSizes
from calibrators.tensorrt.calibrator import Calibrator


class ForeignCalibrator:
    """A calibrator of which TensorRT's interface is all that is known.

    Args:
        implementation: An object of a class that derives from TensorRT's ``IInt8Calibrator``.

    Attributes:
        implementation: What TensorRT is given.
        before_fusion: As that of :class:`~calibrators.tensorrt.calibrator.Calibrator`, without effect; so are
            the next ones.
        network_dtypes: See there.
        built_model: See there.
        cancelled: See there.
        table: None, because it keeps none.
        was_asked: True, because it does not say.
    """

    table: None = None
    was_asked = True

    def __init__(self, implementation: Any) -> None:
        self.implementation = implementation
        self.before_fusion = False
        self.network_dtypes: Mapping[str, np.dtype[Any]] = {}
        self.built_model: str | None = None
        self.cancelled: Callable[[], bool] = lambda: False

    @property
    def device_index(self) -> int | None:
        """Index of the GPU whose context is current, where it mostly uploads to; None where there is none."""
        return current_device()

    def context(self) -> AbstractContextManager[None] | None:
        """The current CUDA context, where it mostly allocates; None where there is none."""
        return None if current_device() is None else contextlib.nullcontext()

    def prepare(self) -> None:
        """Does nothing."""

    def shapes(self) -> None:
        """None: the shapes of its batches are not known."""

    def input_sizes(self) -> dict[str, SampleSizes]:
        """Nothing: the sizes of its samples are not known."""
        return {}

    def raise_failure(self, build_error: BaseException | None = None) -> None:
        """Does nothing: TensorRT tells of no failure."""

    def close(self) -> None:
        """Does nothing."""


#: What a build takes ranges from as TensorRT computes them.
AnyCalibrator = Calibrator | ForeignCalibrator


def as_any_calibrator(calibrator: Any) -> AnyCalibrator:
    """A calibrator of this package as it is, any other one with its methods."""
    return calibrator if isinstance(calibrator, Calibrator) else ForeignCalibrator(calibrator)
