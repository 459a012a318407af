"""What FP16 kernels take in, and who reads the tensors between them."""

import numpy as np

from tests.trtint8.onnx_models import Shaped
from trtint8.models.model import load_model, prepare
from trtint8.quantization.slower.kernels import KernelGraph
from trtint8.quantization.targets import KernelCosts

IMAGES = {"x": ["N", 8, 8, 8]}


def graph_of(g, inputs, output):
    model = load_model(g.model(inputs, output).SerializeToString())
    return KernelGraph(prepare(model).graph_model, KernelCosts())


def conv(g, source, name):
    return g.op("Conv", [source, g.weights(8, 8, 3, 3)], name, pads=[1] * 4)


def products(graph):
    return {node.name: product for node, product in graph.products.items()}


def readers(graph):
    return {value.name: (product and product.node.name, found) for value, product, found in graph.stored()}


def test_a_convolution_takes_in_what_follows():
    g = Shaped()
    y = conv(g, "x", "first")
    y = g.op("Mul", [g.op("Sigmoid", [y], "sigmoid"), y], "silu")
    y = g.op("Add", [y, "x"], "residual")
    y = g.op("Abs", [g.op("Relu", [y], "relu")], "abs")
    found = products(graph_of(g, IMAGES, y))["first"]
    assert [node.name for node in found.inside] == ["sigmoid", "silu", "residual", "relu"]
    assert (found.output.name, found.residual.name) == ("relu_out", "x")


def test_of_two_convolutions_the_later_one_adds():
    g = Shaped()
    y = g.op("Add", [conv(g, "x", "first"), conv(g, "x", "second")], "add")
    found = products(graph_of(g, IMAGES, y))
    assert [node.name for node in found["second"].inside] == ["add"]
    assert not found["first"].inside


def test_a_matrix_product_of_four_dimensions_takes_nothing_in():
    for inputs, inside in (({"x": ["N", 4, 8]}, ["relu"]), ({"x": ["N", 4, 4, 8]}, [])):
        g = Shaped()
        y = g.op("Relu", [g.op("MatMul", ["x", g.weights(8, 8)], "product")], "relu")
        found = products(graph_of(g, inputs, y))["product"]
        assert [node.name for node in found.inside] == inside


def test_readers():
    g = Shaped()
    y = conv(g, "x", "first")
    second = conv(g, g.op("MaxPool", [y], "pool", kernel_shape=[1, 1]), "second")
    y = g.op("Add", [second, g.op("Tanh", [g.op("Abs", [y], "abs")], "tanh")], "add")
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
    y = conv(g, "x", "first")
    y = g.op("Sub", [g.op("Neg", [y], "neg"), g.op("Abs", [y], "abs")], "sub")
    assert readers(graph_of(g, IMAGES, y))["first_out"][1].kernels == 1


def test_a_transpose_between():
    g = Shaped()
    y = g.op("MatMul", ["x", g.weights(8, 8)], "first")
    y = g.op("MatMul", [g.op("Transpose", [y], "turn", perm=[0, 2, 1]), g.weights(4, 4)], "second")
    writer, found = readers(graph_of(g, {"x": ["N", 4, 8]}, y))["first_out"]
    assert writer == "first" and found.transposed


def test_copies_that_meet_again_are_followed_once():
    """Each of 200 steps joins a tensor with itself and takes a half of that: 2 to the 200 ways."""
    g = Shaped()
    y = conv(g, "x", "first")
    for step in range(200):
        joined = g.op("Concat", [y, y], f"join{step}", axis=1)
        bounds = (g.constant(np.array([value])) for value in (0, 8, 1))
        y = g.op("Slice", [joined, *bounds], f"half{step}")
    writer, found = readers(graph_of(g, IMAGES, conv(g, y, "last")))["first_out"]
    assert writer == "first" and [product.node.name for product in found.products] == ["last"]
