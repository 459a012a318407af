"""Proof, by a build on a machine without a GPU, that the layers of a Q/DQ model run in INT8."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from calibrators.data.inputs import InputSpec
from calibrators.errors import ModelError
from calibrators.tensorrt import flavor
from trtint8.builder.build import build_engine
from trtint8.models.serialization import runnable


def count_int8_layers(
    graph_model: ir.Model, inputs: Sequence[InputSpec], quantized_nodes: Sequence[str]
) -> int | None:
    """Builds a Q/DQ model with TensorRT for RTX and counts the layers that it runs in INT8.

    Args:
        graph_model: The model with Q/DQ pairs.
        inputs: The model's inputs.
        quantized_nodes: Names of the weighted nodes that are meant to run in INT8.

    Returns:
        The number of ``quantized_nodes`` that run in INT8; None where the builder does not list its layers.

    Raises:
        ModelError: What is given is no model of onnx-ir.
        UnsupportedError: TensorRT for RTX is not installed.
        BuildError: TensorRT refuses the model.
    """
    if not isinstance(graph_model, ir.Model):
        raise ModelError(
            f"the model is given as {type(graph_model).__name__}; give an onnx_ir.Model, such as "
            "onnx_ir.load makes of a file"
        )
    with runnable(graph_model) as serialized:
        built = build_engine(serialized, inputs, flavor=flavor.load("rtx"), int8=True)
    if built.report is None:
        return None
    return len(built.report.weighted_summary(quantized_nodes).get("INT8", []))
