"""BatchNormalization folded into the convolution before it: what changes, what stays."""

import numpy as np
import onnx
import pytest

from calibrators.errors import ModelError
from tests.trtint8.models.passes.applying import IMAGES, applied, operators, run
from tests.trtint8.onnx_models import Graph
from trtint8.models.model import load_model, prepare
from trtint8.models.passes.fold_batchnorm import FoldBatchNormPass


def normalized(operator="Conv", bias=True):
    g = Graph()
    shape = (5, 4, 3, 3) if operator == "Conv" else (4, 5, 3, 3)
    x = g.op(operator, ["x", g.weights(*shape), *([g.weights(5)] if bias else [])], "conv")
    parameters = [g.weights(5), g.weights(5), g.weights(5), g.constant(np.full(5, 0.7, np.float32))]
    return g, g.op("BatchNormalization", [x, *parameters], "norm")


@pytest.mark.parametrize("operator", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("bias", [True, False])
def test_batch_norm_is_folded(operator, bias):
    g, y = normalized(operator, bias)
    model = g.model(IMAGES, y)
    folded, modified = applied(FoldBatchNormPass(), model)
    assert modified and operators(folded) == [operator]
    assert folded.graph.output[0].name == "norm_out"
    x = np.random.default_rng(1).standard_normal((2, 4, 6, 6)).astype(np.float32)
    np.testing.assert_allclose(run(folded, x=x)[0], run(model, x=x)[0], rtol=1e-5, atol=1e-5)


def test_batch_norm_stays_when_the_conv_has_a_second_reader():
    g, y = normalized()
    model = g.model(IMAGES, g.op("Add", [y, "conv_out"], "add"))
    folded, modified = applied(FoldBatchNormPass(), model)
    assert not modified and operators(folded) == operators(model)


def test_batch_norm_stays_when_the_conv_is_a_graph_output():
    g, y = normalized()
    model = g.model(IMAGES, y)
    model.graph.output.append(onnx.helper.make_tensor_value_info("conv_out", 1, None))
    folded, modified = applied(FoldBatchNormPass(), model)
    assert not modified and operators(folded) == operators(model)


def test_folded_parameters_get_names_that_no_activation_has():
    g, y = normalized()
    conv = next(node for node in g.nodes if node.op_type == "Conv")
    name = f"{conv.input[1]}_folded"
    g.nodes.append(onnx.helper.make_node("Relu", [y], [name], "relu"))
    folded, _ = applied(FoldBatchNormPass(), g.model(IMAGES, name))
    assert [tensor.name for tensor in folded.graph.initializer if "_folded" in tensor.name] == [
        f"{name}_1",
        f"{name}_bias",
    ]
    assert folded.graph.output[0].name == name


@pytest.mark.parametrize("place", [1, 2, 3, 4])
def test_parameters_of_another_length_are_refused_by_name(place):
    g, y = normalized()
    norm = g.nodes[-1]
    norm.input[place] = wrong = g.weights(4)
    model = g.model(IMAGES, y)
    model.graph.output[0].CopyFrom(
        onnx.helper.make_tensor_value_info(y, onnx.TensorProto.FLOAT, [2, 5, 4, 4])
    )
    with pytest.raises(
        ModelError, match=rf"'{wrong}' has the shape \[4\], but 'norm' .* 5 channels of 'conv'"
    ):
        prepare(load_model(model))


def test_batch_norm_of_a_negative_variance_stays():
    g, y = normalized()
    g.nodes[-1].input[4] = g.constant(np.full(5, -1, np.float32))
    model = g.model(IMAGES, y)
    folded, modified = applied(FoldBatchNormPass(), model)
    assert not modified and operators(folded) == operators(model)
