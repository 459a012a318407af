"""Dynamic ranges of a TensorRT network: which tensors need one, and which ranges follow from others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators.errors import BuildError

# Layers whose output holds the values of the input in another order: ranges pass in both directions.
_MOVING = frozenset({"SHUFFLE", "IDENTITY", "SQUEEZE", "UNSQUEEZE"})
# Layers that are fused into the layer before, whose output is then never stored: it may have any range.
_FUSED = frozenset({"RELU"})
# Layers whose output is never larger than the inputs: ranges pass forward.
_NOT_GROWING = frozenset({"SLICE", "GATHER", "CONCATENATION", "POOLING", "PADDING", "SELECT"})
# Sums: what is added is the result less the other. A Gemm is parsed into a product, which has no name in the
# model and so no range, and the sum with its bias; TensorRT fuses both into one kernel.
_SUM = "SUM"
# Layers whose output is bounded for every input, with the bound.
_BOUNDED = {"SOFTMAX": 1.0, "SIGMOID": 1.0, "TANH": 1.0}


@dataclass(frozen=True)
class NetworkLayer:
    """A layer's floating-point tensors.

    Attributes:
        name: The layer's name.
        kind: TensorRT's ``LayerType``, like "SHUFFLE"; for an activation its ``ActivationType``, like "RELU",
            and for an element-wise layer its ``ElementWiseOperation``, like "SUM".
        inputs: Names of the floating-point tensors that the layer reads.
        outputs: Names of the floating-point tensors that the layer writes.
        constant_amax: The largest magnitude of a constant; None for other layers.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constant_amax: float | None = None


@dataclass(frozen=True)
class MissingRange:
    """A tensor without a dynamic range, around which nothing runs in INT8.

    Attributes:
        tensor: The name of the tensor.
        layer: The name of the layer that writes the tensor; "input" for the network's inputs.
    """

    tensor: str
    layer: str


def read_layers(trt: Any, network: Any) -> tuple[NetworkLayer, ...]:
    """Reads the layers of a parsed network.

    Args:
        trt: The TensorRT module.
        network: An ``INetworkDefinition``.

    Returns:
        Every layer that reads or writes floating-point tensors, in the network's order.
    """
    layers = []
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        inputs = _float_names(trt, map(layer.get_input, range(layer.num_inputs)))
        outputs = _float_names(trt, map(layer.get_output, range(layer.num_outputs)))
        if inputs or outputs:
            name, kind, constant = layer.name, layer.type.name, None
            if kind == "CONSTANT" and outputs:
                constant = _constant_amax(trt, layer)
            elif kind == "ACTIVATION":
                kind = _activation_type(trt, layer)
            elif kind == "ELEMENTWISE":
                kind = _operation(trt, layer)
            layers.append(NetworkLayer(name, kind, inputs, outputs, constant))
    return tuple(layers)


def input_names(trt: Any, network: Any) -> tuple[str, ...]:
    """Names of the network's floating-point inputs."""
    return _float_names(trt, map(network.get_input, range(network.num_inputs)))


def propagate(layers: Sequence[NetworkLayer], ranges: Mapping[str, float]) -> dict[str, float]:
    """Adds the ranges that follow from known ones.

    Args:
        layers: The network's layers, in the network's order.
        ranges: Tensor name to amax.

    Returns:
        ``ranges`` and the ranges of constants, of bounded functions, of tensors that are copies or parts of
        tensors with known ranges, and of products to which a constant is added.
    """
    known = dict(ranges)
    products = {layer.outputs[0] for layer in layers if layer.kind == "MATRIX_MULTIPLY"}
    before = -1
    while before != len(known):
        before = len(known)
        for layer in layers:
            amax = _output_amax(layer, known)
            for name in layer.outputs if amax is not None else ():
                known.setdefault(name, amax or 0.0)
        for layer in reversed(layers):
            for name, amax in _input_amaxes(layer, known, products).items():
                known.setdefault(name, amax)
    return {name: amax for name, amax in known.items() if amax > 0}


