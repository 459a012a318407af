import numpy as np
import onnx
import pytest

from calibrators.records import RecordError, parse, render, to_record
from tests.trtint8.builder.building import build as build_model
from tests.trtint8.engine.ifs import IfGraph, absolute, relu
from tests.trtint8.onnx_models import Graph, conv_relu_conv
from trtint8.engine.layers import Layer, LayerReport, parse_layers, total_weights_memory


def tensor(name, datatype):
    return (
        f"{{ Name: {name}, Dimensions: [-1,16,32,32], Strides: [16384,1,512,16], StrideOrder: [3,0,2,1], "
        f"Datatype: {datatype}, Format: (NHWC) Channel major format }}"
    )


def line(name, kind, inputs, constants, outputs, nodes, separator="\x1f"):
    def tensors(datatypes):
        return " " + ", ".join(tensor(f"t{i}", d) for i, d in enumerate(datatypes)) if datatypes else ""

    metadata = separator.join(f"[ONNX Layer: {node}]" for node in nodes)
    return (
        f"Name: {name}, LayerType: {kind}, Inputs: [{tensors(inputs)}], Constants: [{tensors(constants)}], "
        f"Outputs: [{tensors(outputs)}], TacticName: __myelin_CASK_STUB, StreamId: 0, Metadata: {metadata}"
    )


def message(*lines):
    return (
        "Layers:\n"
        + "\n".join(lines)
        + "\n\nI/O Tensors:\n Name: input, IOMode: Input\n\nEngine Metadata:\n Multi-Device: Disabled"
    )


# As one builder printed it, with the names of the model made unpleasant.
REAL = (
    "Layers:\n"
    "Name: __mye121_0_myl0_0, LayerType: shape_call, Inputs: [], Constants: [], Outputs: [], TacticName: , "
    "StreamId: 0, Metadata: \n"
    "Name: we]ird, Name: [ONNX Layer: x], LayerType: y_myl0_2, LayerType: correlation, Inputs: [ { Name: "
    "__mye218we]ird, Name: [ONNX Layer: x], LayerType: y_out_before_bias.1_7_myl0, Dimensions: [-1,4,16,16], "
    "Strides: [1024,1,64,4], StrideOrder: [3,0,2,1], Datatype: Int8, Format: (NHWC) Channel major format }], "
    "Constants: [ { Name: __mye497_dconst_myl0, Dimensions: [16,4,3,3], Strides: [36,1,12,4], StrideOrder: "
    "[3,0,2,1], Datatype: Int8, Format: (NHWC) Channel major format }, { Name: __mye313dconst_myl0, "
    "Dimensions: [1,16,1,1], Strides: [16,1,16,16], StrideOrder: [3,0,2,1], Datatype: Float, Format: (NHWC) "
    "Channel major format }], Outputs: [ { Name: __myln_k_arg__bb1_8_myl0, Dimensions: [-1,16,16,16], "
    "Strides: [4096,1,256,16], StrideOrder: [3,0,2,1], Datatype: Float, Format: (NHWC) Channel major "
    "format }], TacticName: __myelin_CASK_STUB, StreamId: 0, Metadata: "
    "[ONNX Layer: we]ird, Name: [ONNX Layer: x], LayerType: y]\x1f"
    "[ONNX Layer: q, [x]: a::b_dq]\x1f[ONNX Layer: dequantizelinear3]\n"
    "\nI/O Tensors:\n Name: x, IOMode: Input, DataType: Float, Dimensions: [-1,3,16,16]\n"
)


def test_parse_a_real_message():
    assert parse_layers(["Total Weights Memory: 5248 bytes", REAL]) == LayerReport(
        (
            Layer("__mye121_0_myl0_0", "shape_call", (), (), (), ()),
            Layer(
                "we]ird, Name: [ONNX Layer: x], LayerType: y_myl0_2",
                "correlation",
                ("Int8",),
                ("Int8", "Float"),
                ("Float",),
                ("we]ird, Name: [ONNX Layer: x], LayerType: y", "q, [x]: a::b_dq", "dequantizelinear3"),
                ((-1, 4, 16, 16),),
                ((16, 4, 3, 3), (1, 16, 1, 1)),
                ((-1, 16, 16, 16),),
            ),
        )
    )


@pytest.mark.parametrize(
    "messages", [[], ["Building engine"], ["Layers:\nName: a, Tactic: 1"], ["Layers:\n"]]
)
def test_no_list_of_layers(messages):
    assert parse_layers(messages) is None


