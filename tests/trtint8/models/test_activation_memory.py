import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from trtint8.models.activation_memory import calibration_batch_size


def _model(shape):
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Relu", ["a"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        value_info=[helper.make_tensor_value_info("a", TensorProto.FLOAT, shape)],
    )
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))


@pytest.mark.parametrize(
    ("elements", "tensors", "batch"),
    [
        (1_000, ("a", "y"), 32),
        (3 << 18, ("a", "y"), 32),
        ((3 << 18) + 1, ("a", "y"), 16),
        ((3 << 18) + 1, ("y",), 32),
        (3 << 20, ("a", "y"), 8),
        (1 << 30, ("a",), 1),
        ("length", ("a", "y"), 32),
    ],
)
def test_activations_of_a_batch_fit_192_mib_as_far_as_shapes_are_known(elements, tensors, batch):
    assert calibration_batch_size(_model(["n", elements]), tensors) == batch
