"""`trtint8 audit`, on the demo's network."""

import dataclasses
import functools
import json

import onnx
import pytest

import trtint8
from tests.trtint8.auditing.kernels import GPU, product, report
from tests.trtint8.cli.calls import succeeds
from tests.trtint8.cli.conftest import MODEL
from trtint8.auditing.audit import estimate_engine
from trtint8.auditing.results import Audit
from trtint8.cli import audit as verb
from trtint8.report.files import parse

HALF = estimate_engine("FP16", report(product("a", "Half", "Half", 1000)), {"a": 1000, "b": 1}, GPU)
DYNAMIC = estimate_engine("INT8", report(product("a", "Int8", "Float", -1)), {"a": 1000}, GPU)
AUDIT = Audit(
    "m.onnx",
    dataclasses.replace(GPU, compute_capability="9.0"),
    "rtx",
    "1.7",
    "8.9",
    {"x": (1, 2)},
    (HALF, DYNAMIC),
    "a verdict",
    ("a",),
    ("c", "d", "e"),
    "abc",
    "def",
)


def test_engines_side_by_side(rtx, table, capsys):
    given = "--gpu 'RTX 4090' --target rtx --keep-int8 /fc/* --explain"
    succeeds("audit", MODEL, table, given)
    printed, said = capsys.readouterr()
    assert said == ""
    lines = printed.splitlines()
    assert "the bytes of FP16 here" in lines[-1] and lines[-1].endswith(".")
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if line.startswith("│")]
    rows = {row[0]: row[1:] for row in cells if len(row) == 5}
    assert rows["float compute"][:2] == ["9", "9"] and rows["INT8 compute"] == ["", "", "9", "1"]
    times = rows["estimated time, all bytes from memory"] + rows["with what fits from the L2 cache"]
    assert len(times) == 8 and all(cell.endswith((" us", " ms")) for cell in times)
    assert sum(line.strip().endswith(": kernels") for line in lines) == 4
    assert "estimated from the compiled graphs, not timed" in " ".join(printed.split())


def test_json(rtx, table, capsys):
    succeeds("audit", MODEL, table, "--gpu h100 --target rtx --json")
    printed, said = capsys.readouterr()
    found = parse("audit", json.loads(printed), "stdout")
    assert found.gpu.name == "H100"
    assert said == ""


def test_an_unknown_gpu(table, refused):
    assert refused("audit", MODEL, table, "--gpu 'GTX 1080'").startswith(
        "trtint8 audit: there are no figures for a GPU 'GTX 1080'; choose among RTX "
    )


@pytest.fixture
def shown(monkeypatch, capsys):
    def show(audit):
        call = functools.wraps(trtint8.audit)(lambda *_arguments, **_options: audit)
        monkeypatch.setattr(verb, "audit", call)
        succeeds("audit m.onnx t.json --gpu Round --explain")
        return capsys.readouterr()

    return show


def test_what_is_not_known_is_said(shown):
    printed, said = shown(AUDIT)
    assert said.splitlines() == [
        "the multiply-adds of 'c' and 2 other nodes are not known",
        "no kernel of the FP16 engine names 'b'",
    ]
    rows = [line.split("│")[1:-1] for line in printed.splitlines() if line.startswith("│")]
    figures = {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows if len(row) == 3}
    assert figures["estimated time, all bytes from memory"] == ["5.000 us", "not known"]
    assert figures["read"] == ["0.002 MB", "not known"]
    assert figures["that may stay in the cache"] == ["0.000 MB", "0.000 MB"]
    assert figures["by float compute"] == ["0.004 MB", ""]
    assert figures["by INT8 compute"] == ["", "not known"]
    assert figures["multiply-adds in FP16"] == ["0.001 M", ""]
    assert figures["weights"] == ["not known", "not known"]


@pytest.mark.parametrize(
    ("seconds", "cells"),
    [
        ((1.7e-5, 8.5e-6), ["17.000 us", "8.500 us"]),
        ((1.7e-5, 1.1e-5), ["0.017 ms", "0.011 ms"]),
        ((1.7e-5, None), ["0.017 ms", "not known"]),
        ((None, None), ["not known", "not known"]),
    ],
)
def test_times_that_are_compared_have_one_unit(seconds, cells):
    assert list(verb._times(seconds, seconds)) == cells


def test_engines_for_the_gpu_of_this_machine(shown):
    _, said = shown(
        dataclasses.replace(AUDIT, compute_capability="current", uncounted=(), engines=(DYNAMIC,))
    )
    assert said == "the engines were built for the GPU of this machine, not for Round\n"


class TestMeasuredLayers:
    @pytest.fixture
    def profiles(self, tmp_path):
        nodes = [
            node.name for node in onnx.load(MODEL).graph.node if node.op_type in ("Conv", "Gemm", "MatMul")
        ]
        assert len(nodes) > 2

        def write(name, milliseconds, reformat):
            rows = [{"name": f"{node} + relu", "averageMs": milliseconds, "timeMs": 1} for node in nodes]
            name_of_copy = f"Reformatting CopyNode for Input Tensor 0 to {nodes[0]} + relu"
            rows += [{"name": name_of_copy, "averageMs": reformat}] if reformat else []
            path = tmp_path / f"{name}.profile.json"
            path.write_text(json.dumps([{"count": 10}, *rows]))
            return path

        return nodes, write("fp16", 0.5, 0.0), write("int8", 0.75, 2.0)

    def test_stand_beside_estimated_ones(self, rtx, table, profiles, prints, as_json):
        nodes, fp16, int8 = profiles
        times = f"--layer-times FP16={fp16} --layer-times INT8+FP16={int8}"
        words = ["audit", MODEL, table, "--gpu 'RTX 4090' --target rtx", times]
        found = parse("audit", as_json(*words), "stdout")
        assert found.measured_seconds == pytest.approx(
            {"FP16": 0.5e-3 * len(nodes), "INT8+FP16": 2e-3 + 0.75e-3 * len(nodes)}
        )
        assert [layer.node for layer in found.layers] == nodes
        assert [layer.measured["FP16"] for layer in found.layers] == pytest.approx([0.5e-3] * len(nodes))
        assert found.layers[0].measured["INT8+FP16"] == pytest.approx(2.75e-3)
        assert all({*layer.estimated} == {"FP32", "FP16", "INT8", "INT8+FP16"} for layer in found.layers)
        costs = {cost.kind: cost for cost in found.costs}
        reformat, small = costs.pop("reformat"), costs.pop("small products")
        assert not costs
        assert (reformat.kernels, reformat.source) == (1, "measured")
        assert reformat.layers[0] == nodes[0] and reformat.seconds == pytest.approx(2e-3)
        assert small.seconds == pytest.approx(0.25e-3 * len(nodes))
        assert {*small.layers} == {*nodes}
        printed = prints(*words)
        assert "what INT8 costs beside FP16, measured" in printed and "measured time of all layers" in printed

    def test_that_are_of_no_engine(self, rtx, table, profiles, tmp_path, refused):
        words = ["audit", MODEL, table, "--gpu 'RTX 4090' --target rtx --layer-times"]
        other, damaged = tmp_path / "other.json", tmp_path / "damaged.json"
        other.write_text('[{"count": 1}, {"name": "another", "averageMs": 1}]')
        damaged.write_text("[")
        given = [
            f"INT4={profiles[1]}",
            f"FP16={other}",
            f"FP16={damaged}",
            f"FP16={tmp_path / 'no.json'}",
            "FP16",
        ]
        for text in given:
            refused(*words, text)
