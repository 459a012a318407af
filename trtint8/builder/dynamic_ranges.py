"""Dynamic ranges of a TensorRT network: which tensors need one, and which ranges follow from others."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import onnx_ir as ir

from calibrators.data.feeds import Array
from calibrators.errors import BuildError, TableError, counted, such_as
from calibrators.operators import Values, operator_of
from calibrators.records import Result
from trtint8.models.graph import read_constant

#: Element types of tensors that have a range: floats, and the INT8 that inputs and outputs may be.
RANGED = frozenset({"FLOAT", "HALF", "BF16", "INT8"})

#: Types of layers to the class and the property that tell more of them.
OWN_PROPERTIES = {
    "ACTIVATION": ("IActivationLayer", "type"),
    "CONSTANT": ("IConstantLayer", "weights"),
    "ELEMENTWISE": ("IElementWiseLayer", "op"),
    "REDUCE": ("IReduceLayer", "op"),
    "RESIZE": ("IResizeLayer", "resize_mode"),
}

# Layers whose output holds the values of the input in another order: ranges pass in both directions.
_MOVING = frozenset({"SHUFFLE", "IDENTITY", "CAST", "SQUEEZE", "UNSQUEEZE", "REVERSE_SEQUENCE"})
# An activation that keeps what is positive and drops the rest. Ranges pass backward to a tensor that nothing
# else reads: what the range cuts off there is dropped anyway.
_RELU = "RELU"
# Layers whose output is never larger than the inputs: ranges pass forward. AVG is that of REDUCE, and NEAREST
# and LINEAR are those of RESIZE.
_NOT_GROWING = frozenset(
    {
        *("SLICE", "GATHER", "CONCATENATION", "POOLING", "PADDING", "SELECT", "TOPK", "SCATTER"),
        *("AVG", "NEAREST", "LINEAR", "CONDITIONAL_INPUT", "CONDITIONAL_OUTPUT", "ITERATOR", "LOOP_OUTPUT"),
    }
)
# Sums: what is added is the result less the other. A Gemm is parsed into a product, which has no name in the
# model and so no range, and the sum with its bias; TensorRT fuses both into one kernel.
_SUM = "SUM"
# Layers whose output is bounded for every input, with the bound.
_BOUNDED = {"SOFTMAX": 1.0, "SIGMOID": 1.0, "TANH": 1.0}

# An input this many times narrower than another one would be all zeros in the range of both.
_VANISHES = 254

#: What a range can be: TensorRT takes it as a float32, and so is its scale.
_SMALLEST = 127 * float(np.finfo(np.float32).smallest_subnormal)
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class NetworkLayer:
    """A layer's tensors that have ranges.

    Attributes:
        name: The layer's name.
        kind: TensorRT's ``LayerType``, like "SHUFFLE"; for an activation its ``ActivationType``, like "RELU",
            for element-wise layers and reductions the operation, like "SUM", and for a resize its mode.
        inputs: Names of the tensors that the layer reads.
        outputs: Names of the tensors that the layer writes.
        constant_amax: The largest magnitude of a constant; None for other layers, and for constants that are
            no floats or not finite.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constant_amax: float | None = None