def missing_ranges(
    layers: Iterable[NetworkLayer], inputs: Iterable[str], ranges: Mapping[str, float]
) -> tuple[MissingRange, ...]:
    """The tensors that have no range, with the layers that write them."""
    written = [("input", inputs), *((layer.name, layer.outputs) for layer in layers)]
    return tuple(
        MissingRange(name, layer) for layer, names in written for name in names if name not in ranges
    )


def unknown_names(layers: Iterable[NetworkLayer], inputs: Iterable[str], names: Iterable[str]) -> list[str]:
    """Those of ``names`` that are no floating-point tensors of the network."""
    present = {*inputs, *(name for layer in layers for name in (*layer.inputs, *layer.outputs))}
    return [name for name in names if name not in present]


def set_ranges(network: Any, ranges: Mapping[str, float]) -> None:
    """Sets the dynamic range of every tensor of the network that has one.

    Args:
        network: An ``INetworkDefinition`` of TensorRT 8.5 to 10.x.
        ranges: Tensor name to amax.

    Raises:
        BuildError: TensorRT refuses a range.
    """
    tensors = [network.get_input(index) for index in range(network.num_inputs)]
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        tensors += [layer.get_output(output) for output in range(layer.num_outputs)]
    for tensor in tensors:
        amax = ranges.get(tensor.name)
        if amax is not None and not tensor.set_dynamic_range(-amax, amax):
            raise BuildError(f"TensorRT refuses the dynamic range {amax:g} of tensor '{tensor.name}'")


def _output_amax(layer: NetworkLayer, known: Mapping[str, float]) -> float | None:
    if layer.constant_amax is not None:
        return layer.constant_amax
    if layer.kind in _BOUNDED:
        return _BOUNDED[layer.kind]
    if (
        layer.kind in _MOVING | _FUSED | _NOT_GROWING
        and layer.inputs
        and all(name in known for name in layer.inputs)
    ):
        return max(known[name] for name in layer.inputs)
    return None


def _input_amaxes(layer: NetworkLayer, known: Mapping[str, float], products: Set[str]) -> dict[str, float]:
    """The ranges of a layer's inputs that follow from that of its output."""
    if len(layer.outputs) != 1 or layer.outputs[0] not in known:
        return {}
    amax = known[layer.outputs[0]]
    if layer.kind in _MOVING | _FUSED and len(layer.inputs) == 1:
        return {layer.inputs[0]: amax}
    if layer.kind == _SUM and len(layer.inputs) == 2:
        pairs = (layer.inputs, layer.inputs[::-1])
        return {first: amax + known[other] for first, other in pairs if first in products and other in known}
    return {}


def _constant_amax(trt: Any, layer: Any) -> float:
    # ``get_layer`` returns every layer as an ILayer, which lacks the properties of the layer's own class.
    layer.__class__ = trt.IConstantLayer
    return float(np.abs(weights_array(layer.weights)).max(initial=0.0))


def weights_array(weights: Any) -> NDArray[Any]:
    """The values of a constant, flat.

    Args:
        weights: The constant's values as ``IConstantLayer.weights`` returns them.
    """
    array = np.asarray(weights)
    if array.size > 1 and not any(array.strides):
        # The bindings of 8.6 lose the strides under NumPy 2: every element would be the first one.
        array = np.lib.stride_tricks.as_strided(array, strides=(array.itemsize,))
    return array


def _activation_type(trt: Any, layer: Any) -> str:
    layer.__class__ = trt.IActivationLayer
    name: str = layer.type.name
    return name


def _operation(trt: Any, layer: Any) -> str:
    layer.__class__ = trt.IElementWiseLayer
    name: str = layer.op.name
    return name


def _float_names(trt: Any, tensors: Iterable[Any]) -> tuple[str, ...]:
    # An optional input that was left out is None.
    floats = (trt.DataType.FLOAT, trt.DataType.HALF)
    return tuple(tensor.name for tensor in tensors if tensor is not None and tensor.dtype in floats)
