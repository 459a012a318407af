"""Models that compute on integers, and what tests of their expansion share."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper

from calibrators.host.session import open_session
from tests.trtint8.onnx_models import Graph

MICROSOFT = {"domain": "com.microsoft"}
ZERO, ABOVE_ZERO = np.uint8(0), np.uint8(120)


class Integers(Graph):
    """Builds quantizers and what stands between them."""

    def parameters(self, scale, zero=ZERO):
        return [self.constant(np.asarray(scale, np.float32)), self.constant(np.asarray(zero))]

    def quantize(self, tensor, scale=0.05, zero=ABOVE_ZERO):
        """Returns data, scale and zero point, as QLinear operators take them."""
        parameters = self.parameters(scale, zero)
        name = f"quantize{len(self.nodes)}"
        return [self.op("QuantizeLinear", [tensor, *parameters], name), *parameters]

    def dequantize(self, tensor, parameters):
        return self.op("DequantizeLinear", [tensor, *parameters], f"dequantize{len(self.nodes)}")

    def random_integers(self, *shape, dtype=np.int8):
        info = np.iinfo(dtype)
        return self.constant(self.random.integers(info.min, info.max + 1, shape).astype(dtype))

    def proto(self, inputs, output, rank, opset=17, dtype=TensorProto.FLOAT):
        value = helper.make_tensor_value_info
        graph = helper.make_graph(
            self.nodes,
            "graph",
            [value(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
            [value(output, dtype, [f"o{axis}" for axis in range(rank)])],
            self.constants,
        )
        imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
        return onnx.shape_inference.infer_shapes(
            helper.make_model(graph, opset_imports=imports, ir_version=8)
        )


def applied(graph_pass, model):
    """The model after a pass, checked, and whether the pass changed it."""
    graph_model = ir.from_proto(model)
    result = graph_pass(graph_model)
    proto = ir.to_proto(graph_model)
    onnx.checker.check_model(proto, full_check=True)
    return proto, result.modified


def operators(model):
    return [node.op_type for node in model.graph.node]


def run(model, optimize=True, **feeds):
    """The first output. Optimized, because only then ONNX Runtime's integer kernels are exact everywhere."""
    return open_session(model.SerializeToString(), optimize=optimize).run(None, feeds)[0]