def test_total_weights_memory():
    assert total_weights_memory(["a", "Total Weights Memory: 278212 bytes", "b"]) == 278212
    assert total_weights_memory(["Total Activation Memory: 5 bytes"]) is None


@pytest.mark.parametrize(
    ("kind", "name", "inputs", "constants", "outputs", "precision"),
    [
        ("correlation", "c", "Int8", "Int8 Float Float", "Float", "INT8"),
        ("correlation", "c", "Float", "Float Float Float", "Float", "FP32"),
        # Weights dequantized by a kernel of their own.
        ("correlation", "c", "Float Float", "Float Float", "Float", "FP32"),
        ("correlation", "c", "Half", "Half Half", "Half", "FP16"),
        ("correlation", "c", "BFloat16", "BFloat16 BFloat16", "BFloat16", "BF16"),
        ("gemm", "g", "Int8 Int8", "Float Float", "Float", "INT8"),
        ("gemm", "g", "Int8 Int8", "Float Float", "Int8", "INT8"),
        ("deconv", "d", "Float Float", "Float Float", "Float", "FP32"),
        # Both operands are constants, as queries that no input decides.
        ("gemm", "g", "", "Int8 Int8 Float Float", "Float", "INT8"),
        ("gemm", "g", "", "Half Half Float Float", "Half", "FP16"),
        ("gemm", "g", "", "Int8 Float Float", "Float", "FP32"),
        # A fused kernel that dequantizes both operands and multiplies in float.
        ("runtime_fusion", "__myl_CastMulCastMulCastFc", "Int8", "Int8 Float", "Float", "FP32"),
        ("runtime_fusion", "__myl_CastMulFc", "Int8 Float", "", "Float", "FP32"),
        ("kgen", "_gemm_mha_v2_myl0_6", "Int8 Int8 Int8", "", "Float", "INT8"),
        ("kgen", "_gemm_mha_v2_myl0_6", "Half Half Half", "", "Half", "FP16"),
        # The masks of attention stand anywhere among its operands.
        ("kgen", "_gemm_mha_v2_myl0_6", "Bool Bool Int8 Int8 Int8", "", "Int8", "INT8"),
        ("kgen", "_gemm_mha_v2_myl0_6", "Half Half Bool Half", "", "Half", "FP16"),
        ("kgen", "_gemm_mha_v2_myl0_6", "Int8 Int8 Half Int8", "", "Int8", "INT8"),
        ("kgen", "_gemm_mha_v2_myl0_6", "Int8 Int8 Half", "", "Half", "FP16"),
        # Values that no input decides are a constant.
        ("kgen", "_gemm_mha_v2_myl0_6", "Int8 Float Int8", "Int8", "Int8", "INT8"),
        ("kgen", "_gemm_mha_v2_myl0_6", "Float Float Float Float Float", "Int8 Int8 Int8", "Int8", "FP32"),
        ("kgen", "__myl_MulMinMaxRounCast", "Float", "Float", "Int8", "FP32"),
        ("kgen", "__myl_Tran", "Int8", "", "Int8", "INT8"),
        ("maxpool", "p", "Int8", "Float Float", "Int8", "INT8"),
        ("avgpool", "p", "Float", "", "Float", "FP32"),
        ("cast", "s", "Int64", "", "Int64", None),
        ("shape_call", "s", "", "", "", None),
    ],
)
def test_precision_of_a_layer(kind, name, inputs, constants, outputs, precision):
    types = (kinds.split() for kinds in (inputs, constants, outputs))
    report = parse_layers([message(line(name, kind, *types, ["node"]))])
    assert report.layers[0].precision == precision
    assert report.precision_of("node") == precision


RESIDUAL = message(
    line("__mye1", "shape_call", [], [], [], []),
    line("__myl_Quantize", "kgen", ["Float"], ["Float"], ["Int8"], ["q", "conv"]),
    line("conv_myl0_2", "correlation", ["Int8"], ["Int8", "Float"], ["Float"], ["conv", "dq"]),
    line("__myl_Bias", "kgen", ["Float"], ["Float"], ["Float"], ["conv", "relu"]),
    line("a", "correlation", ["Int8"], ["Int8"], ["Float"], ["split"]),
    line("b", "correlation", ["Float"], ["Float"], ["Float"], ["split"]),
    line("__myl_MulSum", "kgen", ["Half"], ["Half"], ["Half"], ["dot"], separator="\x1e"),
)


