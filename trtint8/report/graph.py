"""The network as a graph for a browser: boxes and tensors as JSON, without the Q/DQ pairs themselves.

dagre (MIT, 49 kB) chooses the places of the boxes and Panzoom (MIT, 10 kB) moves and zooms the picture, both
in the browser. Packages for Python that lay out such graphs either need an installed Graphviz, are no longer
maintained (grandalf), are under the GPL (igraph), or need a newer Python than this package does
(fast-sugiyama); elkjs and Graphviz as WebAssembly are 1.4 MB and more.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

import onnx_ir as ir

from calibrators.operators import operator_of
from trtint8.engine.file import EngineInfo
from trtint8.models.graph import is_constant, made_by, module_of, values_read
from trtint8.quantization.config import FUSED_ACTIVATIONS
from trtint8.report import text
from trtint8.report.layers import IN_FLOAT, Cell, is_dequantized, make_cell, reads_int8
from trtint8.sensitivity.results import Sensitivity

#: The largest number of boxes that is drawn, and of columns that all tensors together lead across: at each of
#: these limits a browser on two busy cores needs about 3 s. It needs 1 s for a ViT-B/16 (526 boxes, 1,065
#: columns), and 19 s for a DenseNet-121 (374 boxes, 23,924 columns), whose boxes could not be told apart.
MOST_NODES, MOST_COLUMNS = 1000, 5000


@dataclass(frozen=True)
class GraphNode:
    """One operator, or an input or output of the network.

    Attributes:
        cell: Its name, operator, precision and share of the noise. The operator of an input is ``input``,
            that of an output is ``output``; both have no precision.
        reason: Why it has its precision, in words; empty for inputs and outputs.
        shape: The dimensions of what it writes, such as ``N×64×56×56``; empty where they are not known.
    """

    cell: Cell
    reason: str = ""
    shape: str = ""


@dataclass(frozen=True)
class GraphEdge:
    """One tensor that leads from one node to another.

    Attributes:
        source: Index of the node that writes the tensor.
        target: Index of the node that reads the tensor.
        int8: Whether the tensor passes through a Q/DQ pair.
    """

    source: int
    target: int
    int8: bool


@dataclass(frozen=True)
class NetworkGraph:
    """The network as a graph.

    Attributes:
        nodes: The inputs, the operators in the order of the model, and the outputs.
        edges: The tensors between them; constants are left out.
        left_out: Number of operators that compute only from the sizes of tensors, which are no nodes.
    """

    nodes: tuple[GraphNode, ...]
    edges: tuple[GraphEdge, ...]
    left_out: int

    @property
    def has_int8(self) -> bool:
        """Whether a tensor passes through a Q/DQ pair."""
        return any(edge.int8 for edge in self.edges)

    @property
    def too_large(self) -> bool:
        """Whether the graph has too many nodes for a picture, or tensors that lead too far."""
        return len(self.nodes) > MOST_NODES or self.columns_crossed > MOST_COLUMNS

    @property
    def columns_crossed(self) -> int:
        """How many columns all tensors lead across where each node is in the first possible column."""
        columns = [0] * len(self.nodes)
        # Nodes are in the order of the model, in which a tensor is written before it is read.
        for edge in sorted(self.edges, key=lambda edge: edge.target):
            columns[edge.target] = max(columns[edge.target], columns[edge.source] + 1)
        return sum(columns[edge.target] - columns[edge.source] for edge in self.edges)


def make_graph(
    model: ir.Model | None, engine: EngineInfo | None, sensitivity: Sensitivity | None
) -> NetworkGraph | None:
    """Makes the graph of a network.

    Precisions are taken from the engine's own list of layers. Without it they are those that the Q/DQ pairs
    ask for.

    Args:
        model: The Q/DQ model, or the float model that the engine was built from; or None.
        engine: The engine's sidecar, or None.
        sensitivity: The sensitivity of the layers, or None.

    Returns:
        The graph; None without a model.
    """
    if model is None:
        return None
    measured = {layer.node: layer for layer in sensitivity.layers} if sensitivity else {}
    reasons = dict(engine.float_nodes) if engine else {}
    sizes = _size_nodes(model.graph)
    constants = model.graph.initializers
    inputs = [value for value in model.graph.inputs if value.name not in constants]
    drawn = [node for node in model.graph if node not in sizes and not _is_left_out(node)]
    nodes = [GraphNode(Cell(value.name or "", "input", ""), shape=_shape(value)) for value in inputs]
    for node in drawn:
        name = node.name or ""
        precision = _precision(node, engine)
        was_in_int8 = precision not in IN_FLOAT or any(map(is_dequantized, node.inputs))
        figures = measured.get(name) if was_in_int8 else None
        cell = make_cell(name, node.op_type, precision, figures, module_of(node))
        shape = _shape(node.outputs[0]) if node.outputs else ""
        nodes.append(GraphNode(cell, _reason(node, precision, engine, reasons), shape))
    places: dict[ir.Node | ir.Value, int] = {value: place for place, value in enumerate(inputs)}
    places |= {node: place for place, node in enumerate(drawn, start=len(inputs))}
    found: dict[tuple[int, int], bool] = {}
    for node in drawn:
        for value in values_read(node):
            _connect(value, places[node], places, found)
    for value in model.graph.outputs:
        nodes.append(GraphNode(Cell(value.name or "", "output", ""), shape=_shape(value)))
        _connect(value, len(nodes) - 1, places, found)
    edges = tuple(GraphEdge(source, target, int8) for (source, target), int8 in found.items())
    return NetworkGraph(tuple(nodes), edges, len(sizes))


def _is_left_out(node: ir.Node) -> bool:
    """Whether a node is half of a Q/DQ pair, or a constant."""
    return operator_of(node).half_of_pair or all(is_constant(value) for value in node.outputs)


def _size_nodes(graph: ir.Graph) -> set[ir.Node]:
    """The nodes that compute from nothing but constants and the sizes of tensors."""
    found: set[ir.Node] = set()
    for node in graph:
        read = [value for value in values_read(node) if not is_constant(value)]
        if operator_of(node).reads_shape or (read and all(value.producer() in found for value in read)):
            found.add(node)
    return found


def _connect(
    value: ir.Value,
    target: int,
    places: Mapping[ir.Node | ir.Value, int],
    found: dict[tuple[int, int], bool],
) -> None:
    """Adds the edge by which a node reads a value, if what writes the value is a node of the graph."""
    int8 = False
    producer = value.producer()
    while producer is not None and operator_of(producer).half_of_pair:
        int8 = True
        first = producer.inputs[0]
        if first is None:
            return
        value, producer = first, first.producer()
    source = places.get(producer if producer is not None else value)
    if source is not None:
        found[source, target] = found.get((source, target), False) or int8


def _precision(node: ir.Node, engine: EngineInfo | None) -> str:
    if engine and engine.layers:
        return engine.layers.precision_of(node.name or "") or "unknown"
    if operator_of(node).multiplies:
        return "INT8" if reads_int8(node) else "float"
    return "INT8" if _reads_only_pairs(node) else "float"


def _reads_only_pairs(node: ir.Node) -> bool:
    """Whether everything that a node reads and that is not constant is dequantized."""
    read = [value for value in values_read(node) if not is_constant(value)]
    return bool(read) and all(is_dequantized(value) for value in read)


def _reason(node: ir.Node, precision: str, engine: EngineInfo | None, reasons: Mapping[str, str]) -> str:
    """Why a node has its precision, in words."""
    if operator_of(node).multiplies:
        return _reason_of_product(node, precision, reasons)
    if precision == "INT8":
        return (
            "it reads and writes INT8" if engine and engine.layers else "Q/DQ pairs stand before its inputs"
        )
    if precision == "unknown":
        return "no kernel of the engine names it; it was folded into others"
    if precision == "float" and _follows_product(node):
        return (
            "it multiplies no matrices; TensorRT computes it together with the layer before it where it can"
        )
    return "it multiplies no matrices" + (", and reads INT8" if _reads_only_pairs(node) else "")


def _follows_product(node: ir.Node) -> bool:
    """Whether a node is an activation function of what a product of matrices writes."""
    first = node.inputs[0] if node.inputs else None
    producer = made_by(first)
    if node.domain != "" or node.op_type not in FUSED_ACTIVATIONS:
        return False
    return producer is not None and operator_of(producer).is_weighted


def _reason_of_product(node: ir.Node, precision: str, reasons: Mapping[str, str]) -> str:
    name = node.name or ""
    if name in reasons:
        return reasons[name]
    if not reads_int8(node):
        return operator_of(node).no_pairs or "no Q/DQ pair stands before its operands"
    if precision == "INT8":
        return "Q/DQ pairs stand before its operands"
    if precision == "unknown":
        return "Q/DQ pairs stand before its operands, but no kernel of the engine names it"
    return f"Q/DQ pairs ask for INT8, but the engine computes it in {precision}"


def _shape(value: ir.Value) -> str:
    """The dimensions of a value; those without a name are question marks."""
    if value.shape is None:
        return ""
    return "×".join(_dimension(size) for size in value.shape)


def _dimension(size: int | ir.SymbolicDim) -> str:
    if isinstance(size, int):
        return str(size)
    name = size.value or "?"
    return "?" if name.startswith("unk__") else name


#: The letters on the band of a box or a cell, by precision; a question mark for all others.
BADGES = {"INT8": "8", "FP16": "16", "BF16": "b16", "FP32": "32", "float": "f"}

#: What a legend calls precisions that have no name of their own.
PRECISION_NAMES = {"unknown": "not listed", "float": "not in INT8"}

#: The largest number of characters of a name in a box.
_LONGEST_NAME = 17

#: Characters that no HTML page may contain; in scripts they stand in strings only.
_CONTROL = re.compile(r"[\x01-\x08\x0b\x0e-\x1f\x7f-\x9f]")

_SOURCE_MAP = re.compile(r"^//# sourceMappingURL=.*$", re.MULTILINE)


@dataclass(frozen=True)
class Library:
    """One file of a library that is shipped with the package.

    Attributes:
        folder: Name and version of the library: its folder under ``vendored``, which also has its licence.
        file: The name of the file, as its publisher built it.
        sha256: SHA-256 of the file.
    """

    folder: str
    file: str
    sha256: str


#: The files from the packages ``@dagrejs/dagre`` and ``@panzoom/panzoom`` of the npm registry.
LIBRARIES = (
    Library(
        "dagre-3.1.3", "dagre.min.js", "54a503e346f93ca0bb10abe7999587e037262935687aca45eb4e4b0f64bbb578"
    ),
    Library(
        "panzoom-4.6.2", "panzoom.min.js", "3ce354ef7b493efb62a4d4acaaf86fa2d6027eb629857a4e144041de1a112c1e"
    ),
)


def library_script(library: Library) -> str:
    """The script of a library for a page: its licence before it, and no reference to its source map."""
    folder = files("trtint8.report") / "vendored" / library.folder
    licence = (folder / "LICENSE").read_text(encoding="utf-8").strip()
    script = (folder / library.file).read_text(encoding="utf-8")
    script = _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", _SOURCE_MAP.sub("", script))
    return f"/*\n{library.folder}\n\n{licence}\n*/\n{script.strip()}\n"


def script_hash(script: str) -> str:
    """The SHA-256 of a script, as a Content-Security-Policy names it."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def graph_json(graph: NetworkGraph, anchors: dict[str, str]) -> str:
    """The boxes and tensors of a graph as JSON that may stand in a ``script`` element.

    Args:
        graph: The graph.
        anchors: Name of a node to the id of the element in the page that says what the node costs.
    """
    nodes = [_node(node, anchors) for node in graph.nodes]
    edges = [[edge.source, edge.target, int(edge.int8)] for edge in graph.edges]
    document = json.dumps({"nodes": nodes, "edges": edges}, ensure_ascii=False, separators=(",", ":"))
    # Names come from the model and may hold the end of the element.
    return document.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def short_name(name: str, operator: str) -> str:
    """The part of a node's name that tells it from others and fits into its box."""
    parts = [part for part in name.split("/") if part]
    if len(parts) > 1 and parts[-1].startswith(operator):
        parts = parts[:-1]
    short = "/".join(parts[-2:])
    return short if len(short) <= _LONGEST_NAME else f"…{short[1 - _LONGEST_NAME :]}"


