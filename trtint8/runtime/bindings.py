"""The inputs and outputs of an engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from calibrators.errors import Argument, UnsupportedError
from calibrators.tensorrt.data_types import numpy_dtype
from trtint8.engine.file import TensorSpec
from trtint8.engine.profiles import Profile, ShapeRange


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
                f"only linear ones can be fed; build the engine without {Argument('io_formats')}"
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
