"""What TensorRT asks of Q/DQ pairs: a tiny graph per rule."""

import numpy as np
import pytest
from onnx import TensorProto

from calibrators.errors import ModelError
from tests.trtint8.interop.pairs_by_hand import Pairs, build_rule, concat_of, model_of, rules
from trtint8.interop.lint import lint
from trtint8.interop.mend import mend
from trtint8.models.model import load_model
from trtint8.models.serialization import to_proto


def test_a_model_as_tensorrt_wants_it():
    g = Pairs()
    assert rules(model_of(g, g.conv(g.quantize("x")))) == []


@pytest.mark.parametrize(
    "rule",
    [
        *("zero-point", "type", "bias-int32", "activation-per-channel", "scalar-constant"),
        *("pair-before-activation", "one-sided", "weight-axis", "concat-scales"),
        "kernel-shape",
    ],
)
def test_each_rule_finds_its_case(rule):
    found = rules(model_of(*build_rule(rule)))
    assert set(found) - {"steps"} == {rule}


def without_zero_points(element_type=None):
    """A convolution of an activation whose pair has no zero point."""
    g = Pairs()
    scale = g.constant(np.float32(0.1))
    attributes = {} if element_type is None else {"output_dtype": element_type}
    quantized = g.op("QuantizeLinear", ["x", scale], "q", **attributes)
    model = g.model({"x": ["N", 4, 8, 8]}, g.conv(g.op("DequantizeLinear", [quantized, scale], "dq")))
    model.opset_import[0].version, model.ir_version = 21, 10
    return load_model(model)


def test_a_quantizer_may_name_its_type_without_a_zero_point():
    assert rules(without_zero_points(TensorProto.INT8)) == []
    messages = {finding.message for finding in lint(without_zero_points()) if finding.rule == "type"}
    assert messages == {"it quantizes to uint8, and TensorRT takes int8"}


def test_of_zero_points_per_channel_one_that_is_not_0_is_told():
    g = Pairs()
    stored, scales, points = (
        g.constant(values)
        for values in (np.ones((4, 4, 1, 1), np.int8), np.full(4, 0.1, np.float32), np.int8([0, 3, 0, 1]))
    )
    weights = g.op("DequantizeLinear", [stored, scales, points], "w", axis=0)
    (finding,) = lint(model_of(g, g.conv(g.quantize("x"), weights)))
    assert finding.message == "its zero point is 3, and TensorRT takes only 0"


def test_a_grouped_transposed_convolution_wants_one_scale():
    g = Pairs()
    weights = g.stored(np.ones((4, 2, 1, 1), np.int8), [0.1, 0.2], "w", axis=1)
    (finding,) = lint(model_of(g, g.op("ConvTranspose", [g.quantize("x"), weights], "conv", group=2)))
    assert finding.message == "its weights have scales along axis 1 instead of one scale: it runs in float"


def test_a_quantizer_to_floats_is_not_mended():
    model = without_zero_points(TensorProto.FLOAT8E4M3FN)
    assert [(one.rule, one.node, one.mendable) for one in lint(model)] == [
        ("type", "q", False),
        ("type", "dq", False),
    ]
    with pytest.raises(ModelError, match="node 'q': it quantizes to float8e4m3fn, which is no integer type"):
        mend(model)


def test_a_pair_without_a_zero_point_is_mended_without_a_relu():
    mended = mend(without_zero_points(TensorProto.INT8))
    assert mended.unquantized.restored == []
    assert mended.unquantized.ranges == pytest.approx({"x": 12.7})


def test_one_scale_per_block_of_weights():
    g = Pairs()
    weights = g.stored(np.ones((8, 2), np.int8), np.ones((4, 2)), axis=0, block_size=2)
    proto = g.model({"x": ["N", 8]}, g.op("MatMul", [g.quantize("x"), weights], "product"))
    proto.opset_import[0].version, proto.ir_version = 21, 10
    (finding,) = lint(load_model(proto))
    assert (finding.rule, finding.mendable) == ("block-scales", True)
    assert finding.message.startswith("it has one scale per block of 2 weights")
    assert rules(load_model(to_proto(mend(load_model(proto)).graph_model))) == []


def test_a_concat_of_one_scale_is_as_tensorrt_wants_it():
    assert rules(model_of(*concat_of(0.1, 0.1))) == []


def test_an_add_may_have_two_scales():
    g = Pairs()
    x = g.quantize("x")
    first = g.quantize(g.conv(x, name="a"), 0.1, name="a_part")
    second = g.quantize(g.conv(x, name="b"), 0.3, name="b_part")
    out = g.conv(g.quantize(g.op("Add", [first, second], "add"), 0.3, name="sum"), name="last")
    assert rules(model_of(g, out)) == []


def product(weights, *, turned=None, activations=("N", 3, 4), shaped=True):
    """A MatMul of an activation and quantized weights, which may be transposed behind their pair."""
    g = Pairs()
    x, y = g.quantize("x"), weights(g)
    if turned is not None:
        y = g.op("Transpose", [y], "turn", perm=turned)
    model = g.model({"x": list(activations)}, g.op("MatMul", [x, y], "product"))
    if not shaped:
        del model.graph.value_info[:]
    return load_model(model)


def stored(*shape, axis=None):
    scales = 0.1 if axis is None else [0.1] * shape[axis]
    attributes = {} if axis is None else {"axis": axis}
    return lambda g: g.stored(np.ones(shape, np.int8), scales, **attributes)


@pytest.mark.parametrize(
    ("shape", "axis"), [((4, 5), 1), ((4, 5), -1), ((4, 5), None), ((1, 4, 5), 2), ((3, 4, 5), -1)]
)
@pytest.mark.parametrize("shaped", [True, False])
def test_weights_of_products_have_scales_along_their_last_axis(shape, axis, shaped):
    activations = ("N", 3, 4) if shape[0] != 3 else (3, 2, 4)
    assert rules(product(stored(*shape, axis=axis), activations=activations, shaped=shaped)) == []


def test_weights_of_products_with_scales_along_another_axis():
    (finding,) = lint(product(stored(4, 5, axis=0), shaped=False))
    assert finding.rule == "weight-axis"
    assert finding.message == "its weights have scales along axis 0 instead of 1: it runs in float"


def test_weights_that_are_transposed_behind_their_pair():
    assert rules(product(stored(5, 4, axis=0), turned=[1, 0])) == []
    (finding,) = lint(product(stored(5, 4, axis=1), turned=[1, 0]))
    assert finding.message == "its weights have scales along axis 0 instead of 1: it runs in float"


def test_weights_in_float_before_their_pair():
    scales = [0.1] * 5
    assert rules(product(lambda g: g.quantize(g.weights(4, 5), scales, name="w", axis=1))) == []


def test_weights_that_are_the_left_operand_of_a_product():
    """TensorRT for RTX runs such a product in INT8 with one scale only, as its layer lists say."""
    g = Pairs()
    weights = g.stored(np.ones((3, 4), np.int8), [0.1] * 4, axis=1)
    model = load_model(g.model({"x": [4, 5]}, g.op("MatMul", [weights, g.quantize("x")], "product")))
    (finding,) = lint(model)
    assert finding.rule == "weight-axis"
    assert finding.message == "its weights have scales along axis 1 instead of one scale: it runs in float"
    assert rules(load_model(to_proto(mend(model).graph_model))) == []