def describe_node(node: GraphNode) -> str:
    """What is known of a node, in sentences."""
    cell = node.cell
    shape = f"{node.shape}." if node.shape else ""
    if not cell.precision:
        return f"{cell.operator.capitalize()} of the network. {shape}".strip()
    known = PRECISION_NAMES.get(cell.precision)
    precision = f", {known}" if known else f" in {cell.precision}"
    sentences = [f"{cell.operator}{precision}: {node.reason}."]
    if cell.noise_share is not None:
        sentences.append(
            f"{text.percentage(cell.noise_share)} of the noise, alone {text.decibels(cell.alone_db)}, "
            f"here {text.decibels(cell.cumulative_db)}."
        )
    if cell.title != cell.node:
        sentences.append(f"Of the module {cell.module}.")
    return " ".join([*sentences, *([f"Writes {shape}"] if shape else [])])


def _node(node: GraphNode, anchors: dict[str, str]) -> dict[str, str | int]:
    cell = node.cell
    box: dict[str, str | int] = {
        "name": cell.node,
        "operator": cell.operator,
        "short": short_name(cell.node, cell.operator),
        "facts": describe_node(node),
    }
    if cell.precision:
        box |= {"precision": cell.precision.lower(), "badge": BADGES.get(cell.precision, "?")}
    if cell.level is not None:
        box["level"] = cell.level
    if cell.node in anchors:
        box["anchor"] = anchors[cell.node]
    return box
