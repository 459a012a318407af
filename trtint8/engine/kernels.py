"""What each kernel of an engine is for, and how many bytes it reads and writes.

A kernel computes INT8 or float products, requantizes, reformats, or is an attention. How many layers are in
which type says little: around an INT8 product, TensorRT for RTX runs kernels that read its float sums, add
the bias, and round to INT8 again. They are counted in FP32, and belong to INT8.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Literal, get_args

from calibrators.records import Count, Line
from trtint8.engine.layers import PRODUCTS, Dimensions, Layer, LayerReport

#: What a kernel is for. "requantization" also adds biases and computes activation functions, on the sums of
#: an INT8 product; "pointwise" is every other generated kernel.
Part = Literal[
    "INT8 compute",
    "float compute",
    "attention",
    "requantization",
    "reformat",
    "pooling",
    "pointwise",
    "other",
]

#: All parts, in the order in which they are shown.
PARTS: tuple[Part, ...] = get_args(Part)

#: Kinds of entries that order work between streams or compute shapes on the host.
_NO_KERNEL = frozenset({"signal", "wait", "shape_call", "noop"})

#: How a fused kernel with a product names it: "__myl_FcAdd", "__myl_CorrSilu".
_FUSED_PRODUCTS = frozenset({"Fc", "Corr", "Deco", "Gemm", "Conv", "Bmm"})

#: Kinds of kernels whose names list their operations: "__myl_MulAddReluMulMinMaxRounCast_myl0_3".
_GENERATED = frozenset({"kgen", "runtime_fusion", "runtime_function"})
_OPERATIONS = re.compile(r"^__myl_(?P<operations>[A-Za-z]+)")
_OPERATION = re.compile(r"[A-Z][a-z]*")

#: Operations that copy, convert or select values, in the names of generated kernels.
_MOVING = frozenset({"Cast", "Conc", "Copy", "Gath", "Move", "Pad", "Repl", "Resh", "Slic", "Tran"})

#: Operations of reductions and normalizations, in the names of generated kernels: these run without INT8 too.
_REDUCING = frozenset({"Argm", "Maxr", "Mean", "Minr", "Prod", "Sqrt", "Sum"})

_ROUNDING = "Roun"

#: Kinds of layers of other TensorRT versions, in lower case, that are point-wise.
_POINTWISE = frozenset({"pointwise", "pointwisev2", "elementwise", "activation", "scale", "unary"})
_QUANTIZING = frozenset({"quantize", "dequantize"})
_MOVING_KINDS = frozenset(
    {"reformat", "shuffle", "slice", "concat", "concatenation", "cast", "copy", "padding"}
)


def parts_of(report: LayerReport) -> tuple[Part | None, ...]:
    """What each layer of an engine is for.

    Args:
        report: The engine's layers.

    Returns:
        One part per layer, in the order of the report; None for an entry that runs no kernel.
    """
    products = [layer for layer in report.layers if _computes_product(layer) and layer.precision == "INT8"]
    int8_nodes = frozenset(node for layer in products for node in layer.onnx_nodes)
    return tuple(_part(layer, int8_nodes) for layer in report.layers)


def operations(layer: Layer) -> tuple[str, ...]:
    """The operations in the name of a generated kernel, like ``Mul``, ``Add``, ``Roun``; else empty."""
    match = _OPERATIONS.match(layer.name) if layer.kind in _GENERATED else None
    return tuple(_OPERATION.findall(match["operations"])) if match else ()


def moves_only(layer: Layer) -> bool:
    """Whether a layer only copies, converts or selects values."""
    done = operations(layer)
    return layer.kind.lower() in _MOVING_KINDS or (bool(done) and _MOVING.issuperset(done))


def _part(layer: Layer, int8_nodes: Set[str]) -> Part | None:
    kind, done = layer.kind.lower(), frozenset(operations(layer))
    part: Part = "other"
    if kind in _NO_KERNEL:
        return None
    if layer.attention:
        part = "attention"
    elif _computes_product(layer):
        part = "INT8 compute" if layer.precision == "INT8" else "float compute"
    elif _requantizes(layer, done, int8_nodes):
        part = "requantization"
    elif moves_only(layer):
        part = "reformat"
    elif "pool" in kind:
        part = "pooling"
    elif layer.kind in _GENERATED or kind in _POINTWISE:
        part = "pointwise"
    return part


def _computes_product(layer: Layer) -> bool:
    """Whether a kernel computes a convolution or a matrix product."""
    return layer.kind in PRODUCTS or (
        layer.kind == "runtime_fusion" and not _FUSED_PRODUCTS.isdisjoint(operations(layer))
    )


def _requantizes(layer: Layer, done: Set[str], int8_nodes: Set[str]) -> bool:
    """Whether a kernel takes values from the type of INT8 products to INT8 operands, or from one to float.

    A kernel with a reduction or a normalization is not counted: without INT8 there would be one, too.
    """
    kind = layer.kind.lower()
    if kind in _QUANTIZING or (kind in _POINTWISE and "Int8" in layer.outputs):
        return True
    if layer.kind not in _GENERATED or not done.isdisjoint(_REDUCING):
        return False
    if _ROUNDING in done and "Int8" in layer.outputs:
        return True
    # The sums of an INT8 product are scaled, and its bias is added, by a kernel of their own.
    return "Mul" in done and not int8_nodes.isdisjoint(layer.onnx_nodes)


#: Bytes per element of the datatypes, as the builder spells them.
_BYTES = {
    "Int8": 1,
    "UInt8": 1,
    "Uint8": 1,
    "FP8": 1,
    "Bool": 1,
    "Half": 2,
    "BFloat16": 2,
    "Float": 4,
    "Int32": 4,
    "Int64": 8,
}

#: The operation of a generated kernel that selects rows of a table.
_GATHER = "Gath"


@dataclass(frozen=True)
class Traffic:
    """What one kernel reads and writes per inference, or several together.

    Attributes:
        read: Bytes that are read, weights included.
        written: Bytes that are written.
    """

    read: Count
    written: Count

    @property
    def total(self) -> int:
        """Bytes that are read or written."""
        return self.read + self.written

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.read + other.read, self.written + other.written)


@dataclass(frozen=True)
class PartTotal:
    """All kernels of one part of an engine, with its first optimization profile.

    Attributes:
        part: The purpose of the kernels; see :data:`trtint8.engine.kernels.Part`.
        kernels: The number of kernels.
        traffic: What they read and write per inference; None where shapes are dynamic or not listed.
    """

    part: Line
    kernels: Count
    traffic: Traffic | None


def traffic_of(layer: Layer) -> Traffic | None:
    """The bytes that a kernel reads and writes per inference.

    Every tensor counts once, as if nothing stayed in a cache. A kernel that only moves values reads no more
    elements than it writes, and one that selects rows of a table reads no more of it than it writes.

    Args:
        layer: The kernel.

    Returns:
        The bytes; None where a shape or a datatype is not known.
    """
    inputs = _sizes(layer.inputs, layer.input_shapes)
    constants = _sizes(layer.constants, layer.constant_shapes)
    outputs = _sizes(layer.outputs, layer.output_shapes)
    if inputs is None or constants is None or outputs is None:
        return None
    largest = max((elements for elements, _ in outputs), default=0)
    if _GATHER in operations(layer):
        constants = [(min(elements, largest), width) for elements, width in constants]
    read = _bytes(inputs) + _bytes(constants)
    if moves_only(layer) and outputs:
        moved = sum(elements for elements, _ in outputs) * max((width for _, width in inputs), default=0)
        read = min(read, moved)
    return Traffic(read, _bytes(outputs))


def activation_sizes(layer: Layer) -> tuple[int, ...]:
    """The bytes of each tensor that a kernel reads or writes, without constants.

    Args:
        layer: The kernel.

    Returns:
        One number per tensor; empty where the shape or the type of one is not known.
    """
    sizes = _sizes((*layer.inputs, *layer.outputs), (*layer.input_shapes, *layer.output_shapes))
    return tuple(elements * width for elements, width in sizes or ())


def part_totals(report: LayerReport) -> tuple[PartTotal, ...]:
    """The kernels of an engine by part, with what they read and write.

    One optimization profile runs at a time, so of several only the first is counted.

    Args:
        report: The engine's layers.

    Returns:
        One entry per part that the engine has, in the order of :data:`trtint8.engine.kernels.PARTS`.
    """
    report = report.of_first_profile
    parts = parts_of(report)
    totals = []
    for part in PARTS:
        layers = [layer for layer, of in zip(report.layers, parts, strict=True) if of == part]
        if layers:
            totals.append(PartTotal(part, len(layers), total_traffic(map(traffic_of, layers))))
    return tuple(totals)


def total_traffic(parts: Iterable[Traffic | None]) -> Traffic | None:
    """The sum of what several kernels read and write; None where that of one is not known."""
    total = Traffic(0, 0)
    for traffic in parts:
        if traffic is None:
            return None
        total += traffic
    return total


def _sizes(datatypes: Sequence[str], shapes: Sequence[Dimensions]) -> list[tuple[int, int]] | None:
    """The number of elements and the bytes per element of each tensor; None where one is not known."""
    if len(datatypes) != len(shapes):
        return None
    sizes = []
    for datatype, shape in zip(datatypes, shapes, strict=True):
        if datatype not in _BYTES or any(dimension < 0 for dimension in shape):
            return None
        sizes.append((math.prod(shape), _BYTES[datatype]))
    return sizes


def _bytes(sizes: Iterable[tuple[int, int]]) -> int:
    return sum(elements * width for elements, width in sizes)
