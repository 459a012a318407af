"""Which layers would be slower in INT8; that compiled engines agree is shown with TensorRT for RTX."""

import itertools
import random

import numpy as np
import pytest
from onnx import TensorProto, helper

import trtint8
from tests.sampling import sample
from tests.trtint8.onnx_models import Shaped, normal, prepared_graph
from trtint8.models.model import load_model, prepare
from trtint8.quantization.attention import find_attentions
from trtint8.quantization.placement import place
from trtint8.quantization.slower import BinaryChoice, KernelGraph
from trtint8.quantization.targets import TARGETS, KernelCosts


def conv(g, source, name, inputs, outputs, size=3, **attributes):
    weights = g.weights(outputs, inputs // attributes.get("group", 1), size, size)
    made = g.Conv(name, source, weights, pads=[size // 2] * 4, **attributes)
    return g.Relu(f"{name}_relu", made)


def thin():
    """Convolutions of few channels, of which memory is the limit."""
    g = Shaped()
    y = conv(g, conv(g, conv(g, "x", "a", 16, 16), "b", 16, 16), "c", 16, 16)
    return g.model({"x": ["N", 16, 32, 32]}, y)


def wide():
    """Convolutions of many channels, of which arithmetic is the limit."""
    g = Shaped()
    y = conv(g, conv(g, "x", "a", 256, 256), "b", 256, 256)
    return g.model({"x": ["N", 256, 16, 16]}, y)


def separable():
    """A depthwise convolution between two that mix channels."""
    g = Shaped()
    y = conv(g, conv(g, "x", "a", 16, 96, 1), "deep", 96, 96, group=96)
    return g.model({"x": ["N", 16, 32, 32]}, conv(g, y, "b", 96, 16, 1))


def squeezed():
    """A convolution whose input is much larger than its output, between generated kernels."""
    g = Shaped()
    y = conv(g, g.Erf("before", "x"), "a", 256, 16, 1)
    return g.model({"x": ["N", 256, 16, 16]}, g.Softmax("after", y))


def linear():
    """Layers of four dimensions between generated kernels, which take rounding and scaling in."""
    g = Shaped()
    y = g.Erf("f", g.MatMul("a", g.Erf("e", "x"), g.weights(64, 256)))
    y = g.Erf("g", g.MatMul("b", y, g.weights(256, 64)))
    return g.model({"x": ["N", 8, 16, 64]}, y)


def pooled():
    """A convolution with a large input before an average pooling, which is a kernel of its own."""
    g = Shaped()
    y = conv(g, g.Erf("before", "x"), "a", 256, 128, 1)
    made = g.Conv("b", y, g.weights(128, 128, 1, 1))
    return g.model({"x": ["N", 256, 8, 8]}, g.AveragePool("pool", made, kernel_shape=[2, 2]))


def summed():
    """A convolution that adds two branches, as in RepVGG: in FP16 it is one kernel."""
    g = Shaped()
    y, names = g.Erf("before", "x"), ("one", "three")
    first, second = (
        g.Conv(name, y, g.weights(48, 48, size, size), pads=[size // 2] * 4)
        for name, size in zip(names, (1, 3), strict=True)
    )
    y = g.Relu("relu", g.Add("total", g.Add("sum", first, second), y))
    return g.model({"x": ["N", 48, 24, 24]}, conv(g, y, "last", 48, 48))


def attended(size=32, heads=4, channels=128):
    """An attention without biases, as in T5: in FP16 it reads what the products before it write."""
    g = Shaped()
    y = g.Erf("before", "x")
    shape = g.constant(np.array([0, size, heads, channels // heads]))
    made = [
        g.Transpose(
            f"{n}_turned",
            g.Reshape(f"{n}_heads", g.MatMul(n, y, g.weights(channels, channels)), shape),
            perm=[0, 2, 3, 1] if n == "k" else [0, 2, 1, 3],
        )
        for n in "qkv"
    ]
    soft = g.Softmax("softmax", g.MatMul("scores", *made[:2]), axis=-1)
    y = g.Transpose("back", g.MatMul("context", soft, made[2]), perm=[0, 2, 1, 3])
    y = g.Reshape("joined", y, g.constant(np.array([0, size, channels])))
    y = g.MatMul("out", y, g.weights(channels, channels))
    return g.model({"x": ["N", size, channels]}, g.Erf("after", y))


CASES = {
    pooled: {"a", "b"},
    summed: {"one", "three", "last"},
    attended: {"q", "k", "v", "scores", "context", "out"},
    thin: {"a", "b", "c"},
    wide: set(),
    separable: {"a", "deep", "b"},
    squeezed: set(),
    linear: set(),
}


def placed(form, **options):
    model = prepared_graph(form())
    return place(model, target=TARGETS["rtx"], **{"float16": True} | options)


@pytest.mark.parametrize("form", CASES)
def test_what_stays_in_fp16(form):
    found = placed(form)
    assert set(found.slower) == CASES[form]
    assert not set(found.slower) & set(found.quantized_nodes)


@pytest.mark.slow
@pytest.mark.parametrize("form", sample(CASES, list(CASES)[::3]))
def test_compiled_engines_agree(rtx, form):
    """The choice takes no longer than FP16, and no longer than all layers in INT8."""
    model = form()
    sizes = [size.dim_value or 8 for size in model.graph.input[0].type.tensor_type.shape.dim]
    samples = normal(*sizes)
    table = trtint8.calibrate(model, samples)
    options = {"target": "rtx"}
    chosen = trtint8.audit(model, table, "A10", **options)
    everywhere = trtint8.audit(model, table, "A10", keep_int8=["*"], **options).engine("INT8+FP16").seconds
    half, mixed = (chosen.engine(name).seconds for name in ("FP16", "INT8+FP16"))
    assert mixed <= 1.0001 * half
    assert mixed <= 1.0001 * everywhere
    assert (mixed < 0.9 * half) == (not CASES[form])


def test_reasons():
    reasons = {found.node: found.reason for found in placed(separable).decisions}
    assert reasons["deep"] == "INT8 would be slower: groups of 1 input channel are padded to 4"
    assert reasons["a"] == (
        "INT8 would be slower: to requantize its output takes longer than its products save"
    )


def test_without_fp16_and_for_other_targets_nothing_is_left():
    model = prepared_graph(thin())
    assert placed(thin, float16=False).slower == ()
    for name in TARGETS.keys() - {"rtx"}:
        assert place(model, target=TARGETS[name], float16=True).slower == ()


def test_layers_can_be_kept_in_int8():
    assert placed(thin, keep_int8=["*"]).quantized_nodes == ("a", "b", "c")
    assert "a" in placed(thin, keep_int8=["a"]).quantized_nodes
    with pytest.raises(trtint8.ModelError, match="keep_int8: 'z' matches no node"):
        placed(thin, keep_int8=["z"])


def test_keep_float_comes_first():
    found = placed(wide, keep_float=["a"], keep_int8=["*"])
    assert found.quantized_nodes == ("b",)
    assert found.slower == ()


def test_what_has_no_known_size_is_in_int8():
    g = Shaped()
    y = conv(g, g.Reshape("reshape", "x", "sizes"), "a", 16, 16)
    model = g.model({"x": ["N", 16, 32, 32]}, y)
    model.graph.input.append(helper.make_tensor_value_info("sizes", TensorProto.INT64, [4]))
    graph = prepared_graph(model)
    assert place(graph, target=TARGETS["rtx"], float16=True).quantized_nodes == ("a",)


@pytest.mark.parametrize("seed", range(20))
def test_random_costs(seed):
    chance = random.Random(seed)
    names = "abcdefg"
    costs = {name: (chance.randrange(20), chance.randrange(20)) for name in names}
    pairs = {pair: chance.randrange(12) for pair in itertools.permutations(names, 2) if chance.random() < 0.4}
    choice = BinaryChoice()
    for name, (true, false) in costs.items():
        choice.add_cost(name, true=true)
        choice.add_cost(name, false=false)
    for pair, cost in pairs.items():
        choice.add_pair(*pair, cost)

    def total(chosen):
        alone = sum(true if name in chosen else false for name, (true, false) in costs.items())
        return alone + sum(cost for (a, b), cost in pairs.items() if a in chosen and b not in chosen)

    subsets = [
        set(subset) for size in range(len(names) + 1) for subset in itertools.combinations(names, size)
    ]
    least = min(map(total, subsets))
    solved = choice.solve()
    assert total(solved) == least
    assert len(solved) == min(len(subset) for subset in subsets if total(subset) == least)


def test_the_edges_of_a_vertex_are_listed_once_for_all_paths():
    class Counted(dict):
        lists = 0

        def __iter__(self):
            Counted.lists += 1
            return super().__iter__()

    choice = BinaryChoice()
    for number in range(500):
        choice.add_cost(number, true=2, false=number % 3 + 1)
    choice._capacities = [Counted(edges) for edges in choice._capacities]
    assert choice.solve() == {number for number in range(500) if number % 3 == 2}
    assert Counted.lists == 502  # the variables, the source and the sink


IMAGES = {"x": ["N", 8, 8, 8]}


def graph_of(g, inputs, output):
    model = load_model(g.model(inputs, output).SerializeToString())
    return KernelGraph(prepare(model).graph_model, KernelCosts())


def kernels_conv(g, source, name):
    return g.Conv(name, source, g.weights(8, 8, 3, 3), pads=[1] * 4)


def products(graph):
    return {node.name: product for node, product in graph.products.items()}


def readers(graph):
    return {value.name: (product and product.node.name, found) for value, product, found in graph.stored}


def test_a_convolution_takes_in_what_follows():
    g = Shaped()
    y = kernels_conv(g, "x", "first")
    y = g.Mul("silu", g.Sigmoid("sigmoid", y), y)
    y = g.Add("residual", y, "x")
    y = g.Abs("abs", g.Relu("relu", y))
    found = products(graph_of(g, IMAGES, y))["first"]
    assert [node.name for node in found.inside] == ["sigmoid", "silu", "residual", "relu"]
    assert found.output.name == "relu_out"


def test_a_convolution_takes_in_several_additions():
    """As RepVGG's blocks add two branches."""
    g = Shaped()
    y = g.Add("add", kernels_conv(g, "x", "first"), kernels_conv(g, "x", "second"))
    y = g.Relu("relu", g.Add("again", y, "x"))
    found = products(graph_of(g, IMAGES, y))
    assert [node.name for node in found["second"].inside] == ["add", "again", "relu"]
    assert not found["first"].inside  # of two convolutions the later one adds


def test_products_of_one_tensor_are_a_kernel_that_takes_nothing_in():
    g = Shaped()
    first, second = (g.MatMul(name, "x", g.weights(8, 8)) for name in ("first", "second"))
    y = g.Sub("sub", g.Relu("relu", first), second)
    graph = graph_of(g, {"x": ["N", 4, 8]}, y)
    assert not any(product.inside for product in graph.products.values())


@pytest.mark.parametrize(("behind", "scaling"), [("Softmax", True), ("AveragePool", False), (None, False)])
def test_what_scales_the_sums_of_a_product(behind, scaling):
    """Generated kernels do, and no pooling, and nothing behind an output of the model."""
    g = Shaped()
    y = kernels_conv(g, "x", "first")
    if behind:
        options = {"kernel_shape": [2, 2]} if behind == "AveragePool" else {}
        y = g.op(behind, [y], "behind", **options)
    _, found = readers(graph_of(g, IMAGES, y))["first_out"]
    assert (found.kernels, found.scaling) == (1, scaling)


@pytest.mark.parametrize(("scaled", "packed"), [(False, False), (True, False), (True, True)])
def test_an_attention_is_one_kernel(scaled, packed):
    """It takes in scales and the order of heads, unless queries, keys and values lie along one axis."""
    g = Shaped()
    if packed:
        y = g.MatMul("qkv", "x", g.weights(32, 96))
        y = g.Reshape("parts", y, g.constant(np.array([0, 4, 3, 2, 16])))
        y = g.Transpose("turned", y, perm=[2, 0, 3, 1, 4])
        parts = [g.Gather(f"part{n}", y, g.constant(np.array(n)), axis=0) for n in range(3)]
    else:
        sizes = g.constant(np.array([0, 4, 2, 16]))
        made = (g.MatMul(name, "x", g.weights(32, 32)) for name in ("q", "k", "v"))
        parts = [g.Reshape(f"heads{n}", one, sizes) for n, one in enumerate(made)]
        parts = [g.Transpose(f"turned{n}", one, perm=[0, 2, 1, 3]) for n, one in enumerate(parts)]
    keys = g.Transpose("keys", parts[1], perm=[0, 1, 3, 2])
    query = g.Mul("scale", parts[0], g.constant(np.float32(0.5))) if scaled else parts[0]
    soft = g.Softmax("softmax", g.MatMul("scores", query, keys), axis=-1)
    y = g.MatMul("context", soft, parts[2])
    model = prepared_graph(g.model({"x": ["N", 4, 32]}, y))
    attentions = [attention.nodes for attention in find_attentions(model)]
    found = readers(KernelGraph(model, KernelCosts(), attentions))
    assert len(attentions) == 1 and not {"scores_out", "softmax_out", "scale_out"} & found.keys()
    for name, attended in {"qkv_out": 3}.items() if packed else dict.fromkeys(("q_out", "v_out"), 1).items():
        _, read = found[name]
        assert (read.transposed, read.kernels, read.attended) == (packed, 0, attended)


def test_a_matrix_product_of_four_dimensions_takes_nothing_in():
    for inputs, inside in (({"x": ["N", 4, 8]}, ["relu"]), ({"x": ["N", 4, 4, 8]}, [])):
        g = Shaped()
        y = g.Relu("relu", g.MatMul("product", "x", g.weights(8, 8)))
        found = products(graph_of(g, inputs, y))["product"]
        assert [node.name for node in found.inside] == inside


def test_readers():
    g = Shaped()
    y = kernels_conv(g, "x", "first")
    second = kernels_conv(g, g.MaxPool("pool", y, kernel_shape=[1, 1]), "second")
    y = g.Add("add", second, g.Tanh("tanh", g.Abs("abs", y)))
    made = readers(graph_of(g, IMAGES, y))
    writer, found = made["first_out"]
    assert writer == "first"
    assert [product.node.name for product in found.products] == ["second"]
    assert (found.kernels, found.adding, found.transposed) == (1, [], False)
    assert [value.name for value in found.pooled] == ["first_out", "pool_out"]
    writer, found = made["tanh_out"]
    assert writer is None and [product.node.name for product in found.adding] == ["second"]
    assert [product.node.name for product in made["x"][1].products] == ["first"]
    # The output of the model is read as well.
    assert made["add_out"][1].kernels == 1


def test_neighbouring_generated_nodes_are_one_kernel():
    g = Shaped()
    y = kernels_conv(g, "x", "first")
    y = g.Sub("sub", g.Neg("neg", y), g.Abs("abs", y))
    assert readers(graph_of(g, IMAGES, y))["first_out"][1].kernels == 1


def test_a_transpose_between():
    g = Shaped()
    y = g.MatMul("first", "x", g.weights(8, 8))
    y = g.MatMul("second", g.Transpose("turn", y, perm=[0, 2, 1]), g.weights(4, 4))
    writer, found = readers(graph_of(g, {"x": ["N", 4, 8]}, y))["first_out"]
    assert writer == "first" and found.transposed


def test_copies_that_meet_again_are_followed_once():
    """Each of 200 steps joins a tensor with itself and takes a half of that: 2 to the 200 ways."""
    g = Shaped()
    y = kernels_conv(g, "x", "first")
    for step in range(200):
        joined = g.Concat(f"join{step}", y, y, axis=1)
        bounds = (g.constant(np.array([value])) for value in (0, 8, 1))
        y = g.Slice(f"half{step}", joined, *bounds)
    writer, found = readers(graph_of(g, IMAGES, kernels_conv(g, y, "last")))["first_out"]
    assert writer == "first" and [product.node.name for product in found.products] == ["last"]
