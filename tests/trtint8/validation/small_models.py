"""Models of one multiplication: a network, a detector with one box per image, and one with rows of boxes."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SQUARE, OTHER, FAR = [0, 0, 10, 10], [20, 20, 30, 30], [50, 50, 60, 60]


def scaled(factor, dtype=TensorProto.FLOAT, names=("x", "y")):
    """A model that multiplies its input (n, 4)."""
    feed, result = names
    shape = ["n", 4]
    array = np.array([factor], helper.tensor_dtype_to_np_dtype(dtype))
    graph = helper.make_graph(
        [helper.make_node("Mul", [feed, "factor"], [result], name="mul")],
        "g",
        [helper.make_tensor_value_info(feed, dtype, shape)],
        [helper.make_tensor_value_info(result, dtype, shape)],
        [onnx.numpy_helper.from_array(array, "factor")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    return model


BOXES = helper.make_graph(
    [helper.make_node("Mul", ["x", "factor"], ["boxes"], name="mul")],
    "g",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
    [helper.make_tensor_value_info("boxes", TensorProto.FLOAT, ["n", 4])],
)


def boxes_times(factor):
    """A "detector" whose only box an image is its input, times a factor."""
    graph = onnx.GraphProto()
    graph.CopyFrom(BOXES)
    graph.initializer.append(numpy_helper.from_array(np.array([factor], np.float32), "factor"))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    return model


def rows_as_they_are(columns, shape=None):
    """A "detector" that gives rows of detections, its input (n, k, columns); in another shape, if given."""
    nodes = [helper.make_node("Mul", ["x", "factor"], ["same"], name="mul")]
    constants = [numpy_helper.from_array(np.ones(1, np.float32), "factor")]
    if shape:
        nodes.append(helper.make_node("Reshape", ["same", "shape"], ["rows"], name="reshape"))
        constants.append(numpy_helper.from_array(np.array(shape), "shape"))
    else:
        nodes.append(helper.make_node("Identity", ["same"], ["rows"], name="identity"))
    declared = [size if size > 0 else "m" for size in shape] if shape else ["n", "k", columns]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "k", columns])],
        [helper.make_tensor_value_info("rows", TensorProto.FLOAT, declared)],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    return model


def shifted(by):
    """A model of maps (n, 3, 4, 4) that adds to each position of its input what ``by`` has there."""
    shape = ["n", 3, 4, 4]
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "by"], ["y"], name="add")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(np.asarray(by, np.float32), "by")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    return model
