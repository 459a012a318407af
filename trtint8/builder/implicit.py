"""Implicit INT8: ranges and calibrators for a builder of TensorRT 8.5 to 10.x."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from calibrators.display.counts import counted
from calibrators.errors import BuildError, UnsupportedError
from calibrators.tensorrt.foreign import AnyCalibrator
from calibrators.user_warnings import warn_user
from trtint8.builder.dynamic_ranges import (
    MissingRange,
    NetworkLayer,
    missing_ranges,
    propagate,
    set_ranges,
    unknown_names,
)
from trtint8.builder.options import BuildOptions
from trtint8.builder.precisions import set_precisions
from trtint8.engine.profiles import Profile, ShapeRange

#: The only calibrator that the DLA takes.
_DLA_CALIBRATOR = "IInt8EntropyCalibrator2"


@dataclass(frozen=True)
class ImplicitInt8:
    """Where the ranges of an implicitly quantized network come from.

    Attributes:
        calibrator: The calibrator, see :func:`~calibrators.tensorrt.foreign.as_any_calibrator`; None where
            ``ranges`` are enough.
        ranges: Tensor name to amax; tensors that the network lacks are ignored, because the parser may remove
            layers.
        manual: Names among ``ranges`` that the user set by hand; each must be in the network.
        keep_float: Names of layers, or patterns with ``*`` and ``?``, that do not run in INT8.
    """

    calibrator: AnyCalibrator | None = None
    ranges: Mapping[str, float] = field(default_factory=dict)
    manual: frozenset[str] = frozenset()
    keep_float: Sequence[str] = ()


def check_calibrator(trt: Any, calibrator: AnyCalibrator, options: BuildOptions) -> None:
    """Refuses a calibrator that TensorRT cannot use.

    Args:
        trt: The TensorRT module.
        calibrator: What was given as calibrator.
        options: The build options, which say whether to build for the DLA.

    Raises:
        UnsupportedError: The object is no calibrator, or not the one that the DLA takes.
    """
    given = calibrator.implementation
    if not isinstance(given, trt.IInt8Calibrator):
        raise UnsupportedError(
            f"a {type(given).__name__} is no TensorRT calibrator; give one of calibrators.tensorrt"
        )
    if options.dla_core is not None and not isinstance(given, getattr(trt, _DLA_CALIBRATOR)):
        raise UnsupportedError(
            f"the DLA takes no other calibrator than EntropyCalibrator2, and this is a {type(given).__name__}"
        )


def check_device(calibrator: AnyCalibrator, device: int) -> None:
    """Refuses a calibrator whose batches are not on the GPU that builds.

    Args:
        calibrator: A calibrator that TensorRT can use.
        device: Index of the GPU that builds.

    Raises:
        BuildError: The calibrator uploads to another GPU.
    """
    uploads = calibrator.device_index
    if uploads is not None and uploads != device:
        raise BuildError(
            f"the calibrator's batches are on GPU {uploads}, and the build is to run on GPU {device}; give "
            "both the same device"
        )


def apply_ranges(
    trt: Any,
    network: Any,
    config: Any,
    implicit: ImplicitInt8,
    options: BuildOptions,
    layers: Sequence[NetworkLayer],
    inputs: Sequence[str],
) -> tuple[MissingRange, ...]:
    """Sets the dynamic ranges and the layers that stay in float.

    Args:
        trt: The TensorRT module.
        network: The parsed ``INetworkDefinition``.
        config: The ``IBuilderConfig`` of the build.
        implicit: Where the ranges come from, and the layers that stay in float.
        options: The build options, with the precisions of single layers.
        layers: The layers as they were parsed, before inputs and outputs got other types.
        inputs: Names of the floating-point inputs, before they got other types.

    Returns:
        The tensors that have no range; empty where a calibrator finds the ranges.

    Raises:
        BuildError: A range that was set by hand belongs to no tensor of the network, none of the ranges does,
            or a pattern matches no layer.
    """
    set_precisions(trt, network, config, options, implicit.keep_float)
    unknown = unknown_names(layers, inputs, sorted(implicit.manual))
    if unknown:
        raise BuildError(
            f"a dynamic range is given for '{unknown[0]}', which is no floating-point tensor of the network; "
            f"it has for example {', '.join(repr(name) for name in (*inputs[:1], *layers[-1].outputs[:1]))}"
        )
    if implicit.calibrator is not None:
        return ()
    if implicit.ranges and len(unknown_names(layers, inputs, implicit.ranges)) == len(implicit.ranges):
        raise BuildError(
            f"none of the {counted(len(implicit.ranges), 'tensor')} with a range is in the network, "
            f"'{next(iter(implicit.ranges))}' for example; give ranges of this model"
        )
    known = propagate(layers, implicit.ranges)
    set_ranges(network, known)
    return missing_ranges(layers, inputs, known)


def calibration_profile(calibrator: AnyCalibrator, profiles: Sequence[Profile]) -> Profile | None:
    """The shapes with which TensorRT calibrates.

    Args:
        calibrator: The calibrator, which is prepared.
        profiles: The optimization profiles.

    Returns:
        The shapes of the batches as a profile; where they are unknown, the optimal shapes of the first
        profile; None where all inputs are static.
    """
    if not profiles:
        return None
    shapes = calibrator.shapes() or {}
    fixed = {name: shapes.get(name, sizes.opt) for name, sizes in profiles[0].items()}
    return {name: ShapeRange(shape, shape, shape) for name, shape in fixed.items()}


def finish_calibration(calibrator: AnyCalibrator | None, error: BaseException | None) -> None:
    """Frees a calibrator's memory, and raises the exception that it failed with during a build.

    Args:
        calibrator: The calibrator, or None.
        error: The exception of a build that failed; None where it succeeded.

    Raises:
        BaseException: The exception that the calibrator failed with.

    Warns:
        UserWarning: The build succeeded, and TensorRT asked the calibrator neither for a batch nor for its
            cache.
    """
    if calibrator is None:
        return
    calibrator.raise_failure(error)
    if error is None and not calibrator.was_asked:
        warn_user(
            "TensorRT never asked the calibrator for data; check that the model has layers that run in INT8"
        )
