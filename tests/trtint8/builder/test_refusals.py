"""Nodes that the parser refuses are named before anything else, with the tensors before them."""

from __future__ import annotations

from functools import partial

import numpy as np
import onnx
import pytest

import trtint8
from calibrators.errors import BuildError
from calibrators.tables.table import CalibrationTable
from tests.trtint8.detectors import images, suppressing_detector
from tests.trtint8.engines import build_rtx
from tests.trtint8.onnx_models import Graph, conv_relu_conv, normal, parsed
from tests.trtint8.refused_models import NODES, refused_model
from trtint8 import int8_engine
from trtint8.builder.build import Build
from trtint8.builder.refusals import refuse_unimplemented, refuse_unsupported
from trtint8.calibration import float_tensors
from trtint8.models.model import load_model, prepare
from trtint8.models.serialization import to_proto


def check(model, flavor):
    refuse_unsupported(prepare(load_model(model)), Build(flavor, ()))


def test_a_model_that_the_parser_takes(rtx):
    check(refused_model(NODES[:2] + NODES[4:6] + NODES[8:], ["kept"]), rtx)


def test_all_refused_nodes_and_the_cut_before_them(rtx):
    # The parser names one NonZero at a time.
    with pytest.raises(BuildError) as caught:
        check(refused_model(), rtx)
    assert str(caught.value).startswith(
        f"{rtx} cannot take node 'where_node' (NonZero) of 'model': NonZero plugin creator"
    )
    assert "'values_node' (Unique), 'others_node' (NonZero)" in str(caught.value)
    assert "'r' and 's' and 'kept'" in caught.value.template and "cut_at" in caught.value.template


def test_a_node_that_reads_inputs_alone_leaves_no_cut(rtx):
    nodes = [*NODES[:2], ("NonZero", ["x"], "of_input", {}), *NODES[4:6], *NODES[8:]]
    with pytest.raises(BuildError) as caught:
        check(refused_model(nodes, ["of_input", "kept"]), rtx)
    assert "'of_input_node' (NonZero)" in str(caught.value)
    assert "cut" not in str(caught.value)
    # A cut before the other node leaves this one where it is.
    nodes = [*NODES[:2], *NODES[4:6], *NODES[7:], nodes[2]]
    with pytest.raises(BuildError, match=r"nor does it take 'of_input_node' \(NonZero\)$"):
        check(refused_model(nodes, ["of_input", "kept", "others"]), rtx)


def test_nothing_is_calibrated_before(rtx, tmp_path):
    onnx.save(refused_model(), tmp_path / "m.onnx")
    taken = []

    def samples():
        taken.append(1)
        yield np.zeros((2, 3, 8, 8), np.float32)

    with pytest.raises(BuildError, match="where_node"):
        build_rtx(samples, tmp_path / "m.engine", model=tmp_path / "m.onnx")
    assert not taken
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


@pytest.mark.parametrize("batch", [2, "n"])
def test_an_input_that_is_an_output_too_is_refused_before_the_data_is_read(batch, tmp_path):
    graph = Graph()
    model = graph.model({"x": [batch, 4]}, graph.op("MatMul", ["x", graph.weights(4, 8)], "product"))
    model.graph.output.append(model.graph.input[0])
    onnx.save(model, tmp_path / "m.onnx")
    words = (
        "'x' is both an input and an output of 'm.onnx', and TensorRT would rename the input; pass the "
        "output through an Identity of another name"
    )
    with pytest.raises(BuildError) as caught:
        trtint8.build_int8_engine(tmp_path / "m.onnx", lambda: pytest.fail("read"), tmp_path / "m.engine")
    assert str(caught.value) == words
    values = normal(4, 4)
    table = trtint8.calibrate(tmp_path / "m.onnx", {"x": values})
    quantized = trtint8.quantize(tmp_path / "m.onnx", table)
    assert [output.name for output in quantized.graph.output] == ["product_out", "x"]


def given_table(model):
    """A table for all tensors that may get a range."""
    return CalibrationTable(dict.fromkeys(float_tensors(prepare(load_model(model))), 1.0))


@pytest.fixture
def early(monkeypatch):
    """Counts how often refused nodes are looked for."""
    calls = []

    def counted(*arguments):
        calls.append(1)
        refuse_unsupported(*arguments)

    monkeypatch.setattr(int8_engine, "refuse_unsupported", counted)
    return calls


def test_with_a_table_nodes_are_looked_for_only_after_a_failure(rtx, tmp_path, early):
    good, bad = refused_model(NODES[:2] + NODES[4:6] + NODES[8:], ["kept"]), refused_model()
    options = {"target": "rtx", "fp16": False}
    trtint8.build_int8_engine(good, given_table(good), tmp_path / "good.engine", **options)
    assert not early
    with pytest.raises(
        BuildError, match=r"'where_node' \(NonZero\).* 'values_node' .* 'others_node' "
    ) as caught:
        trtint8.build_int8_engine(bad, given_table(bad), tmp_path / "bad.engine", **options)
    assert early == [1] and "cut_at" in caught.value.template
    assert not list(tmp_path.glob("bad*"))