def test_precision_of_a_node():
    report = parse_layers([RESIDUAL])
    # Not the kernels around it that carry its name.
    assert report.precision_of("conv") == "INT8"
    # INT8 only where all of it is.
    assert report.precision_of("split") == "FP32"
    # A product so small that it became point-wise.
    assert report.precision_of("dot") == "FP16"
    assert report.precision_of("gone") is None


def test_fused_attention_that_adds_a_bias_does_not_compute_the_product_before_it():
    # As the builder lists a step of a decoder with a cache of keys and values.
    report = parse_layers(
        [
            message(
                line("qkv", "gemm", ["Int8"], ["Int8", "Float", "Float"], ["Float"], ["qkv"]),
                line("_gemv_mha_v1_myl0_6", "kgen", ["Float"] * 5, [], ["Int8"], ["ctx", "scores", "qkv"]),
            )
        ]
    )
    assert report.weighted_summary(["qkv", "scores", "ctx"]) == {"INT8": ["qkv"], "FP32": ["scores", "ctx"]}


def test_a_product_of_which_a_constant_is_left():
    # As the builder lists the values of DETR's first decoder layer, which are a product of zeros.
    report = parse_layers(
        [
            message(
                line("__myl_ReplMulAdd", "kgen", [], ["Float"] * 3, ["Int8"], ["zero", "bias"]),
                line("__myl_Sum", "kgen", ["Float"], ["Float"], ["Float"], ["small"]),
            )
        ]
    )
    assert report.is_folded("zero") and not report.is_folded("small") and not report.is_folded("gone")
    assert report.weighted_summary(["zero", "small", "gone"]) == {
        "folded": ["zero"],
        "FP32": ["small"],
        "unknown": ["gone"],
    }


def test_a_rewriting_of_the_builder_may_follow_the_last_node():
    # As in a 1x1 convolution that became a matrix product.
    product = line("__myl_FcAdd", "runtime_fusion", ["Half"], ["Half", "Half"], ["Half"], ["conv", "relu"])
    report = parse_layers([message(f"{product}__gemm_from_conv1x1")])
    assert report.layers[0].onnx_nodes == ("conv", "relu")


def test_summary_and_counts():
    report = parse_layers([RESIDUAL])
    assert report.weighted_summary(["split", "conv", "gone", "dot"]) == {
        "FP32": ["split"],
        "INT8": ["conv"],
        "unknown": ["gone"],
        "FP16": ["dot"],
    }
    assert report.counts() == {"FP32": 3, "INT8": 2, "FP16": 1}


def test_record_round_trip():
    report = parse_layers([REAL])
    assert to_record(parse(render(report)), LayerReport) == report
    with pytest.raises(RecordError, match=r"missing required field `kind` - at `\$\.layers\[0\]`"):
        to_record({"layers": [{"name": "a"}]}, LayerReport)


# What becomes of every kind of weighted node, by building it.


def conv(channels, kernel, shape, group=1):
    def make(g):
        dims = (kernel,) * (len(shape) - 1)
        weights = g.qdq(g.weights(channels, shape[0] // group, *dims), 0, channels)
        x = g.Conv("node", g.qdq("x"), weights, g.weights(channels), group=group)
        return {"x": ["N", *shape]}, g.Relu("relu", x)

    return make


def conv_transpose(g):
    weights = g.qdq(g.weights(16, 32, 2, 2), 1, 32)
    return {"x": ["N", 16, 8, 8]}, g.ConvTranspose("node", g.qdq("x"), weights, strides=[2, 2])


def gemm(transposed):
    def make(g):
        weights = g.weights(32, 64) if transposed else g.weights(64, 32)
        weights = g.qdq(weights, 0 if transposed else 1, 32)
        return {"x": ["N", 64]}, g.Gemm("node", g.qdq("x"), weights, g.weights(32), transB=transposed)

    return make


def matmul(axis, channels):
    def make(g):
        product = g.MatMul("node", g.qdq("x"), g.qdq(g.weights(64, 32), axis, channels))
        return {"x": ["N", 10, 64]}, g.Add("bias", product, g.weights(32))

    return make


def matmul_constant_first(g):
    return {"x": ["N", 64, 10]}, g.MatMul("node", g.qdq(g.weights(32, 64), 0, 32), g.qdq("x"))


def matmul_two_activations(g):
    return {"x": ["N", 16, 64], "y": ["N", 64, 16]}, g.MatMul("node", g.qdq("x"), g.qdq("y"))


def only_activation(g):
    return {"x": ["N", 64]}, g.Gemm("node", g.qdq("x"), g.weights(64, 32))


def only_weights(g):
    return {"x": ["N", 64]}, g.Gemm("node", "x", g.qdq(g.weights(64, 32), 1, 32))


def attention(g):
    def heads(tensor, name, order):
        shape = g.constant(np.array([0, 16, 4, 16], np.int64))
        return g.Transpose(f"{name}_t", g.Reshape(f"{name}_r", tensor, shape), perm=order)

    x = g.qdq("x")
    q, k, v = (
        g.qdq(heads(g.MatMul(name, x, g.qdq(g.weights(64, 64), 1, 64)), name, order))
        for name, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3]))
    )
    weights = g.Softmax("softmax", g.MatMul("scores", q, k), axis=-1)
    mixed = g.Transpose("join", g.MatMul("node", g.qdq(weights), v), perm=[0, 2, 1, 3])
    flat = g.Reshape("flat", mixed, g.constant(np.array([0, 16, 64], np.int64)))
    return {"x": ["N", 16, 64]}, g.MatMul("out", g.qdq(flat), g.qdq(g.weights(64, 64), 1, 64))


