"""The inputs and outputs of an engine, its optimization profile for a feed, and engines that others built."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from calibrators.checks import FilePath, several
from calibrators.data.inputs import shape_text
from calibrators.errors import Argument, CalibrationDataError, UnsupportedError
from calibrators.tensorrt.flavor import numpy_dtype
from trtint8.engine.file import TensorSpec
from trtint8.engine.profiles import Profile, Shape, ShapeRange


@dataclass(frozen=True)
class Bindings:
    """The inputs and outputs of an engine.

    Attributes:
        inputs: The inputs; dynamic dimensions are None.
        outputs: The outputs; dynamic dimensions are None.
        host_inputs: Names of the inputs that TensorRT reads on the host, most of which are shapes.
        profiles: Input name to accepted shapes, for every optimization profile; empty where all inputs are
            static.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    host_inputs: frozenset[str]
    profiles: tuple[Profile, ...]


def read_bindings(trt: Any, engine: Any) -> Bindings:
    """Asks an engine for its inputs and outputs.

    Args:
        trt: The TensorRT module.
        engine: An ``ICudaEngine``.

    Raises:
        UnsupportedError: A tensor has a type that NumPy lacks, is not linear, or is an output on the host.
    """
    inputs: list[TensorSpec] = []
    outputs: list[TensorSpec] = []
    on_host: set[str] = set()
    for index in range(engine.num_io_tensors):
        name = engine.get_tensor_name(index)
        if engine.get_tensor_format(name) != trt.TensorFormat.LINEAR:
            raise UnsupportedError(
                f"tensor '{name}' of the engine has the format {engine.get_tensor_format_desc(name)}, and "
                f"only linear ones can be fed; build the engine without "
                f"{Argument('io_formats', '', 'build_int8_engine')}"
            )
        dtype = numpy_dtype(trt, engine.get_tensor_dtype(name))
        if dtype is None:
            raise UnsupportedError(
                f"tensor '{name}' is {engine.get_tensor_dtype(name).name} in the engine, which NumPy has no "
                "type for; build the engine with FP32 or FP16 inputs and outputs"
            )
        shape = tuple(dim if dim >= 0 else None for dim in engine.get_tensor_shape(name))
        is_input = engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT
        (inputs if is_input else outputs).append(TensorSpec(name, dtype.name, shape))
        if engine.get_tensor_location(name) == trt.TensorLocation.HOST:
            if not is_input:
                raise UnsupportedError(
                    f"output '{name}' of the engine is written on the host, which is not supported; leave it "
                    "out of the model's outputs"
                )
            on_host.add(name)
    dynamic = [spec.name for spec in inputs if None in spec.shape and spec.name not in on_host]
    profiles = tuple(
        {name: ShapeRange(*map(tuple, engine.get_tensor_profile_shape(name, index))) for name in dynamic}
        for index in range(engine.num_optimization_profiles)
    )
    return Bindings(tuple(inputs), tuple(outputs), frozenset(on_host), profiles if dynamic else ())


def choose_profile(shapes: Mapping[str, Shape], profiles: Sequence[Profile], active: int) -> int:
    """Chooses the profile for a feed.

    Args:
        shapes: Input name to its shape in the feed.
        profiles: Input name to accepted shapes, for every profile; inputs that a profile leaves out are
            static.
        active: Index of the profile in use; it is kept where it fits as well as any other, because switching
            takes time.

    Returns:
        The index of the fitting profile whose optimal shapes are nearest.

    Raises:
        CalibrationDataError: No profile accepts these shapes; the message lists the shapes that each accepts.
    """
    fitting = [index for index, profile in enumerate(profiles) if _fits(shapes, profile)]
    if not fitting:
        raise CalibrationDataError(_refusal(shapes, profiles))
    return min(fitting, key=lambda index: (_distance(shapes, profiles[index]), index != active))


def _fits(shapes: Mapping[str, Shape], profile: Profile) -> bool:
    return all(
        len(sizes.min) == len(shapes[name])
        and all(
            low <= size <= high for low, size, high in zip(sizes.min, shapes[name], sizes.max, strict=True)
        )
        for name, sizes in profile.items()
    )


def _distance(shapes: Mapping[str, Shape], profile: Profile) -> float:
    """How far the numbers of elements are from those of the optimal shapes, in factors of two."""
    return sum(
        abs(math.log2(max(1, math.prod(shapes[name])) / max(1, math.prod(sizes.opt))))
        for name, sizes in profile.items()
    )


def _refusal(shapes: Mapping[str, Shape], profiles: Sequence[Profile]) -> str:
    accepted = " or ".join(
        ", ".join(
            f"'{name}' {shape_text(sizes.min)} to {shape_text(sizes.max)}" for name, sizes in profile.items()
        )
        for profile in profiles
    )
    named = {name for profile in profiles for name in profile}
    given = ", ".join(f"'{name}' {shape_text(shape)}" for name, shape in shapes.items() if name in named)
    return (
        f"the engine takes {accepted}, and the data has {given}; change the batch size or build with other "
        "profiles"
    )


@dataclass(frozen=True)
class LoadingOptions:
    """How engines are loaded; see :meth:`trtint8.runtime.engine.Engine.load`.

    Attributes:
        allow_host_code: Whether code that an engine contains may run.
        plugins: Paths of shared libraries with the plugins that engines use.
    """

    allow_host_code: bool = False
    plugins: Sequence[FilePath] = ()

    def __post_init__(self) -> None:
        # A single path by itself is one, not its letters.
        object.__setattr__(self, "plugins", tuple(several(self.plugins)))


#: Engines that contain code are refused, and no plugins are loaded.
NO_CODE = LoadingOptions()
