"""Which edges get Q/DQ pairs: one tiny graph for each rule."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from calibrators.errors import ModelError
from tests.trtint8.onnx_models import Shaped, normal, parsed, prepared_graph
from tests.trtint8.quantization.attention_models import FORMS, plain
from trtint8.quantization.placement import Edge, obstacle, place, placed_tensors
from trtint8.quantization.targets import TARGETS, target_named

IMAGES = {"x": ["N", 4, 8, 8]}


def placed(model, **options):
    return place(prepared_graph(model), **options)


def conv(g, source, name, channels=4):
    return g.Conv(name, source, g.weights(4, channels, 3, 3), pads=[1] * 4)


def edges_of(placement, node):
    return [edge for edge in placement.activations if edge.node == node]


def groups(placement):
    return [set(group) for group in placement.shared]


@pytest.mark.parametrize(
    ("operator", "shape", "attributes", "inputs", "axis"),
    [
        ("Conv", (5, 4, 3, 3), {}, IMAGES, 0),
        ("Conv", (8, 2, 3, 3), {"group": 2}, IMAGES, 0),
        ("ConvTranspose", (4, 5, 3, 3), {}, IMAGES, 1),
        ("ConvTranspose", (4, 2, 3, 3), {"group": 2}, IMAGES, None),
        ("Gemm", (4, 5), {"transB": 0}, {"x": ["N", 4]}, 1),
        ("Gemm", (5, 4), {"transB": 1}, {"x": ["N", 4]}, 0),
        ("MatMul", (4, 5), {}, {"x": ["N", 4]}, 1),
        ("MatMul", (2, 4, 8), {}, {"x": [2, 3, 4]}, None),
    ],
)
def test_weighted_operators(operator, shape, attributes, inputs, axis):
    g = Shaped()
    y = g.op(operator, ["x", g.weights(*shape)], "op", **attributes)
    placement = placed(g.model(inputs, y))
    assert placement.activations == (Edge("op", 0, "x"),)
    assert placement.weights == (Edge("op", 1, "constant0", axis),)
    assert placement.shared == ()
    (decision,) = placement.decisions
    assert (decision.node, decision.operator, decision.quantized) == ("op", operator, True)
    assert placement.quantized_nodes == ("op",)


def test_matmul_of_two_activations_has_a_scale_each():
    g = Shaped()
    placement = placed(g.model({"x": ["N", 4, 8], "z": ["N", 8, 4]}, g.MatMul("op", "x", "z")))
    assert placement.activations == (Edge("op", 0, "x"), Edge("op", 1, "z"))
    assert (placement.weights, placement.shared) == ((), ())


def test_no_pair_between_conv_and_relu():
    g = Shaped()
    y = conv(g, g.Relu("relu", conv(g, "x", "a")), "b")
    assert placed(g.model(IMAGES, y)).activations == (Edge("a", 0, "x"), Edge("b", 0, "relu_out"))


def test_residual_add_of_a_conv_and_a_skip():
    g = Shaped()
    placement = placed(g.model(IMAGES, g.Add("add", conv(g, "x", "a"), "x")))
    assert edges_of(placement, "add") == [Edge("add", 1, "x")]
    assert [(d.node, d.quantized) for d in placement.decisions] == [("a", True), ("add", True)]


def test_residual_add_of_two_convs_quantizes_the_earlier_ones_output():
    g = Shaped()
    first, second = conv(g, "x", "a"), conv(g, "x", "b")
    placement = placed(g.model(IMAGES, g.Add("add", second, first)))
    assert edges_of(placement, "add") == [Edge("add", 1, "a_out")]


def test_residual_add_that_broadcasts_gets_no_pair():
    g = Shaped()
    model = g.model(IMAGES | {"z": ["N", 4, 1, 1]}, g.Add("add", conv(g, "x", "a"), "z"))
    placement = placed(model)
    assert edges_of(placement, "add") == []
    assert [decision.node for decision in placement.decisions] == ["a"]


@pytest.mark.parametrize("float_reader", [False, True])
def test_concat_shares_one_scale_when_all_readers_are_quantized(float_reader):
    g = Shaped()
    joined = g.Concat("concat", conv(g, "x", "a"), g.Relu("relu", "x"), axis=1)
    y = conv(g, joined, "b", channels=8)
    if float_reader:
        y = g.Add("add", y, g.ReduceMean("mean", joined))
    placement = placed(g.model(IMAGES, y))
    if float_reader:
        assert edges_of(placement, "concat") == [] and placement.shared == ()
    else:
        assert edges_of(placement, "concat") == [Edge("concat", 0, "a_out"), Edge("concat", 1, "relu_out")]
        assert groups(placement) == [{"a_out", "relu_out", "concat_out"}]


def chain(between, quantized_source=True):
    g = Shaped()
    moved = between(g, "x")
    y = conv(g, moved, "b")
    side = conv(g, "x", "a") if quantized_source else g.Relu("a", "x")
    model = g.model(IMAGES, y)
    model.graph.output.append(onnx.helper.make_tensor_value_info(side, 1, [None] * 4))
    return placed(model)


def pool(g, x):
    return g.MaxPool("pool", x, kernel_shape=[2, 2])


def pool_and_slice(g, x):
    limits = [g.constant(np.array([value])) for value in (0, 4, 2)]
    return g.Slice("slice", pool(g, x), *limits)


def pad(value):
    def build(g, x):
        pads, constant = g.constant(np.array([0, 0, 1, 1] * 2)), g.constant(np.float32(value))
        return g.Pad("pad", x, pads, constant)

    return build


def moved(operator, *others, **attributes):
    def build(g, x):
        return g.op(operator, [x, *map(g.constant, others)], "move", **attributes)

    return build


@pytest.mark.parametrize(
    ("between", "tensor"),
    [
        (pool, "pool_out"),
        (pool_and_slice, "slice_out"),
        (pad(0), "pad_out"),
        (moved("ReverseSequence", np.array([3]), batch_axis=0, time_axis=1), "move_out"),
        (moved("GatherElements", np.zeros((1, 4, 8, 8), np.int64), axis=3), "move_out"),
        (moved("Compress", np.array([True] * 6), axis=2), "move_out"),
    ],
)
def test_operators_that_round_nothing_share_the_scale_of_their_source(between, tensor):
    assert groups(chain(between)) == [{"x", tensor}]
    assert chain(between, quantized_source=False).shared == ()


@pytest.mark.parametrize(
    "between",
    [moved("ReduceMax", axes=[2], keepdims=1), moved("GridSample", np.zeros((1, 8, 8, 2), np.float32))],
)
def test_what_no_kernel_computes_in_int8_has_its_own_scale(between):
    assert chain(between).shared == ()


def test_padding_with_another_value_has_its_own_scale():
    assert chain(pad(1)).shared == ()


def three_convs(batch="N"):
    g = Shaped()
    y = conv(g, conv(g, conv(g, "x", "body_1"), "body_2"), "head")
    return g.model({"x": [batch, 4, 8, 8]}, y)


@pytest.mark.parametrize(
    ("keep", "left"),
    [(["head"], ("body_1", "body_2")), (["body_*"], ("head",)), (["body_?", "head"], ())],
)
def test_keep_float(keep, left):
    placement = placed(three_convs(), keep_float=keep)
    assert placement.quantized_nodes == left
    assert {edge.node for edge in (*placement.activations, *placement.weights)} == set(left)
    assert all("kept in float by" in d.reason for d in placement.decisions if not d.quantized)


def test_keep_float_without_a_match_is_named():
    with pytest.raises(ModelError, match=r"'tail_\*' matches no node"):
        placed(three_convs(), keep_float=["head", "tail_*"])


@pytest.mark.parametrize("patterns", [{}, {"keep_float": ["*"]}, {"keep_int8": ["*"]}])
def test_model_without_weighted_nodes(patterns):
    g = Shaped()
    with pytest.raises(ModelError, match="nothing to run in INT8"):
        placed(g.model(IMAGES, g.Relu("relu", "x")), **patterns)


def test_a_first_state_of_zeros_is_changed_by_no_sample():
    g = Shaped()
    rows = g.Shape("rows", "x", end=1)
    shape = g.Concat("shape", rows, g.constant(np.array([8])), axis=0)
    state = g.MatMul("hidden", g.ConstantOfShape("state", shape), g.weights(8, 8))
    total = g.Add("sum", g.MatMul("layer", "x", g.weights(8, 8)), state)
    assert placed(g.model({"x": ["N", 8]}, g.Relu("relu", total))).unchanging == {"state_out"}


def test_a_model_of_recurrent_operators_alone_is_named_as_such():
    g = Shaped()
    g.GRU("cell", "x", g.weights(1, 12, 4), g.weights(1, 12, 4), hidden_size=4)
    with pytest.raises(
        ModelError,
        match=r"no Conv, ConvTranspose, Gemm or MatMul node, so there is nothing to run in INT8; GRU 'cell' "
        r"stays in float: TensorRT has no INT8 kernel for recurrent operators",
    ):
        placed(g.model({"x": [5, "N", 4]}, "cell_out"))


def test_a_deformable_convolution_is_a_layer_in_float():
    g = Shaped()
    x = g.Conv("conv", "x", g.weights(8, 4, 3, 3), pads=[1] * 4)
    offset = g.Conv("offset", "x", g.weights(18, 4, 3, 3), pads=[1] * 4)
    x = g.DeformConv("deformed", x, g.weights(8, 8, 3, 3), offset, pads=[1] * 4)
    model = g.model(IMAGES, g.Conv("last", x, g.weights(8, 8, 1, 1)))
    model.opset_import[0].version = 19
    placement = placed(model)
    assert placement.multiplying == 4 and set(placement.quantized_nodes) == {"conv", "offset", "last"}
    assert dict(placement.float_nodes)["deformed"].startswith("TensorRT has no INT8 kernel")


def test_a_model_of_integer_operators_is_named_as_such():
    g = Shaped()
    weights = g.constant(np.ones((4, 4), np.uint8))
    product = g.MatMulInteger("product", "x", weights)
    with pytest.raises(
        ModelError, match=r"in integers already, as in MatMulInteger 'product'; .* lint MODEL"
    ):
        placed(g.model({"x": ["N", 4]}, g.Cast("y", product, to=1)))


def test_layers_within_branches_are_not_found():
    """As in networks that hold a variant for every sampling rate."""
    branches = ", ".join(
        f"{kind}_branch = b () => (float[N, 4] {kind}) {{ {kind} = MatMul (x, w) }}"
        for kind in ("then", "else")
    )
    body = (
        f"total = ReduceSum <keepdims = 0> (x) fast = Greater (total, zero) [rate] y = If (fast) <{branches}>"
    )
    model = parsed("float[N, 4] x", "float[N, 4] y", body, w=normal(4, 4), zero=np.float32(0))
    with pytest.raises(ModelError, match="the model's layers are in the graphs of If 'rate', which stay as"):
        placed(model)


def test_batch_size_does_not_change_the_placement():
    assert placed(three_convs("N")) == placed(three_convs(1)) == placed(three_convs(16))


def test_attention_of_open_length_is_quantized_where_the_largest_is_known():
    graph_model = prepared_graph(plain(length="length"))
    quantized = {
        length: place(graph_model, largest={"x": (8, length, 32)}).quantized_nodes for length in (512, 513)
    }
    assert set(quantized[512]) - set(quantized[513]) == {"scores", "context"}
    assert place(graph_model).quantized_nodes == quantized[513]


@pytest.mark.parametrize("form", [plain, lambda: plain(length="length"), FORMS["at_the_end"]])
def test_placed_tensors_are_those_of_all_targets(form):
    graph_model = prepared_graph(form())
    tensors = set(placed_tensors(graph_model))
    largest = {"x": (1, 16, 32)}
    needed = {name for target in TARGETS.values() for name in place(graph_model, (), target, largest).tensors}
    assert needed <= tensors
    assert {"softmax_out", "q_heads_out"} <= tensors


def residual_blocks():
    """Sums of two convolutions, and of a convolution and a skip that a Concat reads as well."""
    g = Shaped()
    x = g.Conv("first", "x", g.weights(4, 3, 3, 3), pads=[1, 1, 1, 1])
    for name in ("a", "b"):
        left = g.Conv(f"{name}_left", x, g.weights(4, 4, 3, 3), pads=[1, 1, 1, 1])
        right = g.Conv(f"{name}_right", x, g.weights(4, 4, 1, 1))
        x = g.Relu(f"{name}_relu", g.Add(f"{name}_sum", left, right))
    skip = g.Conv("c_conv", x, g.weights(4, 4, 1, 1))
    x = g.Concat("join", x, g.Add("c_sum", skip, x), axis=1)
    return g.model({"x": ["N", 3, 6, 6]}, g.Conv("last", x, g.weights(2, 8, 1, 1)))


@pytest.mark.parametrize("name", ["residual blocks", *FORMS])
def test_ranges_suffice_whatever_stays_in_float(name):
    made = residual_blocks() if name == "residual blocks" else FORMS[name]()
    model = prepared_graph(made)
    known = set(placed_tensors(model))
    nodes = [decision.node for decision in place(model).decisions]
    random = np.random.default_rng(0)
    for target in TARGETS.values():
        for _ in range(20):
            kept = [node for node in nodes if random.random() < random.random()]
            try:
                placement = place(model, kept, target)
            except ModelError:  # the target decides on fewer nodes, or nothing is left
                continue
            assert set(placement.tensors) <= known


def test_the_output_of_an_attention_shares_its_scale_with_what_moves_it():
    placement = placed(FORMS["plain"](), keep_float=["out_linear"])
    assert edges_of(placement, "turn") == [Edge("turn", 0, "context_out")]
    assert edges_of(placed(FORMS["plain"]()), "turn") == []


def test_the_reader_of_an_attention_may_be_kept_in_float():
    placement = placed(FORMS["at_the_end"](), keep_float=["turn"])
    assert {"scores", "context"}.isdisjoint(placement.quantized_nodes)


def test_a_concat_whose_size_is_read_copies_int8():
    g = Shaped()
    joined = g.Concat("concat", conv(g, "x", "a"), conv(g, "x", "b"), axis=1)
    sizes = g.Cast("sizes", g.Shape("shape", joined), to=1)
    total = g.ReduceSum("total", sizes, keepdims=0)
    placement = placed(g.model(IMAGES, g.Mul("mul", conv(g, joined, "c", channels=8), total)))
    assert len(edges_of(placement, "concat")) == 2


@pytest.mark.parametrize("also_read", [False, True])
@pytest.mark.parametrize(
    "moves", [[], ["Transpose"], ["Split"], ["Transpose", "Split"], ["Transpose", "Flatten"]]
)
def test_a_concat_that_is_moved_to_an_output_stays_in_float(moves, also_read):
    """Boxes in pixels and scores between 0 and 1, which one scale would round to nothing."""
    g = Shaped()
    moved = g.Concat("concat", conv(g, "x", "a"), conv(g, "x", "b"), axis=1)
    outputs = []
    if also_read:
        outputs.append(conv(g, moved, "c", channels=8))
    for move in moves:
        if move == "Split":
            halves = g.constant(np.array([4, 4]))
            g.nodes.append(
                helper.make_node("Split", [moved, halves], ["boxes", "scores"], name="split", axis=1)
            )
            moved = "boxes"
            outputs.append("scores")
        else:
            moved = g.op(move, [moved], move, **({"perm": [0, 1, 3, 2]} if move == "Transpose" else {}))
    model = g.model(IMAGES, moved)
    model.graph.output.extend(
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs
    )
    assert edges_of(placed(onnx.shape_inference.infer_shapes(model)), "concat") == []


def reason(target, operator, x, *weights, **attributes):
    """Why an operator on ``x`` with constant weights stays in float on a target."""
    g = Shaped()
    inputs = ["x", *(g.weights(*shape) for shape in weights)]
    if not weights:
        inputs.append("z")
    y = g.op(operator, inputs, "op", **attributes)
    model = g.model({"x": x} | ({} if weights else {"z": [*x[:-2], x[-1], 1]}), y)
    (node,) = (node for node in prepared_graph(model).graph if node.name == "op")
    return obstacle(node, target_named(target))


IMAGE, DEEP = [1, 32, 8, 8], [1, 32, 4, 8, 8]


@pytest.mark.parametrize(
    ("target", "found", "grouped"),
    [
        ("tensorrt", None, None),
        ("tensorrt-8.6", None, "TensorRT 8.6 refuses grouped ones in INT8"),
        ("tensorrt-11", None, None),
        ("rtx", *["TensorRT for RTX has no INT8 kernel for it"] * 2),
        ("dla", None, "the DLA has no grouped ones"),
    ],
)
def test_conv_transpose(target, found, grouped):
    assert reason(target, "ConvTranspose", IMAGE, (32, 16, 2, 2)) == found
    assert reason(target, "ConvTranspose", IMAGE, (32, 8, 2, 2), group=2) == grouped


def few(inputs, outputs, per_group=""):
    return f"with {inputs} input channels{per_group} and {outputs} output channels, INT8 gains nothing"


@pytest.mark.parametrize(
    ("weights", "groups", "first", "found"),
    [
        ((32, 32, 3, 3), 1, False, None),
        ((16, 4, 3, 3), 1, False, None),
        ((15, 4, 3, 3), 1, False, few(4, 15)),
        ((8, 4, 3, 3), 1, False, few(4, 8)),
        ((8, 4, 3, 3), 1, True, None),
        ((16, 4, 3, 1), 1, False, few(4, 16)),
        ((32, 1, 3, 3), 32, False, None),
        ((32, 1, 1, 1), 32, False, few(1, 32, " per group")),
        ((28, 1, 3, 3), 28, False, few(1, 28, " per group")),
    ],
)
def test_convolutions_of_few_channels(weights, groups, first, found):
    g = Shaped()
    source = "x" if first else g.Relu("relu", "x")
    y = g.Conv("op", source, g.weights(*weights), group=groups)
    model = g.model({"x": [1, weights[1] * groups, 8, 8]}, y)
    (node,) = (node for node in prepared_graph(model).graph if node.name == "op")
    assert obstacle(node, target_named("tensorrt-10")) == found
    assert obstacle(node, target_named("rtx")) is None


VECTOR = "it is a product of a matrix and a vector, which INT8 does not make faster"


@pytest.mark.parametrize(
    ("operator", "x", "weights", "attributes", "found"),
    [
        ("MatMul", ["N", 32], (32, 64), {}, None),
        ("MatMul", [1, 32], (32, 64), {}, VECTOR),
        ("MatMul", [2, 1, 32], (32, 64), {}, None),
        ("Gemm", ["N", 32], (10, 32), {"transB": 1}, "with 10 columns, INT8 gains nothing"),
        ("Gemm", ["N", 8], (64, 8), {"transB": 1}, "with 8 products per element, INT8 gains nothing"),
        ("Gemm", [32, 1], (32, 64), {"transA": 1}, VECTOR),
    ],
)
def test_small_products(operator, x, weights, attributes, found):
    assert reason("tensorrt-11", operator, x, weights, **attributes) == found
    assert reason("rtx", operator, x, weights, **attributes) is None


def test_a_product_of_activations_with_a_vector():
    assert reason("tensorrt-10", "MatMul", [2, 32, 64]) == VECTOR


@pytest.mark.parametrize(
    ("operator", "x", "weights", "attributes", "found"),
    [
        ("Conv", IMAGE, (32, 32, 3, 3), {"strides": [8, 8], "pads": [1] * 4}, None),
        ("Conv", IMAGE, (32, 32, 3, 3), {"strides": [9, 9]}, "its stride is 9, and the DLA's largest is 8"),
        ("Conv", DEEP, (32, 32, 3, 3, 3), {}, "it has 3 spatial dimensions, and the DLA takes 2"),
        ("ConvTranspose", IMAGE, (32, 16, 33, 1), {}, "its kernel is 33 large, and the DLA's largest is 32"),
        ("Gemm", ["N", 32], (32, 64), {}, "the DLA has no matrix product, so it runs on the GPU"),
        ("MatMul", ["N", 32], (32, 64), {}, "the DLA has no matrix product, so it runs on the GPU"),
    ],
)
def test_dla(operator, x, weights, attributes, found):
    assert reason("dla", operator, x, weights, **attributes) == found


def test_operators_that_get_no_pairs():
    g = Shaped()
    y = g.Einsum("op", "x", g.weights(8, 4), equation="ij,jk->i")
    (node,) = prepared_graph(g.model({"x": ["N", 8]}, y)).graph
    found = "it is no product of two matrices, so it cannot become a MatMul, which would be quantized"
    assert obstacle(node, target_named("rtx")) == found


def test_operands_of_another_kind():
    assert reason("tensorrt", "MatMul", ["N", 8], (8,)) == "an operand is a vector"
    g = Shaped()
    y = g.Conv("op", "x", g.Mul("twice", "z", g.constant(np.float32(2))))
    model = prepared_graph(g.model({"x": IMAGE, "z": [16, 32, 3, 3]}, y))
    found = "its weights are computed at run time, and TensorRT's INT8 convolutions need constant ones"
    assert obstacle(model.graph.node(1), target_named("tensorrt")) == found