def build(rtx, make, quantized):
    g = Graph(quantized)
    model = g.model(*make(g))
    return build_model(model, rtx, compute_capabilities=["8.6"]).report


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "precision"),
    [
        pytest.param(conv(32, 3, (16, 16, 16)), "INT8", id="conv"),
        pytest.param(conv(5, 3, (3, 16, 16)), "INT8", id="conv of odd channels"),
        pytest.param(conv(32, 3, (32, 16, 16), group=4), "INT8", id="grouped conv"),
        pytest.param(conv(32, 3, (32, 16, 16), group=32), "INT8", id="depthwise conv"),
        pytest.param(conv(32, 3, (16, 64)), "INT8", id="conv1d"),
        pytest.param(conv(32, 3, (16, 8, 8, 8)), "INT8", id="conv3d"),
        pytest.param(conv_transpose, "FP32", id="conv transpose"),
        pytest.param(gemm(0), "INT8", id="gemm"),
        pytest.param(gemm(1), "INT8", id="gemm transB"),
        pytest.param(matmul(1, 32), "INT8", id="matmul per channel"),
        pytest.param(matmul(None, None), "INT8", id="matmul per tensor"),
        pytest.param(matmul(0, 64), "FP32", id="matmul along the wrong axis"),
        pytest.param(matmul_constant_first, "INT8", id="constant first operand"),
        pytest.param(matmul_two_activations, "INT8", id="two activations"),
        pytest.param(only_activation, "FP32", id="float weights"),
        pytest.param(only_weights, "FP32", id="float activation"),
        pytest.param(attention, "INT8", id="attention"),
    ],
)
def test_what_runs_in_int8(rtx, make, precision):
    assert build(rtx, make, quantized=True).precision_of("node") == precision
    assert build(rtx, make, quantized=False).precision_of("node") == "FP32"


def test_fused_attention_counts_for_both_products(rtx):
    report = build(rtx, attention, quantized=True)
    assert report.weighted_summary(["q", "k", "v", "scores", "node", "out"]) == {
        "INT8": ["q", "k", "v", "scores", "node", "out"]
    }


def test_products_of_constants_that_a_known_shape_expands(rtx):
    g = Graph()
    size = g.Concat("size", g.Shape("shape", "x", end=1), g.constant(np.array([16, 64])), axis=0)
    queries = g.Expand("queries", g.weights(1, 16, 64), size)
    projected = g.MatMul("projection", g.qdq(queries), g.qdq(g.weights(64, 64), 1, 64))
    keys = g.Transpose("keys", "x", perm=[0, 2, 1])
    model = g.model({"x": [2, 32, 64]}, g.MatMul("scores", g.qdq(projected), g.qdq(keys)))
    engine = build_model(model, rtx, compute_capabilities=["8.6"])
    (projection,) = (layer for layer in engine.report.layers if layer.name.startswith("projection"))
    assert projection.inputs == () and projection.constants[:2] == ("Int8", "Int8")
    assert engine.report.weighted_summary(["projection", "scores"]) == {"INT8": ["projection", "scores"]}