@dataclass(frozen=True)
class NetworkTensors:
    """The tensors of a network that have ranges; shapes and indices are left out.

    Attributes:
        inputs: Names of the network's inputs.
        outputs: Names of the network's outputs.
        layers: Every layer that reads or writes such a tensor, in the network's order.
        int8: Names of the tensors that are INT8 already, which inputs and outputs may be.
    """

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    layers: tuple[NetworkLayer, ...] = ()
    int8: frozenset[str] = field(default_factory=frozenset)

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of all tensors."""
        return frozenset(self.inputs).union(*((*layer.inputs, *layer.outputs) for layer in self.layers))

    @cached_property
    def readers(self) -> Mapping[str, Sequence[NetworkLayer]]:
        """Tensor name to the layers that read it."""
        readers: dict[str, list[NetworkLayer]] = {}
        for layer in self.layers:
            for name in dict.fromkeys(layer.inputs):
                readers.setdefault(name, []).append(layer)
        return readers

    @cached_property
    def products(self) -> frozenset[str]:
        """The names of matrix products."""
        return frozenset(layer.outputs[0] for layer in self.layers if layer.kind == "MATRIX_MULTIPLY")

    def read_by_relu_alone(self, name: str) -> bool:
        """True if nothing but ReLU reads a tensor."""
        return name not in self.outputs and all(layer.kind == _RELU for layer in self.readers[name])


@dataclass(frozen=True)
class MissingRange(Result):
    """A tensor without a dynamic range. The layers around it do not run in INT8.

    Attributes:
        tensor: The name of the tensor.
        layer: The name of the layer that writes the tensor; "input" for the network's inputs.
    """

    tensor: str
    layer: str


@dataclass(frozen=True, repr=False)
class SetRanges(Result):
    """The dynamic ranges that were set in a network, and those that are missing.

    Attributes:
        given: Tensor name to amax, of the ranges that were given.
        followed: Tensor name to amax, of the ranges that follow from these: of tensors with the values of
            others, like the output of a Shuffle, of constants, and of outputs of bounded functions.
        missing: The tensors without a range, each with the layer that writes it. Tensors that only float
            layers write and read need no range.
        unused: Names with a range that are not names of tensors in the network.
    """

    given: Mapping[str, float]
    followed: Mapping[str, float]
    missing: tuple[MissingRange, ...]
    unused: tuple[str, ...]

    def __repr__(self) -> str:
        counts = (len(self.given), "given"), (len(self.followed), "followed"), (len(self.missing), "missing")
        return f"<SetRanges: {', '.join(f'{count} {what}' for count, what in counts)}>"


def read_network(trt: Any, network: Any) -> NetworkTensors:
    """Reads the tensors of a network that have ranges.

    Args:
        trt: The TensorRT module.
        network: An ``INetworkDefinition``.
    """
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    outputs = [network.get_output(index) for index in range(network.num_outputs)]
    layers = []
    for layer in layers_of(network):
        reads = _ranged_names(map(layer.get_input, range(layer.num_inputs)))
        writes = _ranged_names(map(layer.get_output, range(layer.num_outputs)))
        if not (reads or writes):
            continue
        name, kind, constant = layer.name, layer_type(trt, layer), None
        if kind in OWN_PROPERTIES:
            value = _own_property(trt, layer, *OWN_PROPERTIES[kind])
            if kind == "CONSTANT":
                constant = _constant_amax(value)
            else:
                kind = value.name
        layers.append(NetworkLayer(name, kind, reads, writes, constant))
    int8 = (tensor.name for tensor in (*inputs, *outputs) if tensor.dtype.name == "INT8")
    return NetworkTensors(_ranged_names(inputs), _ranged_names(outputs), tuple(layers), frozenset(int8))


def model_tensors(graph_model: ir.Model, ranged: Collection[str]) -> NetworkTensors:
    """The tensors of a model as those of the network that TensorRT's parser makes of it.

    Args:
        graph_model: A prepared float model.
        ranged: Names of the tensors that have ranges.
    """
    wanted = set(ranged)
    layers = []
    for node in graph_model.graph:
        inputs = [value.name or "" for value in node.inputs if value is not None and value.name in wanted]
        outputs = [value.name or "" for value in node.outputs if value.name in wanted]
        kind = _kind_of(node)
        for value in node.inputs if kind == _SUM else ():
            constant = read_constant(value)
            if value is not None and constant is not None and (amax := _constant_amax(constant)) is not None:
                inputs.append(value.name or "")
                layers.append(NetworkLayer(value.name or "", "CONSTANT", (), (value.name or "",), amax))
        layers.append(NetworkLayer(node.name or "", kind, tuple(inputs), tuple(outputs)))
    inputs = [value.name or "" for value in graph_model.graph.inputs if value.name in wanted]
    outputs = [value.name or "" for value in graph_model.graph.outputs if value.name in wanted]
    return NetworkTensors(tuple(inputs), tuple(outputs), tuple(layers))


def _kind_of(node: ir.Node) -> str:
    """The kind of layer that TensorRT makes of a node, or through which ranges pass as through the node."""
    values = operator_of(node).values
    if values <= Values.REORDERED:
        return "SHUFFLE"
    if values < Values.COMPUTED:
        return "SLICE"
    if node.op_type == "Add":
        return _SUM
    return "MATRIX_MULTIPLY" if node.op_type == "MatMul" else node.op_type.upper()


def check_ranges(tensors: NetworkTensors, ranges: Mapping[str, float], manual: Collection[str] = ()) -> None:
    """Refuses ranges that are not those of a network.

    Args:
        tensors: The network's tensors.
        ranges: Tensor name to amax.
        manual: Names of the tensors whose range was set by hand; each must be in the network.

    Raises:
        BuildError: A range that was set by hand belongs to no tensor of the network, or none of the ranges
            does.
        TableError: A range is so large or so small that it is no float32.
    """
    unknown = sorted(set(manual) - tensors.names, key=str)
    if unknown:
        examples = (*tensors.inputs[:1], *(tensors.layers[-1].outputs[:1] if tensors.layers else ()))
        raise BuildError(
            f"a dynamic range is given for '{unknown[0]}', which is no floating-point tensor of the network; "
            f"it has {such_as(examples)}"
        )
    if ranges and tensors.names.isdisjoint(ranges):
        raise BuildError(
            f"none of the {counted(len(ranges), 'tensor')} with a range is in the network, "
            f"'{next(iter(ranges))}' for example; give ranges of this model"
        )
    for name, amax in ranges.items():
        if name in tensors.names and amax and not _SMALLEST <= amax <= _LARGEST:
            raise TableError(
                f"the dynamic range of '{name}' is {amax:g}, which is too {'small' if amax < 1 else 'large'} "
                "for a float32; give another one"
            )


def set_ranges(
    network: Any, tensors: NetworkTensors, ranges: Mapping[str, float], in_float: Set[str] = frozenset()
) -> SetRanges:
    """Sets the ranges of a network's tensors, and those that follow from them.

    Args:
        network: An ``INetworkDefinition`` of TensorRT 8.5 to 10.x.
        tensors: The network's tensors.
        ranges: Tensor name to amax, checked by :func:`check_ranges`. A range of 0 is that of a tensor of
            which nothing is known, and is not set.
        in_float: Names of the layers that have to stay in float.

    Returns:
        What was set, and what is missing.

    Raises:
        BuildError: TensorRT refuses a range.
    """
    given = {name: amax for name, amax in ranges.items() if name in tensors.names and amax > 0}
    known = propagate(tensors, given)
    for tensor in _tensors(network):
        amax = known.get(tensor.name)
        if amax is not None and not tensor.set_dynamic_range(-amax, amax):
            raise BuildError(f"TensorRT refuses the dynamic range {amax:g} of tensor '{tensor.name}'")
    return SetRanges(
        given,
        {name: amax for name, amax in known.items() if name not in given},
        missing_ranges(tensors, known, in_float),
        tuple(name for name in ranges if name not in tensors.names),
    )


def propagate(tensors: NetworkTensors, ranges: Mapping[str, float]) -> dict[str, float]:
    """Adds the ranges that follow from known ones.

    Args:
        tensors: The network's tensors.
        ranges: Tensor name to amax, which is positive.

    Returns:
        ``ranges`` and the ranges of constants, of bounded functions, of tensors that are copies or parts of
        tensors with known ranges, and of products to which a constant is added.
    """
    known = dict(ranges)
    before = -1
    while before != len(known):
        before = len(known)
        for layer in tensors.layers:
            amax = _output_amax(layer, known)
            for name in layer.outputs if amax is not None else ():
                known.setdefault(name, amax or 0.0)
        for layer in reversed(tensors.layers):
            for name, amax in _input_amaxes(layer, known, tensors).items():
                known.setdefault(name, amax)
    # Zeros are constants and copies of constants, which are exact in any range.
    return {name: amax or 1.0 for name, amax in known.items() if not amax or _SMALLEST <= amax <= _LARGEST}


def missing_ranges(
    tensors: NetworkTensors, ranges: Mapping[str, float], in_float: Set[str] = frozenset()
) -> tuple[MissingRange, ...]:
    """The tensors that have no range, with the layers that write them.

    Args:
        tensors: The network's tensors.
        ranges: Tensor name to amax.
        in_float: Names of the layers that have to stay in float. A tensor that no other layer writes or reads
            needs no range.
    """

    def stays_float(name: str, makers: Set[str]) -> bool:
        around = makers | {layer.name for layer in tensors.readers.get(name, ())}
        return bool(around) and around <= in_float and name not in tensors.int8

    found = [MissingRange(name, "input") for name in tensors.inputs if not stays_float(name, frozenset())]
    for layer in tensors.layers:
        # Constants have no precision of their own.
        makers = frozenset({layer.name} if layer.kind != "CONSTANT" else ())
        found += [MissingRange(name, layer.name) for name in layer.outputs if not stays_float(name, makers)]
    return tuple(missing for missing in found if missing.tensor not in ranges)


def layers_of(network: Any) -> Iterator[Any]:
    """The layers of an ``INetworkDefinition``, in its order."""
    return map(network.get_layer, range(network.num_layers))


def layer_type(trt: Any, layer: Any) -> str:
    """The name of a layer's ``LayerType``.

    Args:
        trt: The TensorRT module.
        layer: A layer, of its own class or as an ``ILayer``.
    """
    name: str = _own_property(trt, layer, "ILayer", "type").name
    return name


def weights_array(weights: Any) -> Array:
    """The values of a constant, flat.

    Args:
        weights: The constant's values as ``IConstantLayer.weights`` returns them.
    """
    array = np.asarray(weights)
    if array.size > 1 and not any(array.strides):
        # The bindings of 8.6 lose the strides under NumPy 2: every element would be the first one.
        array = np.lib.stride_tricks.as_strided(array, strides=(array.itemsize,))
    return array


def _output_amax(layer: NetworkLayer, known: Mapping[str, float]) -> float | None:
    if layer.constant_amax is not None:
        return layer.constant_amax
    if layer.kind in _BOUNDED:
        return _BOUNDED[layer.kind]
    passes = layer.kind in _MOVING | _NOT_GROWING or layer.kind == _RELU
    if not (passes and layer.inputs and all(name in known for name in layer.inputs)):
        return None
    amaxes = [known[name] for name in layer.inputs]
    widest = max(amaxes)
    # A mask of -1e9 beside scores, for example: no range is right for both.
    return None if any(0 < amax * _VANISHES < widest for amax in amaxes) else widest


def _input_amaxes(
    layer: NetworkLayer, known: Mapping[str, float], tensors: NetworkTensors
) -> dict[str, float]:
    """The ranges of a layer's inputs that follow from that of its output."""
    if len(layer.outputs) != 1 or layer.outputs[0] not in known:
        return {}
    amax = known[layer.outputs[0]]
    if len(layer.inputs) == 1:
        (name,) = layer.inputs
        follows = layer.kind in _MOVING or (layer.kind == _RELU and tensors.read_by_relu_alone(name))
        return {name: amax} if follows else {}
    if layer.kind == _SUM and len(layer.inputs) == 2:
        pairs = (layer.inputs, layer.inputs[::-1])
        return {
            first: amax + known[other]
            for first, other in pairs
            if first in tensors.products and other in known
        }
    return {}


def _constant_amax(weights: Any) -> float | None:
    array = weights_array(weights)
    # The bindings have no array for BF16.
    amax = float(np.abs(array).max(initial=0.0)) if array.dtype.kind == "f" else np.inf
    return amax if np.isfinite(amax) else None


def _own_property(trt: Any, layer: Any, owner: str, name: str) -> Any:
    with _viewed_as(getattr(trt, owner), layer):
        return getattr(layer, name)


@contextlib.contextmanager
def _viewed_as(owner: type, layer: Any) -> Iterator[None]:
    # ``get_layer`` returns every layer as an ILayer, which lacks the properties of the layer's own class; and
    # an object that the user holds, whose class is the user's.
    before = layer.__class__
    layer.__class__ = owner
    try:
        yield
    finally:
        layer.__class__ = before


def _tensors(network: Any) -> Iterator[Any]:
    yield from map(network.get_input, range(network.num_inputs))
    for layer in layers_of(network):
        yield from map(layer.get_output, range(layer.num_outputs))


def _ranged_names(tensors: Iterable[Any]) -> tuple[str, ...]:
    # An optional input that was left out is None.
    return tuple(tensor.name for tensor in tensors if tensor is not None and tensor.dtype.name in RANGED)
