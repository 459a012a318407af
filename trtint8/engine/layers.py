"""Which layers of an engine run in INT8: read from the message in which the builder lists them.

TensorRT does not have to run in INT8 what Q/DQ nodes quantize. The list says what it did: it names the
datatypes that every layer of the engine reads and writes, and the ONNX nodes that the layer computes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

_HEADING = "Layers:\n"
_LINE = re.compile(
    r"Name: (?P<name>.*), LayerType: (?P<kind>\w+), Inputs: \[(?P<inputs>.*)\], Constants: "
    r"\[(?P<constants>.*)\], Outputs: \[(?P<outputs>.*)\], TacticName: .*, StreamId: \d+, "
    r"Metadata: (?P<metadata>.*)"
)
# Tensor names come from the model and may hold anything, so a datatype is found by the fields before and
# after it.
_TENSOR = re.compile(
    r"Dimensions: \[([-\d,]*)\], Strides: \[[-\d,]*\], StrideOrder: \[[\d,]*\], Datatype: (\w+), Format: \("
)
# The layers of all optimization profiles but the first say which is theirs: "/conv [profile 1]_myl1_5".
# Generated kernels have no such mark, but the number of the same graph: "__myl_Mul_myl1_6".
_LATER_PROFILE = re.compile(r" \[profile [1-9]\d*\]")
_GRAPH = re.compile(r"_(myl\d+)_\d+$")
# A rewriting of the builder may follow the last node, as in "[ONNX Layer: conv]__gemm_from_conv1x1".
_ONNX_NODE = re.compile(r"\[ONNX Layer: (.*)\]\w*")
# These control characters separate the nodes in a layer's metadata; node names may hold brackets, but not
# these.
_SEPARATORS = re.compile("[\x1e\x1f]")
# Where a constant decides an If, TensorRT appends " | NAME (If)" to the names of the nodes of the branch, and
# of all nodes after the If: "conv | second (If) | first (If)". In a branch that is chosen at runtime, nodes
# are like "conv | NAME (then_branch) | NAME (If)", and those after the If keep their names.
_IFS = re.compile(r"(?: \| (?:(?! \| ).)* \(If\))+")
_WEIGHTS = re.compile(r"Total Weights Memory: (\d+) bytes")

_PRECISIONS = {"Int8": "INT8", "FP8": "FP8", "Half": "FP16", "BFloat16": "BF16", "Float": "FP32"}
_WIDEST_FIRST = ("FP32", "BF16", "FP16", "FP8", "INT8")

#: Kinds of layers that compute one convolution or matrix product each.
PRODUCTS = frozenset({"correlation", "gemm", "deconv"})

#: The number of operands of fused attention: queries, keys and values.
_ATTENTION_OPERANDS = 3

#: The dimensions of one tensor; -1 where a dimension is dynamic.
Dimensions = tuple[int, ...]


@dataclass(frozen=True)
class Layer:
    """One layer of the engine.

    Attributes:
        name: The builder's name for the layer, often generated.
        kind: The builder's term for what the layer computes: "correlation" is a convolution, "gemm" a matrix
            product, "deconv" a transposed convolution, "kgen" a generated kernel, mostly point-wise.
        inputs: Datatypes of the activations that the layer reads, as the builder spells them ("Int8",
            "Float").
        constants: Datatypes of the layer's constants; the weights of a convolution or matrix product come
            first.
        outputs: Datatypes of the tensors that the layer writes.
        onnx_nodes: Names of the ONNX nodes that the layer computes or that were folded into it, as TensorRT
            lists them: those behind an If with a constant condition are like "conv | if (If)".
        input_shapes: Dimensions of ``inputs``, one entry per tensor; empty where they are not known.
        constant_shapes: Dimensions of ``constants``, one entry per tensor; empty where they are not known.
        output_shapes: Dimensions of ``outputs``, one entry per tensor; empty where they are not known.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    constants: tuple[str, ...]
    outputs: tuple[str, ...]
    onnx_nodes: tuple[str, ...]
    input_shapes: tuple[Dimensions, ...] = ()
    constant_shapes: tuple[Dimensions, ...] = ()
    output_shapes: tuple[Dimensions, ...] = ()

    @property
    def pointwise(self) -> bool:
        """Whether the layer is a point-wise kernel; its metadata may name weighted nodes all the same."""
        # Fused attention is a generated kernel too, but its name is like "_gemm_mha_...".
        return self.kind == "kgen" and self.name.startswith("__myl_")

    @property
    def attention(self) -> bool:
        """Whether the layer is fused attention: both matrix products and the softmax between them."""
        return self.kind == "kgen" and "_mha" in self.name

    @property
    def precision(self) -> str | None:
        """The type in which the layer computes: "INT8", "FP16", "FP32"...; None where it has no such tensors.

        A matrix product or convolution has the type of its operands where both have the same, whatever type
        its scales and its output have. Any other layer has the widest type that it reads or writes: a fused
        kernel that dequantizes its operands and then multiplies (``runtime_fusion``) reads Int8, but computes
        in float. Fused attention has the type that its queries, keys and values share, whatever type its mask
        has.
        """
        if self.attention:
            # Queries, keys or values may be constants, as where no input decides them.
            shared = _shared(self.inputs) or _shared(self.inputs + self.constants)
            return _widest(shared or self.inputs)
        fused = self.kind == "runtime_fusion"
        if fused or self.kind in PRODUCTS or (self.kind == "kgen" and not self.pointwise):
            # Both operands are constants where the builder knows all shapes and could fold the node.
            first, *others = (*self.inputs, *self.constants[: 1 if self.inputs else 2]) or (None,)
            if first in others and not (fused and first == "Int8"):
                return _PRECISIONS.get(first)
        elif self.kind.endswith("pool") and set(self.inputs + self.outputs) == {"Int8"}:
            # The constants of a pooling layer are two unused float scalars.
            return "INT8"
        return _widest(self.inputs + self.constants + self.outputs)


