"""What a browser needs to draw the graph of a network: its boxes and tensors as JSON, and two kept libraries.

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
from dataclasses import dataclass
from importlib.resources import files

from trtint8.report import text
from trtint8.report.graph import GraphNode, NetworkGraph

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
