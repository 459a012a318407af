"""Models of one multiplication: a network, a detector with one box per image, and one with rows of boxes."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

SQUARE, OTHER, FAR = [0, 0, 10, 10], [20, 20, 30, 30], [50, 50, 60, 60]


def _model(nodes, inputs, outputs, constants):
    """A model; inputs and outputs are name to type and shape."""
    io = [[helper.make_tensor_value_info(name, *of) for name, of in one.items()] for one in (inputs, outputs)]
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "g", *io, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def scaled(factor, dtype=TensorProto.FLOAT, names=("x", "y")):
    """A model that multiplies its input (n, 4)."""
    feed, result = names
    node = helper.make_node("Mul", [feed, "factor"], [result], name="mul")
    array = np.array([factor], helper.tensor_dtype_to_np_dtype(dtype))
    return _model([node], {feed: (dtype, ["n", 4])}, {result: (dtype, ["n", 4])}, {"factor": array})


def boxes_times(factor):
    """A "detector" whose only box an image is its input, times a factor."""
    return scaled(factor, names=("x", "boxes"))


def rows_as_they_are(columns, shape=None):
    """A "detector" that gives rows of detections, its input (n, k, columns); in another shape, if given."""
    constants = {"factor": np.ones(1, np.float32)}
    last = helper.make_node("Identity", ["same"], ["rows"], name="identity")
    if shape:
        constants["shape"] = np.array(shape)
        last = helper.make_node("Reshape", ["same", "shape"], ["rows"], name="reshape")
    declared = [size if size > 0 else "m" for size in shape] if shape else ["n", "k", columns]
    nodes = [helper.make_node("Mul", ["x", "factor"], ["same"], name="mul"), last]
    inputs = {"x": (TensorProto.FLOAT, ["n", "k", columns])}
    return _model(nodes, inputs, {"rows": (TensorProto.FLOAT, declared)}, constants)


def shifted(by):
    """A model of maps (n, 3, 4, 4) that adds to each position of its input what ``by`` has there."""
    of = (TensorProto.FLOAT, ["n", 3, 4, 4])
    node = helper.make_node("Add", ["x", "by"], ["y"], name="add")
    return _model([node], {"x": of}, {"y": of}, {"by": np.asarray(by, np.float32)})
