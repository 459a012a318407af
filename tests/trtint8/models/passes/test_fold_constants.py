"""Constants computed once: what changes, what stays."""

import math
import tracemalloc

import numpy as np
import onnx
import pytest
from onnx import helper

from calibrators.errors import ModelError
from tests.trtint8.models.passes.applying import applied, operators, run
from tests.trtint8.onnx_models import Graph
from trtint8.models.model import load_model, prepare
from trtint8.models.passes.fold_constants import FoldConstantsPass


def test_transposed_weights_are_folded():
    g = Graph()
    weights = g.op("Transpose", [g.weights(5, 4)], "transpose", perm=[1, 0])
    model = g.model({"x": ["N", 4]}, g.op("MatMul", ["x", weights], "matmul"))
    folded, modified = applied(FoldConstantsPass(), model)
    assert modified and operators(folded) == ["MatMul"]
    assert "transpose_out" in [tensor.name for tensor in folded.graph.initializer]
    x = np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32)
    np.testing.assert_allclose(run(folded, x=x)[0], run(model, x=x)[0], rtol=1e-5, atol=1e-5)


def standardized(read=0):
    """A Conv whose weights a BatchNormalization in training mode standardizes, as NFNets have them."""
    g = Graph()
    flat = g.op("Reshape", [g.weights(4, 2, 3, 3), g.constant(np.array([1, 4, 18]))], "flat")
    ones, zeros = (g.constant(np.full(4, value, np.float32)) for value in (1, 0))
    statistics = ["normalized_out", "mean", "variance"]
    g.nodes.append(
        helper.make_node(
            "BatchNormalization",
            [flat, ones, zeros, zeros, ones],
            statistics,
            name="normalized",
            training_mode=1,
            momentum=1.0,
        )
    )
    weights = g.op("Reshape", ["normalized_out", g.constant(np.array([4, 2, 3, 3]))], "weights")
    y = g.op("Conv", ["x", weights], "conv")
    if read:
        sizes = g.constant(np.array([1, 4, 1, 1]))
        y = g.op("Add", [y, g.op("Reshape", [statistics[read], sizes], "statistic")], "add")
    return g.model({"x": ["N", 2, 8, 8]}, y)


def test_a_batch_normalization_of_weights_is_folded():
    model = standardized()
    folded, _ = applied(FoldConstantsPass(), model)
    assert operators(folded) == ["Conv"]
    x = np.random.default_rng(1).standard_normal((3, 2, 8, 8)).astype(np.float32)
    np.testing.assert_allclose(run(folded, x=x)[0], run(model, x=x)[0], rtol=1e-4, atol=1e-4)
    weights = next(t for t in folded.graph.initializer if t.name == "weights_out")
    rows = onnx.numpy_helper.to_array(weights).reshape(4, 18)
    np.testing.assert_allclose([rows.mean(1), rows.var(1)], [np.zeros(4), np.ones(4)], atol=5e-3)


def test_a_node_with_a_second_output_that_is_read_is_not_folded():
    folded, _ = applied(FoldConstantsPass(), standardized(read=1))
    assert operators(folded) == ["BatchNormalization", "Reshape", "Conv", "Reshape", "Add"]


def test_a_constant_that_would_inflate_the_model_is_not_folded():
    g = Graph()
    huge = g.op("ConstantOfShape", [g.constant(np.array([1024, 1024]))], "huge")
    folded, modified = applied(
        FoldConstantsPass(), g.model({"x": [1024, 1024]}, g.op("Add", ["x", huge], "a"))
    )
    assert not modified and operators(folded) == ["ConstantOfShape", "Add"]


@pytest.mark.parametrize("operator", ["ConstantOfShape", "Expand", "Tile", "MatMul", "Add"])
def test_what_would_be_gigabytes_is_not_even_computed(operator):
    g = Graph()
    sizes, one = g.constant(np.array([100_000, 50_000])), g.constant(np.ones((1, 1), np.float32))
    row, column = (g.constant(np.ones(shape, np.float32)) for shape in ((1, 50_000), (100_000, 1)))
    inputs = {"ConstantOfShape": [sizes], "MatMul": [column, row], "Add": [column, row]}
    huge = g.op(operator, inputs.get(operator, [one, sizes]), "huge")
    model = g.model({"x": [100_000, 50_000]}, g.op("Add", ["x", huge], "a"))
    tracemalloc.start()
    folded, modified = applied(FoldConstantsPass(), model)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert not modified and operators(folded) == [operator, "Add"]
    assert peak < 50_000_000


