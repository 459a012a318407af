"""What the verbs print."""

import dataclasses
import io
import json
import math
from pathlib import Path

from tests.trtint8.report.samples import engine_info, table
from trtint8.cli.output import engine_rows, print_json, print_line, print_table, replace_unprintable, say
from trtint8.engine.layers import Layer, LayerReport
from trtint8.validation.significance import Share

INFO = engine_info(table())


def test_messages_and_results_go_to_different_places(capsys):
    say("a message")
    print_line("a result")
    assert capsys.readouterr() == ("a result\n", "a message\n")


@dataclasses.dataclass(frozen=True)
class Pair:
    first: float
    second: object


def test_anything_becomes_json(capsys):
    print_json({"pair": Pair(math.inf, Path("a/b")), 3: (1, frozenset({2})), "ä": [None, True, math.nan]})
    printed = capsys.readouterr().out
    assert json.loads(printed) == {
        "pair": {"first": None, "second": "a/b"},
        "3": [1, [2]],
        "ä": [None, True, None],
    }
    assert "ä" in printed


def test_a_share_comes_with_its_interval(capsys):
    print_json(Share(8, 10))
    found = json.loads(capsys.readouterr().out)
    assert (found["value"], found["count"], found["total"]) == (0.8, 8, 10)
    assert found["interval"] == [*Share(8, 10).interval]


def test_a_table_has_its_title_and_every_cell(capsys):
    long = "tensor/" * 12
    print_table("Title", ("name", "size"), [(long, "1"), ("[b]", "22")], [None, "red"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].strip() == "Title"
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if line.startswith("│")]
    # Names that look like markup are left as they are, and long ones stand on one line.
    assert cells == [[long, "1"], ["[b]", "22"]]


def test_an_engine_for_a_person():
    rows = dict(engine_rows(INFO))
    assert rows["TensorRT for RTX"] == INFO.tensorrt_version
    assert rows["weighted layers in INT8"] == "1 of 2"
    assert rows["weight memory"] == "5.2 kB"
    unlisted = dict(engine_rows(dataclasses.replace(INFO, layers=None)))
    assert unlisted["weighted layers in INT8"] == "this TensorRT does not list its layers"
    assert "kernels" not in unlisted


def kernels(*shape):
    conv = Layer("c", "correlation", ("Int8",), ("Int8",), ("Float",), ("conv",), (shape,), ((1,),), (shape,))
    name = "__myl_MulMinMaxRounCast_myl0_0"
    return LayerReport((Layer(name, "kgen", ("Float",), (), ("Int8",), (), (shape,), (), (shape,)), conv))


def test_kernels_by_part_and_their_bytes():
    rows = dict(engine_rows(dataclasses.replace(INFO, layers=kernels(1, 1000), profiles=())))
    assert rows["kernels"] == "2: 1 INT8 compute, 1 requantization"
    assert rows["bytes per inference"] == "0.005 MB read, 0.005 MB written"
    large = dict(engine_rows(dataclasses.replace(INFO, layers=kernels(8, 1_000_000), profiles=())))
    assert large["bytes per inference"] == "40.0 MB read, 40.0 MB written"


def test_nodes_in_a_part_that_is_compiled_as_a_whole():
    whole = Layer("{ForeignNode[a...b]}", "Myelin", (), (), (), ("a",), (), (), ())
    listed = dataclasses.replace(INFO, layers=kernels(1, 1000), quantized_nodes=("conv", "/MatMul"))
    compiled = dataclasses.replace(listed, layers=LayerReport((*kernels(1, 1000).layers, whole)))
    assert (listed.int8_layers, compiled.int8_layers) == ((1, 2), None)
    assert dataclasses.replace(compiled, quantized_nodes=("conv",)).int8_layers == (1, 1)
    for info, text in (
        (listed, "1 of 2"),
        (compiled, "1 seen; TensorRT tells nothing of parts that it compiled"),
    ):
        rows = dict(engine_rows(info))
        assert rows["weighted layers in INT8"].startswith(text)
        assert rows["not in the engine's list"] == "/MatMul"


def test_bytes_that_are_not_known():
    dynamic = dataclasses.replace(INFO, layers=kernels(-1, 1000))
    assert dict(engine_rows(dynamic))["bytes per inference"] == (
        "not known for dynamic shapes; 'trtint8 audit' gives them at the optimal ones"
    )
    static = dict(engine_rows(dataclasses.replace(dynamic, profiles=())))
    assert (
        static["bytes per inference"] == "not known, because the builder does not list all shapes and types"
    )


def test_tensors_without_a_range_are_named_up_to_a_number():
    missing = tuple((f"tensor{index}", "layer") for index in range(30))
    rows = engine_rows(dataclasses.replace(INFO, missing_ranges=missing))
    assert ("tensors without a range", "30") in rows
    assert sum(value == "of layer 'layer'" for _, value in rows) == 20


def test_why_nodes_stay_in_float():
    nodes = (("a", "too small"), ("b", "recurrent"), ("c", "too small"))
    rows = engine_rows(dataclasses.replace(INFO, float_nodes=nodes))
    start = rows.index(("nodes that stay in float", "3"))
    assert rows[start + 1 : start + 3] == [("  2 of them", "too small"), ("  1 of them", "recurrent")]
    assert not any(name == "nodes that stay in float" for name, _ in engine_rows(INFO))


def test_control_characters_never_reach_the_terminal(capsys):
    name = "a\x1b]0;title\x07\x9b31m\u202eb\u2028c\ud800\r"
    say(name)
    print_line(name)
    print_table(name, (name, "b"), [(name, "1")])
    printed = capsys.readouterr()
    escaped = "a\\x1b]0;title\\x07\\x9b31m\\u202eb\\u2028c\\ud800\\r"
    assert printed.err == f"{escaped}\n"
    assert printed.out.count(escaped) == 4
    print_json({"name": name})
    document = capsys.readouterr().out
    assert json.loads(document) == {"name": name}
    printed_json = document.replace("\n", "")
    assert not set("\x1b\x07\x9b\u202e\u2028\ud800\r") & set(printed_json)
    assert not set("\x1b\x07\x9b\u202e\u2028\ud800\r") & set(printed.out)


def test_a_message_is_one_line_below_500_characters(capsys):
    say("first\nsecond" + "x" * 1000)
    error = capsys.readouterr().err
    assert error.startswith("first secondxxx") and error.endswith("x…\n")
    assert len(error) == 500 and error.count("\n") == 1


def test_how_standard_output_was_told_to_encode_is_left(monkeypatch):
    for errors, expected in (("strict", b"a?b"), ("backslashreplace", b"a\\u2588b")):
        stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors=errors)
        monkeypatch.setattr("sys.stdout", stream)
        replace_unprintable()
        print_line("a█b")
        assert stream.buffer.getvalue() == expected + b"\n"
    monkeypatch.setattr("sys.stdout", None)
    replace_unprintable()
