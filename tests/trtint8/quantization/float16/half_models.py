"""Chains of operators, converted to FP16, checked and run."""

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto

from calibrators.tables.table import CalibrationTable
from tests.trtint8.engines import build_rtx
from tests.trtint8.onnx_models import Shaped, normal
from trtint8.models.model import load_model, prepare
from trtint8.models.serialization import to_proto
from trtint8.quantization.float16 import to_float16

HALF, FLOAT = TensorProto.FLOAT16, TensorProto.FLOAT


def convert(model, *, float32_io=False, peaks=None):
    """The FP16 model, checked by ONNX with its types, and the nodes that stayed in FP32.

    With peaks, 'x' reaches 1 where they say nothing else; without, what is not known counts as small.
    """
    prepared = prepare(load_model(model))
    peaks = None if peaks is None else {"x": 1.0} | peaks
    graph_model, kept = to_float16(prepared.graph_model, float32_io=float32_io, peaks=peaks, name="model")
    proto = to_proto(graph_model)
    onnx.checker.check_model(proto, full_check=True)
    return proto, {node: reason.words for node, reason in kept.items()}


def built_for_rtx(model, amax, folder, **options):
    """The engine of TensorRT for RTX with layers in INT8, and FP16 around them."""
    table = CalibrationTable(amax)
    return build_rtx(table, folder / "m.engine", model=model, fp16=True, **{"keep_int8": ["*"]} | options)


def types(model):
    """Tensor name to type, as ONNX infers them anew."""
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    del bare.graph.value_info[:]
    graph = onnx.shape_inference.infer_shapes(bare, strict_mode=True).graph
    values = (*graph.input, *graph.output, *graph.value_info)
    found = {value.name: value.type.tensor_type.elem_type for value in values}
    return found | {tensor.name: tensor.data_type for tensor in graph.initializer}


def operators(model):
    return [node.op_type for node in model.graph.node]


def run(model, feeds):
    return ort.InferenceSession(model.SerializeToString()).run(None, feeds)[0]


def network(*steps, shape=("N", 8)):
    """A chain of (operator, further inputs, attributes); the first reads 'x'."""
    g = Shaped(quantized=False)
    tensor = "x"
    for index, (op_type, more, attributes) in enumerate(steps):
        inputs = [tensor, *(g.constant(np.asarray(value)) for value in more)]
        tensor = g.op(op_type, inputs, f"{op_type.lower()}{index}", **attributes)
    return g.model({"x": list(shape)}, tensor)


def weights(*shape):
    return normal(*shape, seed=1) * 0.1
