"""Passes applied to models, and the models run."""

import onnx_ir as ir
import onnxruntime as ort


def run(model, **feeds):
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def applied(graph_pass, model):
    graph_model = ir.from_proto(model)
    result = graph_pass(graph_model)
    return ir.to_proto(graph_model), result.modified


def operators(model):
    return [node.op_type for node in model.graph.node]