@pytest.mark.parametrize("limit", [2e9, 1e30, math.inf])
def test_a_range_of_gigabytes_is_refused_before_its_shape_is_inferred(limit):
    g = Graph()
    numbers = [g.constant(np.float32(number)) for number in (0, limit, 1)]
    model = g.model({"x": ["N"]}, g.op("Add", ["x", g.op("Range", numbers, "steps")], "a"))
    model.graph.output[0].type.tensor_type.shape.dim.add()
    with pytest.raises(ModelError, match=r"the node 'steps' makes a constant of [0-9,]+ bytes"):
        prepare(load_model(model))


@pytest.mark.parametrize("numbers", [(0, 5, 1), (5, 0, -2), (0, 5, -1), (0, math.nan, 1)])
def test_small_ranges_are_folded(numbers):
    g = Graph()
    steps = g.op("Range", [g.constant(np.float32(number)) for number in numbers], "steps")
    folded, modified = applied(FoldConstantsPass(), g.model({"x": [1]}, g.op("Add", ["x", steps], "a")))
    assert operators(folded) == (["Add"] if modified else ["Range", "Add"])
    assert modified == (not math.isnan(numbers[1]))


def stored_as_integers(quantize_input):
    """A Conv and a MatMul with int8 weights, scaled by block and by column, and the same with float weights.

    The float weights of the MatMul have over a megabyte more than the integers.
    """
    g, plain = Graph(), Graph()
    random = np.random.default_rng(0)
    kernels, matrix = (random.integers(-127, 128, shape).astype(np.int8) for shape in ((8, 6), (8, 60_000)))
    kernels = kernels.reshape(8, 6, 1, 1)
    blocks, columns = (random.uniform(0.01, 0.02, shape).astype(np.float32) for shape in ((8, 2), 60_000))
    blocks = blocks.reshape(8, 2, 1, 1)
    x = "x"
    if quantize_input:
        parameters = [g.constant(np.float32(0.1)), g.constant(np.int8(0))]
        x = g.op("DequantizeLinear", [g.op("QuantizeLinear", ["x", *parameters], "q"), *parameters], "dq")
    stored = [[g.constant(kernels), g.constant(blocks)], [g.constant(matrix), g.constant(columns)]]
    weights = [
        g.op("DequantizeLinear", stored[0], "kernels", axis=1, block_size=3),
        g.op("DequantizeLinear", stored[1], "matrix", axis=1),
    ]
    floats = [plain.constant(kernels * blocks.repeat(3, axis=1)), plain.constant(matrix * columns)]
    models = []
    for graph, (first, second), source in ((g, weights, x), (plain, floats, "x")):
        flat = graph.op("Flatten", [graph.op("Conv", [source, first], "conv")], "flat")
        model = graph.model({"x": ["N", 6, 1, 1]}, graph.op("MatMul", [flat, second], "matmul"))
        model.opset_import[0].version, model.ir_version = 21, 10
        models.append(model)
    return models


def test_weights_stored_as_integers_become_float():
    model, wanted = stored_as_integers(quantize_input=False)
    folded, _ = applied(FoldConstantsPass(), model)
    assert operators(folded) == operators(wanted) == ["Conv", "Flatten", "MatMul"]
    x = np.random.default_rng(1).standard_normal((2, 6, 1, 1), np.float32)
    assert np.array_equal(run(folded, x=x)[0], run(wanted, x=x)[0])


def test_weights_of_models_with_pairs_stay_integers():
    folded, modified = applied(FoldConstantsPass(), stored_as_integers(quantize_input=True)[0])
    assert not modified and operators(folded).count("DequantizeLinear") == 3
