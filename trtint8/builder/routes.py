"""Which of the two ways to INT8 a build takes."""

from __future__ import annotations

from typing import Any, Literal

from calibrators.errors import UnsupportedError
from calibrators.tensorrt.calibrator import Calibrator
from calibrators.tensorrt.flavor import Flavor
from trtint8.models.model import Model

Route = Literal["auto", "explicit", "implicit"]


def choose_route(
    route: Route, calibration: Any, flavor: Flavor, model: Model
) -> Literal["explicit", "implicit"]:
    """Decides between Q/DQ in the graph and calibrators with dynamic ranges.

    Args:
        route: What was asked for. "auto" is implicit where a calibrator is given or Q/DQ is not the
            default of this TensorRT, and the model is still float.
        calibration: Where ranges come from.
        flavor: The TensorRT.
        model: What is to be built.

    Returns:
        The route.

    Raises:
        UnsupportedError: What was asked for contradicts the model, the TensorRT or the calibration.
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


def is_calibrator(calibration: Any, flavor: Flavor) -> bool:
    """Whether a calibration is a calibrator, ours or any of TensorRT's interface."""
    if isinstance(calibration, Calibrator):
        return True
    return flavor.implicit_int8 and isinstance(calibration, flavor.module.IInt8Calibrator)
