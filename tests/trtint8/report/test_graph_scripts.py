"""What a browser gets to draw the graph."""

import hashlib
import json
from pathlib import Path

import pytest

import trtint8.report
from trtint8.report.graph import (
    LIBRARIES,
    GraphEdge,
    GraphNode,
    NetworkGraph,
    describe_node,
    graph_json,
    library_script,
    script_hash,
    short_name,
)
from trtint8.report.layers import Cell

VENDORED = Path(trtint8.report.__file__).parent / "vendored"


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.folder)
class TestLibraries:
    def test_the_file_is_the_one_that_was_published(self, library):
        assert hashlib.sha256((VENDORED / library.folder / library.file).read_bytes()).hexdigest() == (
            library.sha256
        )

    def test_its_licence_and_version_go_with_it(self, library):
        script = library_script(library)
        licence = (VENDORED / library.folder / "LICENSE").read_text()
        assert script.startswith(f"/*\n{library.folder}\n\nCopyright")
        assert "Permission is hereby granted, free of charge" in licence and licence.strip() in script

    def test_a_page_may_hold_it(self, library):
        script = library_script(library)
        assert "sourceMappingURL" not in script and "</" not in script and "<!--" not in script
        assert all(letter >= " " or letter == "\n" for letter in script)


def test_nothing_else_is_shipped_there():
    shipped = {path.relative_to(VENDORED).as_posix() for path in VENDORED.rglob("*") if path.is_file()}
    assert shipped == {f"{one.folder}/{name}" for one in LIBRARIES for name in (one.file, "LICENSE")}


def test_the_libraries_add_less_than_65_kb_to_a_page():
    assert sum(len(library_script(library)) for library in LIBRARIES) < 65_000


def test_the_hash_is_the_one_of_the_policy():
    # From the section on hashes of "Content Security Policy Level 3".
    assert script_hash("alert('Hello, world.');") == "qznLcsROx4GACP2dm0UCKCzCG+HiZ1guq6ZZDob/Tng="


@pytest.mark.parametrize(
    ("name", "operator", "short"),
    [
        ("/layer1/layer1.0/conv1/Conv", "Conv", "layer1.0/conv1"),
        ("/layers.2/MatMul_1", "MatMul", "layers.2"),
        ("/Relu_3", "Relu", "Relu_3"),
        ("node_conv2d_3", "Conv", "node_conv2d_3"),
        ("/backbone/branch_main/branch_main.0/Conv", "Conv", "…in/branch_main.0"),
        ("", "Conv", ""),
    ],
)
def test_short_names(name, operator, short):
    assert short_name(name, operator) == short and len(short) <= 17


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (GraphNode(Cell("x", "input", ""), shape="N×3"), "Input of the network. N×3."),
        (GraphNode(Cell("y", "output", "")), "Output of the network."),
        (GraphNode(Cell("a", "Relu", "float"), "of a reason"), "Relu, not in INT8: of a reason."),
        (GraphNode(Cell("a", "Add", "unknown"), "of a reason"), "Add, not listed: of a reason."),
        (
            GraphNode(Cell("a", "Conv", "INT8", 0.75, 4, 30.0, 42.0), "of a reason", "1×2"),
            "Conv in INT8: of a reason. 75.0 % of the noise, alone 30.0 dB, here 42.0 dB. Writes 1×2.",
        ),
    ],
)
def test_descriptions(node, words):
    assert describe_node(node).replace("\xa0", " ") == words


def test_json():
    nodes = (
        GraphNode(Cell("</script>\u2028", "input", "")),
        GraphNode(Cell("/a/Conv", "Conv", "INT8", 0.75, 4, 30.0, 42.0), "of a reason"),
    )
    printed = graph_json(NetworkGraph(nodes, (GraphEdge(0, 1, True),), 0), {"/a/Conv": "layer-1"})
    assert "<" not in printed and "\u2028" not in printed
    read = json.loads(printed)
    assert read["edges"] == [[0, 1, 1]]
    assert read["nodes"][0] == {
        "name": "</script>\u2028", "operator": "input", "short": "</script>\u2028",
        "facts": "Input of the network.",
    }  # fmt: skip
    box = read["nodes"][1]
    assert box.pop("facts").startswith("Conv in INT8: of a reason.")
    assert box == {
        "name": "/a/Conv", "operator": "Conv", "short": "a", "precision": "int8", "badge": "8", "level": 4,
        "anchor": "layer-1",
    }  # fmt: skip
