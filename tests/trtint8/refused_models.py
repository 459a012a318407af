"""A network with nodes that TensorRT for RTX refuses."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

NODES = (
    ("Conv", ["x", "w"], "c", {}),
    ("Relu", ["c"], "r", {}),
    ("NonZero", ["r"], "where", {}),
    ("Cast", ["where"], "positions", {"to": TensorProto.FLOAT}),
    ("Conv", ["r", "w2"], "d", {}),
    ("Sigmoid", ["d"], "s", {}),
    ("Unique", ["s"], "values", {}),
    ("NonZero", ["s"], "others", {}),
    ("Add", ["s", "one"], "kept", {}),
)


def refused_model(nodes=NODES, outputs=("positions", "values", "others", "kept")) -> onnx.ModelProto:
    """Two convolutions, of whose outputs NonZero and Unique are computed, and one that TensorRT takes.

    A node is called like its output with ``_node`` behind.
    """
    random = np.random.default_rng(0)
    constants = {
        "w": random.standard_normal((4, 3, 3, 3)).astype(np.float32) / 5,
        "w2": random.standard_normal((4, 4, 3, 3)).astype(np.float32) / 6,
        "one": np.ones((), np.float32),
    }
    known = {
        "positions": (TensorProto.FLOAT, [4, None]),
        "values": (TensorProto.FLOAT, [None]),
        "first": (TensorProto.FLOAT, [None]),
        "others": (TensorProto.INT64, [4, None]),
        "kept": (TensorProto.FLOAT, ["N", 4, 4, 4]),
        "of_input": (TensorProto.INT64, [4, None]),
    }
    made = [helper.make_node(kind, inputs, [out], f"{out}_node", **more) for kind, inputs, out, more in nodes]
    read = {name for _, inputs, _, _ in nodes for name in inputs}
    graph = helper.make_graph(
        made,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 8, 8])],
        [helper.make_tensor_value_info(name, *known[name]) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in constants.items() if name in read],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
