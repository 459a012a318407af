import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from calibrators.weights import LARGE, LightModel

LARGEST = np.arange(LARGE // 4, dtype=np.float32).reshape(32, -1)
CONSTANTS = {
    "large": LARGEST,
    "small": LARGEST[0],
    "double": LARGEST.astype(np.float64),
    "halves": LARGEST.astype(np.float16),
}


def _message(*inputs):
    nodes = [helper.make_node("Identity", [name], [f"{name}_out"]) for name in CONSTANTS]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [info(name, TensorProto.FLOAT, LARGEST.shape) for name in inputs],
        [info("large_out", TensorProto.FLOAT, LARGEST.shape)],
        [numpy_helper.from_array(values, name) for name, values in CONSTANTS.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_large_float32_weights_leave_the_message():
    message = _message()
    light = LightModel.take(message)
    assert light.message is message
    assert list(light.weights) == ["large"]
    np.testing.assert_array_equal(light.weights["large"], LARGEST)
    left = {tensor.name: tensor for tensor in message.graph.initializer}
    assert list(left) == list(CONSTANTS)
    assert (left["large"].raw_data, list(left["large"].dims)) == (b"", list(LARGEST.shape))
    for name in ("small", "double", "halves"):
        np.testing.assert_array_equal(numpy_helper.to_array(left[name]), CONSTANTS[name])


@pytest.mark.parametrize("inputs", [(), ("large",)])
def test_the_checker_takes_it_without_its_weights(inputs):
    light = LightModel.take(_message(*inputs))
    with pytest.raises(onnx.checker.ValidationError, match="in memory"):
        onnx.checker.check_model(light.message)
    checkable = light.checkable()
    onnx.checker.check_model(checkable, full_check=True)
    assert [value.name for value in checkable.graph.input] == ["large"]
    assert "large" in [tensor.name for tensor in light.message.graph.initializer]


def test_what_is_wrong_stays_wrong():
    message = _message()
    message.graph.initializer[0].dims[:] = [7, 7]
    light = LightModel.take(message)
    assert not light.weights
    assert len(light.message.graph.initializer[0].raw_data) == LARGE
    broken = _message()
    broken.graph.node[0].input[0] = "nowhere"
    with pytest.raises(onnx.checker.ValidationError, match="nowhere"):
        onnx.checker.check_model(LightModel.take(broken).checkable())
