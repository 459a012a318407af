"""Optimization profiles in TensorRT's own form."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from calibrators.display.counts import counted
from calibrators.errors import Argument, BuildError
from trtint8.engine.profiles import Profile, ShapeRange


def check_shape_values(network: Any, values: Mapping[str, ShapeRange]) -> None:
    """Refuses values for inputs that decide no shapes.

    Args:
        network: The parsed ``INetworkDefinition``.
        values: Input name to its values in the optimization profiles.

    Raises:
        BuildError: The network has no such input, or it decides no shapes or has another number of elements,
            or min <= opt <= max does not hold.
    """
    inputs = {tensor.name: tensor for tensor in map(network.get_input, range(network.num_inputs))}
    for name, given in values.items():
        if name not in inputs or not inputs[name].is_shape_tensor:
            found = [name for name, tensor in inputs.items() if tensor.is_shape_tensor]
            raise BuildError(
                f"{Argument('shape_values')} has '{name}', which is no input that decides shapes; the "
                f"network has {', '.join(map(repr, found)) or 'none'}"
            )
        count = math.prod(inputs[name].shape)
        if {len(given.min), len(given.opt), len(given.max)} != {count}:
            raise BuildError(
                f"input '{name}' has {counted(count, 'element')}, and {Argument('shape_values')} {given}; "
                "give as many of each"
            )
        if any(
            not low <= best <= high for low, best, high in zip(given.min, given.opt, given.max, strict=True)
        ):
            raise BuildError(
                f"{Argument('shape_values')} of input '{name}' is {given}; values must grow from min over "
                "opt to max"
            )


def add_profile(builder: Any, config: Any, shapes: Profile, values: Mapping[str, ShapeRange]) -> None:
    """Adds an optimization profile to a builder's configuration; see :func:`new_profile`.

    Raises:
        BuildError: TensorRT refuses it.
    """
    if config.add_optimization_profile(new_profile(builder, shapes, values)) < 0:
        raise BuildError(
            f"TensorRT refuses the optimization profile {format_shapes({**shapes, **values})}; give other "
            "shapes"
        )


def new_profile(builder: Any, shapes: Profile, values: Mapping[str, ShapeRange]) -> Any:
    """Makes an optimization profile.

    Args:
        builder: The ``Builder``.
        shapes: Input name to its shapes.
        values: Name of an input that decides shapes to its values.

    Returns:
        An ``IOptimizationProfile``.
    """
    profile = builder.create_optimization_profile()
    for name, sizes in shapes.items():
        profile.set_shape(name, sizes.min, sizes.opt, sizes.max)
    for name, sizes in values.items():
        profile.set_shape_input(name, sizes.min, sizes.opt, sizes.max)
    return profile


def format_shapes(shapes: Profile) -> str:
    """The shapes in words, for a message."""
    return ", ".join(f"{name}={sizes}" for name, sizes in shapes.items())
