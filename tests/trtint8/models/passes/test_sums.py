"""Sums of several tensors as Adds."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.trtint8.models.passes.applying import IMAGES, applied, operators, run
from tests.trtint8.onnx_models import Shaped
from trtint8.models.model import load_model, prepare
from trtint8.models.passes.sums import SumsAsAddsPass
from trtint8.models.serialization import to_proto
from trtint8.quantization.placement import place


def summed(names):
    """A Sum of inputs of four channels, whose last one is broadcast."""
    info = helper.make_tensor_value_info
    inputs = [info(name, TensorProto.FLOAT, ["N", 4, 1 if name == names[-1] else 3]) for name in names]
    node = helper.make_node("Sum", names, ["y"], "total")
    graph = helper.make_graph([node], "g", inputs, [info("y", TensorProto.FLOAT, ["N", 4, 3])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("names", [["a", "b"], ["a", "b", "c"], ["a", "b", "c", "d"]])
def test_the_same_sum(names):
    model = summed(names)
    random = np.random.default_rng(0)
    feeds = {
        name: random.standard_normal((2, 4, 1 if name == names[-1] else 3)).astype(np.float32)
        for name in names
    }
    rewritten, modified = applied(SumsAsAddsPass(), model)
    onnx.checker.check_model(rewritten, full_check=True)
    assert modified and operators(rewritten) == ["Add"] * (len(names) - 1)
    last = rewritten.graph.node[-1]
    assert (last.name, list(last.output)) == ("total", ["y"])
    assert [value.name for value in rewritten.graph.output] == ["y"]
    np.testing.assert_allclose(run(rewritten, **feeds)[0], run(model, **feeds)[0], rtol=1e-6, atol=1e-6)


def test_a_sum_of_one_tensor_stays():
    g = Shaped(quantized=False)
    model = g.model(IMAGES, g.op("Sum", ["x"], "same"))
    rewritten, modified = applied(SumsAsAddsPass(), model)
    assert (modified, operators(rewritten)) == (False, ["Sum"])


def shortcut(kind):
    """A convolution, another one behind it, and the sum of both."""
    g = Shaped(quantized=False)
    first = g.op("Conv", ["x", g.weights(8, 4, 3, 3)], "first", pads=[1] * 4)
    second = g.op("Conv", [g.op("Relu", [first], "r"), g.weights(8, 8, 3, 3)], "second", pads=[1] * 4)
    return g.model(IMAGES, g.op("Relu", [g.op(kind, [second, first], "sum")], "y"))


def test_shortcuts_are_quantized_as_those_of_an_add():
    found = []
    for kind in ("Sum", "Add"):
        prepared = prepare(load_model(shortcut(kind))).graph_model
        placement = place(prepared)
        found.append((operators(to_proto(prepared)), set(placement.tensors), set(placement.quantized_nodes)))
    assert found[0] == found[1]
    assert "first_out" in found[0][1]
