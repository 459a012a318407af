"""Chooses between implicit and explicit quantization for a build."""

from __future__ import annotations

from typing import Any, Literal

from calibrators.errors import UnsupportedError
from calibrators.tensorrt.calibrator import Calibrator
from calibrators.tensorrt.flavor import Flavor
from trtint8.builder.config import BuildOptions
from trtint8.models.model import Model
from trtint8.quantization.targets import Target, target_named

Route = Literal["auto", "explicit", "implicit"]


def choose_route(
    route: Route, calibration: Any, flavor: Flavor, model: Model
) -> Literal["explicit", "implicit"]:
    """Decides between Q/DQ pairs in the graph and calibrators with dynamic ranges.

    Args:
        route: The route that the user asked for. "auto" is implicit where the model is float, and a
            calibrator is given or this TensorRT is 8.5 to 10.0.
        calibration: Where the ranges come from, in any form that ``build_int8_engine`` takes.
        flavor: The TensorRT that builds.
        model: The model that is to be built.

    Returns:
        The route to take.

    Raises:
        UnsupportedError: The route contradicts the model, the TensorRT or the calibration.
    """
    calibrator = is_calibrator(calibration, flavor)
    if model.is_quantized and (calibrator or route == "implicit"):
        raise UnsupportedError(
            f"'{model.name}' holds Q/DQ pairs, so its INT8 is explicit; leave route and calibrator out, or "
            "give the float model"
        )
    if not flavor.implicit_int8 and (calibrator or route == "implicit"):
        raise UnsupportedError(
            f"{flavor} has neither calibrators nor dynamic ranges, which TensorRT 8.5 to 10.x have; take the "
            "explicit route, with sample inputs or a table"
        )
    if route == "explicit" and calibrator:
        raise UnsupportedError(
            "a calibrator belongs to the implicit route, and the explicit one was asked for; give sample "
            "inputs or a table, or leave the route out"
        )
    if route != "auto":
        return route
    implicit = calibrator or not (flavor.explicit_by_default or model.is_quantized)
    return "implicit" if implicit else "explicit"


def quantization_target(flavor: Flavor, options: BuildOptions) -> Target:
    """What Q/DQ pairs are placed for.

    Args:
        flavor: The TensorRT that builds.
        options: The options of the build, which may name a DLA core.
    """
    return target_named("dla" if options.dla_core is not None else flavor.quantization_target)


def is_calibrator(calibration: Any, flavor: Flavor) -> bool:
    """Whether an object is a calibrator of ``calibrators.tensorrt``, or implements TensorRT's interface."""
    if isinstance(calibration, Calibrator):
        return True
    return flavor.implicit_int8 and isinstance(calibration, flavor.module.IInt8Calibrator)
