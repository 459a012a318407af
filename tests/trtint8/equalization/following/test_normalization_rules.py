"""Normalizations, whose readers may share channels."""

import onnx
import pytest
from onnx import TensorProto, helper

from tests.trtint8.equalization.transformers import (
    NORMS,
    SIZE,
    TOKENS,
    Blocks,
    check,
    samples,
)
from tests.trtint8.tuning.networks import prepared
from trtint8.equalization.forms import find_forms


@pytest.mark.parametrize("norm", NORMS)
def test_a_norm_and_all_layers_that_read_it(norm):
    g = Blocks()
    x = getattr(g, norm)("x", "norm")
    x = g.op("Add", [g.linear(x, SIZE, SIZE, "a"), g.linear(x, SIZE, SIZE, "b", bias=False)], "sum")
    model = g.finish(x)
    channels = check(model, samples(), SIZE)
    (form,) = find_forms(channels)
    assert [reading.node for reading in form.readings] == ["a", "b"]
    assert channels.copies == ()


@pytest.mark.parametrize("norm", NORMS)
def test_a_residual_after_the_norm_reads_it_unchanged(norm):
    g = Blocks()
    x = getattr(g, norm)("x", "norm")
    model = g.finish(g.op("Add", [x, g.linear(x, SIZE, SIZE, "layer")], "sum"))
    channels = check(model, samples(), SIZE)
    (copy,) = channels.copies
    assert copy.readers == ("layer",)
    assert [name.removesuffix("_equalized") for name in copy.copies] == list(copy.nodes)
    assert len(copy.nodes) == (2 if norm == "layer_norm_by_parts" else 1)


@pytest.mark.parametrize("parts", ["halves", "slices", "gathers"])
@pytest.mark.parametrize("norm", [*NORMS, "scaled"])
def test_a_norm_of_which_weights_read_a_part_keeps_its_values(norm, parts):
    """Nothing divides the channels, so the weights must not be multiplied."""
    g = Blocks()
    x = getattr(g, norm)("x", "norm")
    read, other = getattr(g, parts)(x, "part")
    layer = g.linear(read, SIZE // 2, SIZE // 2, "layer")
    product = g.op("Mul", [layer, g.op("Sigmoid", [other], "gate")], "product")
    channels = check(g.finish(product), samples(), 0)
    assert find_forms(channels) == []
    (reason,) = set(channels.skipped.values()) - {"'product_out' is an output of the model"}
    assert "gate" in reason or "passes only a part of" in reason


def test_a_norm_of_which_weights_read_a_part_is_divided_for_others():
    g = Blocks()
    x = g.layer_norm("x", "norm")
    read, other = g.halves(x, "part")
    parts = [g.linear(read, SIZE // 2, SIZE, "half"), g.op("Sigmoid", [other], "gate")]
    x = g.op("Concat", [*parts, g.linear(x, SIZE, SIZE, "whole")], "joined", axis=2)
    channels = check(g.finish(x), samples(), SIZE)
    (form,) = find_forms(channels)
    assert form.producers == ("norm",) and form.readers == ("whole",)
    assert channels.copies[0].readers == ("whole",)


def test_a_norm_that_is_an_output_of_the_model_is_copied():
    g = Blocks()
    norm = g.layer_norm("x", "norm")
    model = g.model({"x": [2, TOKENS, SIZE]}, g.linear(norm, SIZE, SIZE, "layer"))
    model.graph.output.append(helper.make_tensor_value_info(norm, TensorProto.FLOAT, [2, TOKENS, SIZE]))
    channels = check(prepared(model), samples(), SIZE)
    assert channels.copies[0].nodes == ("norm",)


@pytest.mark.skipif(onnx.defs.onnx_opset_version() < 23, reason="onnx is older than RMSNormalization")
@pytest.mark.parametrize("operator", ["RMSNormalization", "LayerNormalization"])
def test_norms_of_opset_23(operator):
    g = Blocks()
    constants = [g.vector(SIZE)] + ([g.vector(SIZE)] if operator == "LayerNormalization" else [])
    x = g.op(operator, ["x", *constants], "norm")
    made = g.model({"x": [2, TOKENS, SIZE]}, g.op("Add", [x, g.linear(x, SIZE, SIZE, "layer")], "sum"))
    made.opset_import[0].version, made.ir_version = 23, 11
    check(prepared(onnx.shape_inference.infer_shapes(made)), samples(), SIZE)