@dataclass(frozen=True)
class LayerReport:
    """All layers of an engine.

    Attributes:
        layers: The layers, in the order in which they run.
    """

    layers: tuple[Layer, ...]

    @property
    def reformats(self) -> int:
        """How many layers only convert between formats and types."""
        return sum(layer.kind.lower() == "reformat" for layer in self.layers)

    @property
    def compiles_parts(self) -> bool:
        """Whether TensorRT compiled a part of the network as a whole; it tells no nodes and types inside it.

        TensorRT 8 and 10 call such a layer a foreign node; attention and what is around it become one.
        """
        return any(layer.kind.lower() == "myelin" for layer in self.layers)

    @property
    def of_first_profile(self) -> LayerReport:
        """The layers that run with the first optimization profile; all of them where there is one profile.

        An engine holds a copy of its layers for each of its profiles, of which one runs at a time.
        """
        later = {_graph_of(layer) for layer in self.layers if _LATER_PROFILE.search(layer.name)}
        return LayerReport(tuple(layer for layer in self.layers if _graph_of(layer) not in later))

    def precision_of(self, onnx_node: str) -> str | None:
        """The type in which a weighted node (Conv, ConvTranspose, Gemm, MatMul) is computed.

        Args:
            onnx_node: The node's name in the model that was built.

        Returns:
            "INT8", "FP16", "BF16", "FP32"...; None where no layer mentions the node, because it was folded or
            the builder renamed it.
        """
        mentions = self._mentions(onnx_node)
        # A point-wise layer next to a weighted one (for a bias or a quantization) has the same metadata, and
        # so has fused attention that adds the bias of its queries, keys and values. Only where no other layer
        # mentions the node did the node itself become a part of these.
        multiplied = any(layer.kind in PRODUCTS for layer in mentions)
        computing = [
            layer for layer in mentions if not (layer.pointwise or (multiplied and layer.attention))
        ] or mentions
        return _widest_precision(layer.precision for layer in computing)

    def is_folded(self, onnx_node: str) -> bool:
        """Whether a node is left only in point-wise layers that read nothing but constants.

        The builder knows the result of a product of zeros, for example, and multiplies nothing.

        Args:
            onnx_node: The node's name in the model that was built.
        """
        mentions = self._mentions(onnx_node)
        return bool(mentions) and all(layer.pointwise and not layer.inputs for layer in mentions)

    def weighted_summary(self, onnx_nodes: Sequence[str]) -> dict[str, list[str]]:
        """Groups weighted nodes by the type in which they are computed.

        Args:
            onnx_nodes: Names of the nodes in the model that was built.

        Returns:
            Precision to the names of its nodes, in the given order; "folded" has those of which constants are
            left (:meth:`is_folded`), and "unknown" those that no layer mentions. See :meth:`precision_of`.
        """
        summary: dict[str, list[str]] = {}
        for node in onnx_nodes:
            found = "folded" if self.is_folded(node) else self.precision_of(node) or "unknown"
            summary.setdefault(found, []).append(node)
        return summary

    def renamed(self, onnx_nodes: Iterable[str]) -> LayerReport:
        """The same layers, which name nodes behind an If with a constant condition as the model does.

        Args:
            onnx_nodes: Names of the nodes in the model that was built; all others stay as they are listed.
        """
        listed = {name for layer in self.layers for name in layer.onnx_nodes}
        names = {
            name: node
            for node in onnx_nodes
            if node not in listed
            for name in listed
            if _is_behind_ifs(name, node)
        }
        return LayerReport(
            tuple(
                replace(layer, onnx_nodes=tuple(names.get(name, name) for name in layer.onnx_nodes))
                for layer in self.layers
            )
        )

    def counts(self) -> dict[str, int]:
        """Type to the number of layers that compute in it; layers that only handle shapes are left out."""
        return dict(Counter(layer.precision for layer in self.layers if layer.precision is not None))

    def _mentions(self, onnx_node: str) -> list[Layer]:
        """The layers that list a node."""
        # A node in the branch of an If may have the name of one before the If, which is listed as it is.
        return [layer for layer in self.layers if onnx_node in layer.onnx_nodes] or [
            layer
            for layer in self.layers
            if any(_is_behind_ifs(name, onnx_node) for name in layer.onnx_nodes)
        ]


