"""Models with an If: TensorRT lists the nodes behind one with a constant condition under longer names."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from tests.trtint8.builder.building import build
from tests.trtint8.onnx_models import Graph

CHANNELS = 16


class IfGraph(Graph):
    """A graph whose nodes may be Ifs; the graphs inside read its tensors, and share its constants."""

    def conv(self, tensor, name):
        """A quantized convolution."""
        weights = self.qdq(self.weights(CHANNELS, CHANNELS, 3, 3), 0, CHANNELS)
        return self.Conv(name, self.qdq(tensor), weights, pads=[1] * 4)

    def float_conv(self, tensor, name):
        """A convolution in float, whose output is not called as its name says."""
        output = self.Conv(f"{name}_float", tensor, self.weights(CHANNELS, CHANNELS, 3, 3))
        self.nodes[-1].name = name
        self.nodes[-1].attribute.append(helper.make_attribute("pads", [1] * 4))
        return output

    def choose(self, condition, name, chosen, other):
        """An If; ``chosen`` and ``other`` add the nodes of its branches, and return their output."""
        return self.If(
            name,
            condition if isinstance(condition, str) else self.constant(np.array(condition)),
            then_branch=self._branch("then", chosen),
            else_branch=self._branch("else", other),
        )

    def _branch(self, name, add_nodes):
        inner = IfGraph()
        inner.constants = self.constants
        output = helper.make_tensor_value_info(add_nodes(inner), TensorProto.FLOAT, None)
        return helper.make_graph(inner.nodes, name, [], [output])

    def build(self, output, rtx, batch="N"):
        """The report of the layers, for images named "x"."""
        model = self.model({"x": [batch, CHANNELS, 16, 16]}, output)
        return build(model, rtx, compute_capabilities=["8.6"]).report


def relu(tensor):
    """Adds a Relu to the branch of an If."""
    return lambda branch: branch.Relu(f"{tensor}_relu", tensor)


def absolute(tensor):
    """Adds an Abs to the branch of an If."""
    return lambda branch: branch.Abs(f"{tensor}_abs", tensor)
