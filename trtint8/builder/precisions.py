"""Precisions of single layers, and types and formats of inputs and outputs, in a TensorRT network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from calibrators.errors import BuildError, UnsupportedError
from calibrators.tensorrt.data_types import numpy_dtype
from trtint8.builder.config import member, set_flag
from trtint8.builder.dynamic_ranges import RANGED, layer_type
from trtint8.builder.options import BuildOptions

_TYPES = {"fp32": "FLOAT", "fp16": "HALF", "bf16": "BF16", "int8": "INT8"}


def match_layers(names: Iterable[str], patterns: Mapping[str, str]) -> dict[str, str]:
    """Finds the value of each layer; a later pattern takes precedence over an earlier one.

    Args:
        names: The names of all layers.
        patterns: Layer name or pattern (``*``, ``?``) to value.

    Returns:
        Layer name to value, for the layers that any pattern matches.

    Raises:
        BuildError: A pattern matches no layer, or is no text.
    """
    names = list(names)
    matched: dict[str, str] = {}
    for pattern, value in patterns.items():
        if not isinstance(pattern, str):
            raise BuildError(
                f"the pattern {pattern!r:.80} is no text; give the name of a layer, or a pattern"
            )
        # TensorRT names layers like "(Unnamed Layer* 0) [Convolution]", and brackets stand for themselves.
        glob = pattern.replace("[", "[[]")
        hits = [name for name in names if name == pattern or fnmatchcase(name, glob)]
        if not hits:
            raise BuildError(
                f"the pattern '{pattern}' matches no layer of the network; it has for example "
                f"{', '.join(repr(name) for name in names[:3])}"
            )
        matched.update(dict.fromkeys(hits, value))
    return matched


def set_precisions(
    trt: Any, network: Any, config: Any, options: BuildOptions, kept: Mapping[str, str] | None = None
) -> frozenset[str]:
    """Sets the precisions and the output types of single layers.

    Args:
        trt: The TensorRT module, 8.5 to 10.x.
        network: An ``INetworkDefinition``.
        config: The ``IBuilderConfig`` of the build.
        options: The build options, with the patterns.
        kept: Layer name or pattern to the floating-point precision that the layer and its outputs must have,
            except outputs of the network; TensorRT has to obey it.

    Returns:
        Names of the layers that have to stay in float.

    Raises:
        BuildError: A pattern matches no layer. Nothing is set then.
        UnsupportedError: This TensorRT lacks a type or a flag. Nothing is set then.
    """
    # Layers that compute no floats have no precision to choose.
    layers = [layer for layer in _layers(network) if _computes_floats(trt, layer)]
    names = [layer.name for layer in layers]
    stay = match_layers(names, kept or {})
    precisions = {**match_layers(names, options.layer_precisions), **stay}
    outputs = {**match_layers(names, options.output_types), **stay}
    types = {kind: data_type(trt, kind) for kind in {*precisions.values(), *outputs.values()}}
    obeyed = options.precision_constraints == "obey" or bool(stay)
    if precisions or outputs:
        set_flag(trt, config, "OBEY_PRECISION_CONSTRAINTS", obeyed)
        set_flag(trt, config, "PREFER_PRECISION_CONSTRAINTS", not obeyed)
    for layer in layers:
        if layer.name in precisions:
            layer.precision = types[precisions[layer.name]]
        for index in range(layer.num_outputs if layer.name in outputs else 0):
            tensor = layer.get_output(index)
            # The type of an output of the network is the caller's; TensorRT converts what the layer computes.
            if layer.name not in stay or not tensor.is_network_output:
                layer.set_output_type(index, types[outputs[layer.name]])
    return frozenset(name for name, kind in precisions.items() if obeyed and kind != "int8")


def check_io_names(names: Iterable[str], options: BuildOptions) -> None:
    """Refuses types and formats of what is no input or output.

    Args:
        names: The names of all inputs and outputs.
        options: The build options, with types and formats by name.

    Raises:
        BuildError: The network has no input or output of a name.
    """
    known = list(names)
    for name in (*options.io_types, *options.io_formats):
        if name not in known:
            raise BuildError(
                f"'{name}' is no input or output of the network; it has {', '.join(map(repr, known))}"
            )


def set_io(trt: Any, network: Any, options: BuildOptions) -> None:
    """Sets the types and formats of inputs and outputs.

    Args:
        trt: The TensorRT module.
        network: An ``INetworkDefinition``.
        options: The build options, with types and formats by name.

    Raises:
        BuildError: The network has no input or output of a name.
        UnsupportedError: This TensorRT lacks a type or format.
    """
    tensors = {tensor.name: tensor for tensor in _io_tensors(network)}
    check_io_names(tensors, options)
    for name, kind in options.io_types.items():
        tensors[name].dtype = data_type(trt, kind)
    for name, formats in options.io_formats.items():
        tensors[name].allowed_formats = sum(
            1 << int(member(trt.TensorFormat, text, "format")) for text in dict.fromkeys(formats)
        )


def io_dtypes(trt: Any, network: Any) -> dict[str, np.dtype[Any]]:
    """The element types that an engine's inputs and outputs have, which are not always those of the model.

    Before version 10, TensorRT's parser makes INT64 inputs INT32, and every version makes DOUBLE inputs and
    outputs FLOAT.

    Args:
        trt: The TensorRT module.
        network: An ``INetworkDefinition``, as it is built.

    Returns:
        Input or output name to its element type, without those of a type that NumPy lacks.
    """
    dtypes = {tensor.name: numpy_dtype(trt, tensor.dtype) for tensor in _io_tensors(network)}
    return {name: dtype for name, dtype in dtypes.items() if dtype is not None}


def data_type(trt: Any, name: str) -> Any:
    """Finds a data type of TensorRT.

    Args:
        trt: The TensorRT module.
        name: "fp32", "fp16", "bf16" or "int8".

    Raises:
        UnsupportedError: The name is another one, or this TensorRT lacks the type.
    """
    member = _TYPES.get(name.lower())
    if member is None or member not in trt.DataType.__members__:
        raise UnsupportedError(f"there is no precision '{name}' here; use one of {', '.join(_TYPES)}")
    return trt.DataType.__members__[member]


def _io_tensors(network: Any) -> list[Any]:
    """The inputs and the outputs of a network."""
    inputs = map(network.get_input, range(network.num_inputs))
    return [*inputs, *map(network.get_output, range(network.num_outputs))]


def _layers(network: Any) -> Iterable[Any]:
    return map(network.get_layer, range(network.num_layers))


def _computes_floats(trt: Any, layer: Any) -> bool:
    if layer_type(trt, layer) in ("CONSTANT", "SHAPE"):
        return False
    return all(layer.get_output(index).dtype.name in RANGED for index in range(layer.num_outputs))
