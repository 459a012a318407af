"""Where channels end."""

import numpy as np
from onnx import TensorProto, helper

from tests.trtint8.equalization.transformers import (
    SIZE,
    TOKENS,
    Blocks,
    check,
    followed,
    samples,
)
from tests.trtint8.tuning.networks import prepared


def test_a_subgraph_that_reads_channels_leaves_them_alone():
    g = Blocks()
    up = g.linear("x", SIZE, 12, "up")
    branch = helper.make_graph(
        [helper.make_node("Exp", [up], ["e"])],
        "branch",
        [],
        [helper.make_tensor_value_info("e", TensorProto.FLOAT, None)],
    )
    g.nodes.append(
        helper.make_node(
            "If", [g.constant(np.bool_(True))], ["if_out"], name="if", then_branch=branch, else_branch=branch
        )
    )
    x = g.op("Add", [g.linear(up, 12, 12, "down"), "if_out"], "sum")
    channels = followed(g.finish(x), samples())
    assert (channels.representatives == 0).all()


def test_an_output_of_the_model_keeps_its_values():
    g = Blocks()
    up = g.op("Relu", [g.linear("x", SIZE, 12, "up")], "relu")
    model = g.model({"x": [2, TOKENS, SIZE]}, g.linear(up, 12, SIZE, "down"))
    model.graph.output.append(helper.make_tensor_value_info(up, TensorProto.FLOAT, [2, TOKENS, 12]))
    channels = check(prepared(model), samples(), 0)
    assert channels.skipped["up"] == "'relu_out' is an output of the model"


def test_labels_of_tensors_by_name():
    g = Blocks()
    up = g.op("Relu", [g.linear("x", SIZE, 12, "up")], "relu")
    model = g.finish(g.linear(up, 12, SIZE, "down"))
    channels = followed(model, samples())
    (up,) = (one for one in channels.producers if one.node == "up")
    assert up.tensor == "up_bias_out" and up.labels.shape == (1, 1, 12)
    np.testing.assert_array_equal(channels.tensors["relu_out"], up.labels)
