"""Calibrators that others wrote, with what a build asks of the calibrators of this package."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any

from calibrators.cuda import current_device
from calibrators.data.samples.sizes import SampleSizes
from calibrators.tensorrt.calibrator import Calibrator, ServedBuild


class ForeignCalibrator:
    """A calibrator of which TensorRT's interface is all that is known.

    Args:
        implementation: An object of a class that derives from TensorRT's ``IInt8Calibrator``.

    Attributes:
        implementation: What TensorRT is given.
        table: None, because it keeps none.
        was_asked: True, because it does not say.
    """

    table: None = None
    was_asked = True

    def __init__(self, implementation: Any) -> None:
        self.implementation = implementation

    @property
    def device_index(self) -> int | None:
        """Index of the GPU whose context is current, where it mostly uploads to; None where there is none."""
        return current_device()

    def context(self) -> AbstractContextManager[None] | None:
        """The current CUDA context, where it mostly allocates; None where there is none."""
        return None if current_device() is None else contextlib.nullcontext()

    def bind(self, build: ServedBuild) -> None:
        """Does nothing: TensorRT's interface has no place for what is known of a build."""

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