def parse_layers(messages: Iterable[str]) -> LayerReport | None:
    """Finds and reads the list of layers among the builder's messages.

    Args:
        messages: The builder's log messages, with detailed profiling verbosity.

    Returns:
        The layers; None where the builder printed no list, or one in another format.
    """
    for message in messages:
        if message.startswith(_HEADING):
            # A blank line divides the layers from the list of inputs and outputs.
            body = message[len(_HEADING) :].partition("\n\n")[0]
            matches = map(_LINE.fullmatch, body.split("\n"))
            layers = tuple(_layer(match) for match in matches if match)
            return LayerReport(layers) if layers else None
    return None


def total_weights_memory(messages: Iterable[str]) -> int | None:
    """The size of the engine's weights in bytes as the builder logs it; None where it does not.

    Args:
        messages: The builder's log messages.
    """
    for message in messages:
        match = _WEIGHTS.fullmatch(message)
        if match:
            return int(match[1])
    return None


def _graph_of(layer: Layer) -> str:
    """The graph of the builder that a layer belongs to; the layer's own name where that names none."""
    found = _GRAPH.search(layer.name)
    return found[1] if found else layer.name


def _is_behind_ifs(listed: str, onnx_node: str) -> bool:
    """Whether TensorRT lists a node of this name so where Ifs with a constant condition precede it."""
    # The node's own name may hold " | " and parentheses.
    return listed.startswith(onnx_node) and _IFS.fullmatch(listed, len(onnx_node)) is not None


def _layer(match: re.Match[str]) -> Layer:
    nodes = map(_ONNX_NODE.fullmatch, _SEPARATORS.split(match["metadata"]))
    inputs, input_shapes = _tensors(match["inputs"])
    constants, constant_shapes = _tensors(match["constants"])
    outputs, output_shapes = _tensors(match["outputs"])
    return Layer(
        match["name"],
        match["kind"],
        inputs,
        constants,
        outputs,
        tuple(node[1] for node in nodes if node),
        input_shapes,
        constant_shapes,
        output_shapes,
    )


def _tensors(text: str) -> tuple[tuple[str, ...], tuple[Dimensions, ...]]:
    """The datatypes and the dimensions of the tensors that a field lists."""
    found = _TENSOR.findall(text)
    shapes = (tuple(map(int, dimensions.split(","))) if dimensions else () for dimensions, _ in found)
    return tuple(datatype for _, datatype in found), tuple(shapes)


def _shared(datatypes: Iterable[str]) -> list[str]:
    """The types of as many tensors as fused attention has operands."""
    counts = Counter(datatype for datatype in datatypes if datatype in _PRECISIONS)
    return [datatype for datatype, count in counts.items() if count >= _ATTENTION_OPERANDS]


def _widest(datatypes: Iterable[str]) -> str | None:
    return _widest_precision(_PRECISIONS.get(datatype) for datatype in datatypes)


def _widest_precision(precisions: Iterable[str | None]) -> str | None:
    present = set(precisions)
    return next((precision for precision in _WIDEST_FIRST if precision in present), None)
