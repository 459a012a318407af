"""Quantization parameters compared, and nodes that take another's place."""

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto

from tests.trtint8.integer_models import Integers, operators
from tests.trtint8.interop.pairs_by_hand import Pairs
from trtint8.interop.pairs import (
    Parameters,
    agree,
    dequantizer_behind,
    input_at,
    insert_dequantize,
    quantized_type,
    read_parameters,
    replace_by_float,
    with_type_of,
)
from trtint8.models.model import load_model


def value(array):
    return None if array is None else ir.Value(name="c", const_value=ir.tensor(np.asarray(array)))


def parameters(scale, zero=None):
    return Parameters(value(np.float32(scale)), value(zero))


def test_parameters_agree_by_their_contents():
    assert agree(parameters(0.5), parameters(0.5))
    assert agree(parameters(0.5), parameters([0.5]))
    assert not agree(parameters(0.5), parameters(0.25))
    # A zero point that is not there is zero.
    assert agree(parameters(0.5), parameters(0.5, np.int8(0)))
    assert not agree(parameters(0.5), parameters(0.5, np.int8(3)))


def test_parameters_that_are_computed_agree_only_with_themselves():
    computed = ir.Value(name="computed")
    assert agree(Parameters(computed, None), Parameters(computed, None))
    assert not agree(Parameters(computed, None), Parameters(ir.Value(name="other"), None))
    assert not agree(Parameters(computed, None), parameters(0.5))


def graph_of(make):
    g = Integers()
    return ir.from_proto(g.proto({"x": ["N", 4]}, make(g), 2))


def test_parameters_of_quantizers_and_of_other_nodes():
    model = graph_of(lambda g: g.dequantize((made := g.quantize("x", 0.5))[0], made[1:]))
    quantize, dequantize = model.graph
    for node in (quantize, dequantize):
        found = read_parameters(node)
        assert found.scale.const_value.numpy() == np.float32(0.5)
        assert found.zero_point.const_value.numpy() == 120
    assert read_parameters(graph_of(lambda g: g.op("Relu", ["x"], "relu")).graph[0]) is None
    assert input_at(quantize, 2) is quantize.inputs[2] and input_at(quantize, 3) is None


def pair_without_zero_points(**attributes):
    node = ir.Node("", "QuantizeLinear", [ir.Value(name="x"), value(np.float32(0.5))], name="q")
    for name, number in attributes.items():
        node.attributes.add(ir.AttrInt64(name, number))
    return node, ir.Node("", "DequantizeLinear", [node.outputs[0], node.inputs[1]], name="dq")


@pytest.mark.parametrize(
    ("attributes", "wanted"),
    [({}, ir.DataType.UINT8), ({"output_dtype": TensorProto.INT8}, ir.DataType.INT8)],
)
def test_the_type_of_a_pair_without_zero_points(attributes, wanted):
    assert [quantized_type(node) for node in pair_without_zero_points(**attributes)] == [wanted] * 2


def test_the_type_of_a_pair_is_that_of_its_zero_point():
    model = graph_of(lambda g: g.dequantize((made := g.quantize("x", 0.5))[0], made[1:]))
    assert [quantized_type(node) for node in model.graph] == [ir.DataType.UINT8] * 2


def test_only_int8_data_needs_a_zero_point():
    graph = graph_of(lambda g: g.op("Relu", ["x"], "relu")).graph
    unsigned, signed = (
        pair_without_zero_points(output_dtype=dtype)[0].outputs[0]
        for dtype in (TensorProto.UINT8, TensorProto.INT8)
    )
    assert with_type_of(unsigned, parameters(0.5), graph, "x").zero_point is None
    found = with_type_of(signed, parameters(0.5), graph, "x").zero_point
    assert found is graph.initializers["x_zero_point"] and found.dtype == ir.DataType.INT8


def test_a_node_on_integers_becomes_a_float_node_between_pairs():
    def make(g):
        data, scale, zero = g.quantize("x", 0.5)
        return g.dequantize(g.op("Abs", [data], "old"), [scale, zero])

    model = graph_of(make)
    old = next(node for node in model.graph if node.name == "old")
    pair = read_parameters(model.graph[0])
    source = insert_dequantize(old, old.inputs[0], pair, "x")
    replace_by_float(old, ir.Node("", "Neg", [source], name="new"), [pair])
    proto = ir.to_proto(model)
    assert operators(proto) == [
        "QuantizeLinear",
        "DequantizeLinear",
        "Neg",
        "QuantizeLinear",
        "DequantizeLinear",
    ]
    by_name = {node.name: node for node in proto.graph.node}
    assert list(by_name["new"].input) == ["x_dequantized"]
    assert list(by_name["new"].output) == ["old_out_float"]
    # What read the old output reads the new one by the same name.
    assert by_name["old_out_quantize"].output[0] == "old_out"
    assert proto.graph.node[-1].input[0] == "old_out"


def test_the_dequantizer_behind_transposes():
    g = Pairs()
    weights = g.stored(np.ones((2, 3, 4), np.int8))
    once = g.op("Transpose", [weights], "once", perm=[1, 2, 0])
    twice = g.op("Transpose", [once], "twice", perm=[0, 2, 1])
    back = g.op("Transpose", [weights], "back")
    flat = g.constant(np.array([-1]))
    parts = [g.op("Reshape", [name, flat], f"flat_{name}") for name in (weights, twice, back)]
    y = g.op("Concat", parts, "y", axis=0)
    graph = load_model(g.model({"x": [1]}, y)).graph_model.graph
    values = {value.name: value for node in graph for value in node.outputs}
    node, axes = dequantizer_behind(values["w_out"])
    assert (node.name, axes) == ("w", None)
    node, axes = dequantizer_behind(values["twice_out"])
    assert (node.name, axes) == ("w", (1, 0, 2))
    assert dequantizer_behind(values["back_out"]) is None
    assert dequantizer_behind(graph.inputs[0]) is None
    assert dequantizer_behind(None) is None
