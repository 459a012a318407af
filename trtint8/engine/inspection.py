"""Reads the layers of an engine from TensorRT's engine inspector, where the builder does not list them."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from calibrators.errors import EngineError
from calibrators.tensorrt.flavor import Flavor
from calibrators.tensorrt.plugin_libraries import load_plugin_library
from trtint8.engine.layers import Dimensions, Layer, LayerReport
from trtint8.engine.plan import allow_code_of_plans

# "Row major linear FP32", "Thirty-two wide channel vectorized row major Int8 format", or just "Half".
_DATATYPE = re.compile(
    r"\b(int8|uint8|int32|int64|bool|fp8|fp16|half|bf16|bfloat16|fp32|float)\b", re.IGNORECASE
)
_SPELLING = {"int8": "Int8", "fp8": "FP8", "fp16": "Half", "half": "Half", "bf16": "BFloat16"}
_SPELLING |= {"bfloat16": "BFloat16", "fp32": "Float", "float": "Float"}
# What a tactic's name says of the operands of a matrix product: "..._i8i8_i8i32_f32_...",
# "..._i8f32_i8i32_f32_..." (which writes floats), "..._f16f16_f16f16_...", "turing_int8_i8816cudnn_int8_...",
# "volta_h884cudnn_...". The first match counts.
_OPERANDS = re.compile(
    r"(?:^|_)(?:(?P<Int8>i8[if][0-9]+|int8|i8816)|(?P<FP8>e4m3)|(?P<BFloat16>bf16)|(?P<Half>f16|fp16|h884|hcudnn)"
    r"|(?P<Float>tf32|f32|fp32|scudnn|sgemm))"
)
_ONNX_NODE = re.compile(r"\[ONNX Layer: ([^\x1e\x1f]*)\]")
# The inspector's terms for layers that multiply matrices, and those of the builder's log.
_KINDS = {"convolution": "correlation", "deconvolution": "deconv", "matrixmultiply": "gemm"}


def inspect_plan(
    flavor: Flavor, logger: Any, plan: bytes, plugins: Sequence[str | os.PathLike[str]] = ()
) -> LayerReport | None:
    """Reads the layers of a plan; needs a GPU.

    Args:
        flavor: The TensorRT that built the plan.
        logger: The ``ILogger`` of the process.
        plan: A plan that was built with detailed profiling verbosity, in this process: what it contains may
            run, as a version-compatible one needs.
        plugins: Paths of shared libraries with the plugins that the plan uses and does not contain.

    Returns:
        The layers; None where the inspector does not describe them, or a plugin is not there.
    """
    trt = flavor.module
    runtime = trt.Runtime(logger)
    allow_code_of_plans(runtime, flavor)
    for library in plugins:
        # The builder knew its plugins alone; every runtime has a registry of its own. A plan without a report
        # is worth more than none.
        with contextlib.suppress(EngineError):
            load_plugin_library(library, runtime, flavor, EngineError)
    engine = runtime.deserialize_cuda_engine(plan)
    if engine is None:
        return None
    inspector = engine.create_engine_inspector()
    return parse_inspection(inspector.get_engine_information(trt.LayerInformationFormat.JSON))


def parse_inspection(text: str) -> LayerReport | None:
    """Reads the inspector's JSON.

    Args:
        text: The text that ``IEngineInspector.get_engine_information`` returns.

    Returns:
        The layers; None where the text is no JSON, or only names the layers.
    """
    try:
        # TensorRT leaves the separator of the metadata's nodes, a control character, as it is.
        layers = json.loads(text, strict=False).get("Layers", ())
    except (ValueError, AttributeError, RecursionError):
        return None
    if not isinstance(layers, list) or not layers or not all(isinstance(layer, dict) for layer in layers):
        return None
    return LayerReport(tuple(map(_layer, layers)))


def _layer(layer: Mapping[str, Any]) -> Layer:
    weights = layer.get("Weights")
    constants = _datatypes([weights["Type"]]) if isinstance(weights, dict) and "Type" in weights else ()
    count = weights.get("Count") if isinstance(weights, dict) else None
    kind = str(layer.get("ParameterType") or layer.get("LayerType", ""))
    name = str(layer.get("Name", ""))
    metadata = _ONNX_NODE.findall(str(layer.get("Metadata", "")))
    inputs, outputs = _tensor_datatypes(layer, "Inputs"), _tensor_datatypes(layer, "Outputs")
    if not inputs + outputs:
        # Of tensors with dynamic shapes the inspector says no type; the kernel's name and the type of the
        # weights are what is left.
        operands = _OPERANDS.search(str(layer.get("TacticName", "")))
        named = (operands.lastgroup,) if operands and operands.lastgroup else ()
        inputs, constants = named or constants, constants or named
    return Layer(
        name=name,
        kind=_KINDS.get(kind.lower(), str(layer.get("LayerType", ""))),
        inputs=inputs,
        constants=constants,
        outputs=outputs,
        # Without metadata a layer's name joins the names of the layers that were fused; except that of a part
        # that was compiled as a whole, like "{ForeignNode[first...last]}".
        onnx_nodes=tuple(metadata or (() if name.startswith("{") else name.split(" + "))),
        input_shapes=_shapes(layer, "Inputs"),
        constant_shapes=((count,),) if constants and isinstance(count, int) else (),
        output_shapes=_shapes(layer, "Outputs"),
    )


def _shapes(layer: Mapping[str, Any], key: str) -> tuple[Dimensions, ...]:
    """The dimensions of all tensors of a layer; empty where those of one are not listed."""
    tensors = layer.get(key)
    listed = tensors if isinstance(tensors, list) else ()
    shapes = [tensor.get("Dimensions") for tensor in listed if isinstance(tensor, dict)]
    known = [tuple(shape) for shape in shapes if isinstance(shape, list) and _are_integers(shape)]
    return tuple(known) if len(known) == len(listed) else ()


def _are_integers(values: Iterable[object]) -> bool:
    return all(isinstance(value, int) for value in values)


def _tensor_datatypes(layer: Mapping[str, Any], key: str) -> tuple[str, ...]:
    tensors = layer.get(key)
    listed = tensors if isinstance(tensors, list) else ()
    return _datatypes(tensor.get("Format/Datatype", "") for tensor in listed if isinstance(tensor, dict))


def _datatypes(texts: Iterable[str]) -> tuple[str, ...]:
    matches = (_DATATYPE.search(str(text)) for text in texts)
    return tuple(_SPELLING.get(match[1].lower(), match[1].capitalize()) for match in matches if match)