def test_a_failure_for_another_reason_keeps_its_message(rtx, tmp_path, early, monkeypatch):
    def fail(*_, **__):
        raise BuildError("out of memory")

    monkeypatch.setattr(Build, "run", fail)
    good = refused_model(NODES[:2] + NODES[4:6] + NODES[8:], ["kept"])
    with pytest.raises(BuildError, match=r"^out of memory$"):
        build_rtx(given_table(good), tmp_path / "good.engine", model=good, fp16=False)
    assert early == [1]


@pytest.mark.parametrize("calibrated", [True, False])
def test_the_implicit_route(rtx, tmp_path, early, monkeypatch, calibrated):
    """With the parser of a TensorRT that lacks this route, so the build itself does not get to the parser."""

    def fail(*_, **__):
        raise BuildError("the parser refused a node")

    monkeypatch.setattr(int8_engine, "choose_route", lambda *_: "implicit")
    monkeypatch.setattr(Build, "run", fail)
    model, taken = refused_model(), []

    def samples():
        taken.append(1)
        yield np.zeros((2, 3, 8, 8), np.float32)

    with pytest.raises(
        BuildError, match=r"'where_node' \(NonZero\).* 'values_node' .* 'others_node' "
    ) as caught:
        build_rtx(
            samples if calibrated else given_table(model),
            tmp_path / "m.engine",
            model=model,
            method="mse" if calibrated else "auto",  # the former is calibrated on the CPU
        )
    assert early == [1] and "cut_at" in caught.value.template
    assert not taken and not list(tmp_path.iterdir())


def test_a_node_that_the_builder_cannot_compute_and_the_cut_before_it(rtx, tmp_path):
    """The parser takes it."""
    model = suppressing_detector()
    with pytest.raises(BuildError) as caught:
        build_rtx(images(4), tmp_path / "x.engine", model=model, fp16=False, batch_size=1)
    said = str(caught.value)
    assert said.startswith(f"{rtx} cannot take node 'suppression' (NonMaxSuppression) of 'model': ")
    assert "'corners_out' and 'by_class_out' and 'flat_boxes_out' and 'table_out' (cut_at)" in said
    assert not list(tmp_path.iterdir())


def test_other_reasons_say_nothing_of_nodes(rtx):
    prepared = prepare(load_model(suppressing_detector()))
    refuse_unimplemented(prepared, rtx, "out of memory")
    refuse_unimplemented(prepared, rtx, "unknown_1 has no runners that implement it")


def branching():
    """A matrix product, and an If whose branches double what they get."""
    twice = "Add (product, product)"
    return parsed(
        "float[N, 4] x",
        "float[N, 4] y",
        f"""[product] product = MatMul (x, w) total = ReduceSum <keepdims = 0> (x)
        fast = Greater (total, zero)
        [rate] y = If (fast) <then_branch = a () => (float[N, 4] t) {{ t = {twice} }},
            else_branch = b () => (float[N, 4] e) {{ e = {twice} }}>""",
        w=normal(4, 4),
        zero=np.float32(0),
    )


@pytest.mark.parametrize(
    ("model", "reason", "advice"),
    [
        (
            branching,
            "Assertion mScopedOp2Scopes.contains(childScopedOp) failed",
            "; the model has If nodes ('rate'), which may be the cause: export it without them, or run ONNX "
            "Runtime's basic optimizations with fixed input shapes first",
        ),
        (branching, "out of memory", ""),
        (
            partial(conv_relu_conv, quantized=False),
            "Assertion mScopedOp2Scopes.contains(childScopedOp) failed",
            "",
        ),
    ],
)
def test_a_failure_in_branches(rtx, tmp_path, monkeypatch, model, reason, advice):
    def fail(*_, **__):
        raise BuildError(reason)

    monkeypatch.setattr(Build, "run", fail)
    made = model()
    with pytest.raises(BuildError) as caught:
        build_rtx(given_table(made), tmp_path / "m.engine", model=made, fp16=False)
    assert str(caught.value) == reason + advice


def test_int8_weights_with_scales_of_blocks_are_refused(rtx, tmp_path):
    """TensorRT for RTX 1.7 builds an engine that takes them for scales of channels."""
    model = parsed(
        "float[4, 8] x",
        "float[4, 8] y",
        """xq = QuantizeLinear (x, xs, xz) xd = DequantizeLinear (xq, xs, xz)
        [weights] wd = DequantizeLinear <axis = 0, block_size = 2> (wq, ws)
        [product] y = MatMul (xd, wd)""",
        opset=21,
        ir_version=10,
        xs=np.float32(0.03),
        xz=np.int8(0),
        wq=np.arange(64, dtype=np.int8).reshape(8, 8),
        ws=np.full((4, 8), 0.01, np.float32),
    )
    with pytest.raises(BuildError, match="'weights' dequantizes int8 weights with one scale per block"):
        build_rtx(None, tmp_path / "m.engine", model=model)
    mended = to_proto(trtint8.mend(model).graph_model)
    result = build_rtx(None, tmp_path / "m.engine", model=mended)
    assert result.info.int8_layers == (1, 1)
