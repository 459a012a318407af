"""FP16 models as a GPU runs them, for ONNX Runtime on a CPU."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from trtint8.models.graph import computes_in
from trtint8.models.passes.float32 import ComputeInFloat32Pass
from trtint8.models.passes.simplify import InferShapesPass
from trtint8.models.serialization import save_model


def half_layers(path: str, operators: Collection[str]) -> int | None:
    """How many nodes of some operators give out FP16; None in a model without FP16."""
    model = ir.load(path)
    if not computes_in(model, ir.DataType.FLOAT16):
        return None
    InferShapesPass()(model)
    return sum(
        node.op_type in operators and node.outputs[0].dtype == ir.DataType.FLOAT16 for node in model.graph
    )


def round_every_tensor(path: str, target: str) -> None:
    """Writes a model in FP32 that rounds every tensor to FP16 which another one holds in FP16.

    ONNX Runtime on a CPU leaves out the casts between operators that it computes in FP32, so that an FP16
    model neither rounds nor overflows there. It keeps casts that an FP32 model has itself.

    Args:
        path: A model that ONNX Runtime runs.
        target: Where the new model goes.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    model = ir.load(path)
    InferShapesPass()(model)
    nodes = list(ir.traversal.RecursiveGraphIterator(model.graph))
    held = [value for node in nodes for value in node.outputs if value.dtype == ir.DataType.FLOAT16]
    ComputeInFloat32Pass()(model)
    for value in held:
        node = value.producer()
        if node is None or not value.name or value.dtype != ir.DataType.FLOAT:
            continue
        down, up = (ir.Node("", "Cast", [value], [ir.AttrInt64("to", to)]) for to in (10, 1))
        half, rounded = down.outputs[0], up.outputs[0]
        up.replace_input_with(0, half)
        half.name, rounded.name = f"{value.name}_in_16_bits", f"{value.name}_rounded"
        half.dtype, rounded.dtype = ir.DataType.FLOAT16, ir.DataType.FLOAT
        value.replace_all_uses_with(rounded, replace_graph_outputs=True)
        down.replace_input_with(0, value)
        node.graph.insert_after(node, [down, up])
    save_model(model, target)
