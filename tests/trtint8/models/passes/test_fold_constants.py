"""Constants computed once: what changes, what stays."""

import numpy as np

from tests.trtint8.models.passes.applying import applied, operators, run
from tests.trtint8.onnx_models import Graph
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


def test_a_constant_that_would_inflate_the_model_is_not_folded():
    g = Graph()
    huge = g.op("ConstantOfShape", [g.constant(np.array([1024, 1024]))], "huge")
    folded, modified = applied(
        FoldConstantsPass(), g.model({"x": [1024, 1024]}, g.op("Add", ["x", huge], "a"))
    )
    assert not modified and operators(folded) == ["ConstantOfShape", "Add"]