def test_a_decoder_step_with_a_cache(rtx):
    g = Graph()

    def heads(tensor, name):
        shape = g.constant(np.array([0, 0, 4, 16], np.int64))
        return g.Transpose(name, g.Reshape(f"{name}_r", tensor, shape), perm=[0, 2, 1, 3])

    product = g.MatMul("qkv", g.qdq("x"), g.qdq(g.weights(64, 192), 1, 192))
    g.nodes.append(
        onnx.helper.make_node(
            "Split",
            [g.Add("bias", product, g.weights(192)), g.constant(np.array([64, 64, 64]))],
            ["q", "k", "v"],
            axis=2,
            name="split",
        )
    )
    keys = g.Concat("keys", "past_keys", heads("k", "new_keys"), axis=2)
    values = g.Concat("values", "past_values", heads("v", "new_values"), axis=2)
    turned = g.Transpose("turned", keys, perm=[0, 1, 3, 2])
    weights = g.Softmax("softmax", g.MatMul("scores", heads("q", "queries"), turned), axis=-1)
    mixed = g.Transpose("join", g.MatMul("context", weights, values), perm=[0, 2, 1, 3])
    flat = g.Reshape("flat", mixed, g.constant(np.array([0, 0, 64], np.int64)))
    output = g.MatMul("out", g.qdq(flat), g.qdq(g.weights(64, 64), 1, 64))
    inputs = {"x": [2, 1, 64], "past_keys": [2, 4, 20, 16], "past_values": [2, 4, 20, 16]}
    model = g.model(inputs, output)
    engine = build_model(model, rtx, compute_capabilities=["8.6"])
    (fused,) = (layer for layer in engine.report.layers if layer.attention)
    assert fused.name.startswith("_gemv_mha_v1") and "qkv" in fused.onnx_nodes
    assert engine.report.weighted_summary(["qkv", "scores", "context", "out"]) == {
        "INT8": ["qkv", "out"],
        "FP32": ["scores", "context"],
    }


def test_unpleasant_node_names(rtx):
    names = ("fi]rst, LayerType: conv", "sec][ond: a::b")
    engine = build_model(conv_relu_conv(names=names), rtx)
    assert engine.report.weighted_summary(names) == {"INT8": list(names)}


# What becomes of nodes behind an If.


@pytest.mark.parametrize(("condition", "chosen", "other"), [(True, "then", "else"), (False, "else", "then")])
def test_nodes_behind_an_if_with_a_constant_condition(rtx, condition, chosen, other):
    g = IfGraph()
    x = g.conv("x", "first")
    x = g.choose(condition, "if", lambda b: b.conv(x, "then"), lambda b: b.conv(x, "else"))
    report = g.build(g.conv(x, "last"), rtx)
    assert {"first", f"{chosen} | if (If)", "last | if (If)"} <= {
        node for layer in report.layers for node in layer.onnx_nodes
    }
    assert report.weighted_summary(["first", "then", "else", "last"]) == {
        "INT8": [name for name in ("first", "then", "else", "last") if name != other],
        "unknown": [other],
    }


def test_nodes_behind_two_ifs(rtx):
    g = IfGraph()
    x = g.conv("x", "first")
    x = g.conv(g.choose(True, "if", relu(x), absolute(x)), "second")
    x = g.conv(g.choose(False, "if2", relu(x), absolute(x)), "third")
    report = g.build(x, rtx)
    assert any("third | if2 (If) | if (If)" in layer.onnx_nodes for layer in report.layers)
    assert report.weighted_summary(["first", "second", "third"]) == {"INT8": ["first", "second", "third"]}


def test_an_if_inside_an_if(rtx):
    def chosen(branch):
        y = branch.Relu("relu", x)
        return branch.conv(branch.choose(True, "inner", lambda b: b.conv(y, "deep"), absolute(y)), "behind")

    g = IfGraph()
    x = g.conv("x", "first")
    report = g.build(g.conv(g.choose(True, "outer", chosen, absolute(x)), "last"), rtx)
    assert any("deep | inner (If) | outer (If)" in layer.onnx_nodes for layer in report.layers)
    nodes = ["first", "deep", "behind", "last"]
    assert report.weighted_summary(nodes) == {"INT8": nodes}


