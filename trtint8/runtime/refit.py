"""Replaces the weights of an engine that was built with ``refit=True``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from calibrators.checks import check_mapping
from calibrators.data.feeds import Array, NamedArrays
from calibrators.errors import Argument, EngineError, enumerated, such_as
from calibrators.tensorrt.flavor import DTYPES, Flavor, tensorrt_dtype
from calibrators.tensorrt.messages import collected, shared_logger
from trtint8.runtime.engine import Engine


def refit(engine: Engine, weights: NamedArrays) -> None:
    """Replaces weights of an engine. Its contexts use the new weights from their next run on.

    The scales of Q/DQ pairs are weights like all others. TensorRT merges quantizers that have equal scales,
    so scales that the placement made equal (the sidecar lists them) must stay equal.

    Args:
        engine: A refittable engine. No inference may be running.
        weights: Name of the initializer in the ONNX model to its new values, of the same shape and dtype.

    Raises:
        EngineError: The arguments are not an engine and a dict of arrays; the engine is not refittable, lacks
            a weight, or TensorRT refuses the new weights; a weight has a dtype that TensorRT lacks; or the
            new scales of a group differ. If TensorRT fails during the refit, some weights may have been
            replaced already.

    Examples:
        >>> with trtint8.Engine.load("model.engine") as engine:  # built with BuildOptions(refit=True)
        ...     trtint8.refit(engine, {"fc.bias": np.zeros(10, np.float32)})
    """
    if not isinstance(engine, Engine):
        raise EngineError(f"the engine is given as {type(engine).__name__}; give what Engine.load returns")
    check_mapping("weights", weights, "from the name of an initializer to its new values", EngineError)
    check_dtypes(weights)
    check_shared_scales(weights, engine.info.shared_scales if engine.info else ())
    if not engine.raw.refittable:
        raise EngineError(
            f"the engine is not refittable; build it with {Argument('refit', 'True', 'build_int8_engine')}"
        )
    trt = engine.flavor.module
    with engine.device.active(), collected(trt) as log:
        refitter = trt.Refitter(engine.raw, shared_logger(trt))
        known = set(refitter.get_all_weights())
        unknown = [name for name in weights if name not in known]
        if unknown:
            raise EngineError(
                f"the engine has no weights '{unknown[0]}' to replace; it has {such_as(sorted(known))}"
            )
        # TensorRT reads the arrays only when it refits.
        kept = {name: np.require(values, requirements="C") for name, values in weights.items()}
        for name, values in kept.items():
            if not refitter.set_named_weights(name, as_weights(engine.flavor, name, values)):
                raise EngineError(f"TensorRT refuses the new weights '{name}': {log.reason()}")
        missing = refitter.get_missing_weights()
        if missing:
            raise EngineError(
                f"TensorRT also needs {enumerated(map(repr, missing))}, which depend on the new "
                "weights; give them too"
            )
        # Before the refit, because a refit that fails may have replaced some weights.
        engine.forget_graphs()
        if not refitter.refit_cuda_engine():
            raise EngineError(f"TensorRT cannot refit the engine: {log.reason()}")


def as_weights(flavor: Flavor, name: str, values: Array) -> Any:
    """TensorRT's ``Weights`` of an array, which must be kept for as long as TensorRT may read them.

    Args:
        flavor: The TensorRT that reads them.
        name: The weight's name.
        values: Its new values, C-contiguous.

    Raises:
        EngineError: This TensorRT has no weights of that dtype.
    """
    trt = flavor.module
    try:
        # The bindings know no NumPy types of kind V, BF16 and FP8.
        if values.dtype.kind == "V" and flavor.takes_weights_by_address:
            return trt.Weights(tensorrt_dtype(trt, values.dtype), values.ctypes.data, values.size)
        return trt.Weights(values)
    except (TypeError, ValueError) as error:
        raise EngineError(
            f"the new weights '{name}' are {values.dtype}, which {flavor} takes no weights of; convert them "
            "with astype to the type that they have in the engine"
        ) from error


def check_dtypes(weights: NamedArrays) -> None:
    """Refuses weights of a dtype that no TensorRT takes, like float64.

    Args:
        weights: Name of the weight to its new values.

    Raises:
        EngineError: A weight has such a dtype, or is no array; the message names the first one.
    """
    for name, values in weights.items():
        if not isinstance(values, np.ndarray):
            raise EngineError(f"the new weights '{name}' are given as {type(values).__name__}; give an array")
        if values.dtype.name not in DTYPES or not values.dtype.isnative:
            raise EngineError(
                f"the new weights '{name}' are {values.dtype}, and TensorRT takes {', '.join(DTYPES)}; "
                "convert them with astype"
            )


def check_shared_scales(weights: NamedArrays, shared_scales: Sequence[Sequence[str]]) -> None:
    """Refuses new scales that differ where the engine needs equal ones.

    Args:
        weights: Name of the weight to its new values.
        shared_scales: Groups of names of scales that must be equal.

    Raises:
        EngineError: The scales of a group differ, or some of them are missing from ``weights``; the message
            names them.
    """
    for group in shared_scales:
        given = [name for name in group if name in weights]
        missing = [name for name in group if name not in weights]
        if given and missing:
            raise EngineError(
                f"the scale '{given[0]}' is shared with {', '.join(map(repr, missing))}; give all of them "
                "the same new value"
            )
        different = [name for name in given if not np.array_equal(weights[name], weights[given[0]])]
        if different:
            raise EngineError(
                f"the scales '{given[0]}' and '{different[0]}' are shared and must stay equal; give both the "
                "same new value"
            )