def test_a_node_of_a_branch_does_not_count_for_one_of_its_name_before_the_if(rtx):
    g = IfGraph()
    x = g.conv("x", "same")
    x = g.choose(True, "if", lambda b: b.float_conv(x, "same"), absolute(x))
    report = g.build(g.conv(x, "last"), rtx)
    assert report.counts()["FP32"] > 0 and report.precision_of("same | if (If)") == "FP32"
    assert report.weighted_summary(["same", "last"]) == {"INT8": ["same", "last"]}


def test_a_node_of_a_branch_counts_for_one_of_its_name_behind_the_if(rtx):
    # TensorRT lists both as "same | if (If)".
    g = IfGraph()
    x = g.conv("x", "first")
    x = g.choose(True, "if", lambda b: b.float_conv(x, "same"), absolute(x))
    report = g.build(g.conv(x, "same"), rtx)
    assert report.weighted_summary(["first", "same"]) == {"INT8": ["first"], "FP32": ["same"]}


def test_a_node_of_a_branch_that_is_chosen_at_runtime_is_another_one(rtx):
    g = IfGraph()
    x = g.conv("x", "first")
    x = g.choose(True, "if", relu(x), absolute(x))
    positive = g.Greater("gt", g.ReduceSum("sum", x, keepdims=0), g.constant(np.float32(0)))
    x = g.choose(positive, "runtime", lambda b: b.float_conv(x, "same"), absolute(x))
    report = g.build(g.conv(x, "same"), rtx)
    inner = "same | then (then_branch) | runtime (If) | if (If)"
    assert report.precision_of(inner) == "FP32"
    assert report.weighted_summary(["first", "same"]) == {"INT8": ["first", "same"]}


def test_unpleasant_names_behind_an_if(rtx):
    g = IfGraph()
    x = g.conv("x", "a | b (If)")
    x = g.choose(True, "if (x)", relu(x), absolute(x))
    x = g.conv(g.float_conv(x, "c | d"), "c")
    report = g.build(g.conv(x, "e (f)"), rtx)
    assert report.weighted_summary(["a | b (If)", "c | d", "c", "e (f)"]) == {
        "INT8": ["a | b (If)", "c", "e (f)"],
        "FP32": ["c | d"],
    }


def test_a_product_of_zeros_behind_an_if(rtx):
    g = IfGraph()
    x = g.choose(True, "if", relu("x"), absolute("x"))
    x = g.ConstantOfShape("zeros", g.Shape("shape", x))
    for name in ("first", "second"):
        product = g.MatMul(name, g.qdq(x), g.qdq(g.weights(16, 16), 1, 16))
        x = g.Add(f"{name}_bias", product, g.weights(16))
    report = g.build(g.Add("sum", x, "x"), rtx)
    assert report.weighted_summary(["first", "second", "gone"]) == {
        "folded": ["first"],
        "INT8": ["second"],
        "unknown": ["gone"],
    }


def test_renamed():
    report = parse_layers(
        [
            message(
                line("before", "correlation", ["Int8"], ["Int8"], ["Float"], ["same", "relu | if (If)"]),
                line("inside", "correlation", ["Int8"], ["Int8"], ["Float"], ["same | if (If)"]),
                line("behind", "correlation", ["Int8"], ["Int8"], ["Float"], ["conv | b (If) | if (If)"]),
            )
        ]
    )
    assert [layer.onnx_nodes for layer in report.renamed(["same", "conv", "gone"]).layers] == [
        ("same", "relu | if (If)"),
        ("same | if (If)",),
        ("conv",),
    ]
    assert report.renamed([]) == report


def test_layers_of_the_first_profile():
    """Names as TensorRT for RTX 1.7 lists them for two optimization profiles."""
    names = (
        "__mye1153_0_myl0_0",
        "/conv/Conv_myl0_1",
        "__myl_MulAdd_myl0_2",
        "__mye1153_0_myl1_0",
        "/conv/Conv [profile 1]_myl1_1",
        "__myl_MulAdd_myl1_2",
    )
    layers = tuple(Layer(name, "kgen", (), (), (), ()) for name in names)
    assert LayerReport(layers).of_first_profile == LayerReport(layers[:3])
    # Several graphs of one profile, and names without the number of a graph, as other TensorRTs give them.
    assert LayerReport(layers[:4]).of_first_profile == LayerReport(layers[:4])
    marked = ("conv", "conv [profile 1]", "fc [profile 12]")
    others = tuple(Layer(name, "", (), (), (), ()) for name in marked)
    assert LayerReport(others).of_first_profile == LayerReport(others[:1])
