"""Checks whether bytes can be a plan for this TensorRT and GPU, because TensorRT may crash on others.

Reads the layers of an engine from TensorRT's engine inspector, where the builder does not list them.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from calibrators import records
from calibrators.checks import FilePath
from calibrators.errors import EngineError
from calibrators.tensorrt.flavor import Flavor, FlavorName
from calibrators.tensorrt.plugins import load_plugin_library
from trtint8.engine.file import EngineInfo, instead_of_engine
from trtint8.engine.layers import Dimensions, Layer, LayerReport

# Every plan begins with a letter and "trt"; the letter of TensorRT for RTX is "v".
_MAGIC = b"trt"
_RTX = b"vtrt"
_SHORTEST = 64
# The second 32-bit word is the version of the header; in version 0 these bytes hold TensorRT's version.
_HEADER_VERSION = slice(4, 8)
_TENSORRT_VERSION = slice(24, 28)
# Ultralytics and others write a JSON object before the plan, and its length before that.
_LENGTH_BYTES = 4
_LONGEST_METADATA = 1 << 20
_AMPERE = 8


def allow_code_of_plans(runtime: Any, flavor: Flavor) -> None:
    """Lets code run that plans contain; before TensorRT 8.6 they contain none, and there is nothing to allow.

    Args:
        runtime: The ``IRuntime`` that will load plans.
        flavor: The TensorRT that it is of.
    """
    if flavor.has_version_compatible_plans:
        runtime.engine_host_code_allowed = True


def plan_flavor(plan: bytes, source: str) -> FlavorName:
    """Finds out which TensorRT built a plan.

    Args:
        plan: The bytes of the engine file.
        source: The engine's name in messages.

    Returns:
        "tensorrt" or "rtx".

    Raises:
        EngineError: The plan is empty, truncated, or no plan.
    """
    if plan[1:4] != _MAGIC:
        kind = "is empty" if not plan else "is not a TensorRT engine"
        instead = instead_of_engine(source.strip("'")) or "give a file that 'trtint8 build' or TensorRT wrote"
        raise EngineError(f"{source} {kind}; {instead}")
    # The third 64-bit word of the header of TensorRT for RTX is the size of the plan in bytes.
    size = int.from_bytes(plan[16:24], "little") if plan[:4] == _RTX else len(plan)
    if len(plan) < _SHORTEST or len(plan) != size:
        raise EngineError(f"{source} is truncated; copy it again or build the engine again")
    return "rtx" if plan[:4] == _RTX else "tensorrt"


def without_metadata(data: bytes) -> bytes:
    """The plan in an engine file that may begin with metadata, as Ultralytics writes it.

    Args:
        data: The bytes of the engine file.

    Returns:
        The bytes after a length-prefixed JSON object that a plan follows; ``data`` where there is none.
    """
    start = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
    if data[1:4] == _MAGIC or start > _LONGEST_METADATA or data[start + 1 : start + 4] != _MAGIC:
        return data
    try:
        metadata = records.parse(data[_LENGTH_BYTES:start])
    except records.RecordError:
        return data
    return data[start:] if isinstance(metadata, dict) else data


def plan_version(plan: bytes) -> str | None:
    """The TensorRT that built a plan, like "8.6.1.6"; None where its header has another form.

    Args:
        plan: The plan, whose beginning :func:`plan_flavor` has checked.
    """
    if any(plan[_HEADER_VERSION]) or not plan[_TENSORRT_VERSION.start]:
        return None
    return ".".join(map(str, plan[_TENSORRT_VERSION]))


def check_plan_version(plan: bytes, flavor: Flavor, source: str) -> None:
    """Refuses a plan of another version, where no sidecar says more of it.

    Args:
        plan: The plan.
        flavor: The TensorRT that is to run it.
        source: The engine's name in messages.

    Raises:
        EngineError: Another TensorRT built the plan; the message names both versions.
    """
    built = plan_version(plan)
    if built is None or _release(built) == _release(flavor.version):
        return
    # A package has the version of the bindings, and the library is what loads the plan.
    if _release(built) != flavor.library_version:
        raise _other_version(built, flavor, source)


def check_version(info: EngineInfo, flavor: Flavor, source: str) -> None:
    """Refuses an engine that was built by another version.

    Args:
        info: The engine's sidecar.
        flavor: The TensorRT that is to run the engine.
        source: The engine's name in messages.

    Raises:
        EngineError: This TensorRT cannot run the engine; the message names both versions.
    """
    built, here = _release(info.tensorrt_version), _release(flavor.version)
    runs = built <= here if info.version_compatible else built == here
    if not runs:
        raise _other_version(info.tensorrt_version, flavor, source)


def check_capability(info: EngineInfo, capability: str, source: str) -> None:
    """Refuses an engine that was built for other GPUs.

    Args:
        info: The engine's sidecar.
        capability: The GPU's compute capability, like "8.9".
        source: The engine's name in messages.

    Raises:
        EngineError: The GPU cannot run the engine; the message names all compute capabilities.
    """
    built_for = info.compute_capabilities
    if "current" not in built_for and not any(_runs(name, capability, info) for name in built_for):
        raise EngineError(
            f"{source} was built for compute capability {', '.join(built_for)}, and this GPU has "
            f"{capability}; build the engine for it"
        )


def _other_version(built: str, flavor: Flavor, source: str) -> EngineError:
    return EngineError(
        f"{source} was built with version {built} and this is {flavor}; install that version or build the "
        "engine again"
    )


def _release(version: str) -> tuple[int, ...]:
    """Major, minor and patch version; builds of the same release can run each other's plans."""
    return tuple(int(part) for part in version.split(".")[:3] if part.isdecimal())


def _runs(built: str, here: str, info: EngineInfo) -> bool:
    """Whether an engine for one compute capability runs on another."""
    (major, minor), (our_major, our_minor) = (tuple(map(int, name.split("."))) for name in (built, here))
    if info.hardware_compatibility == "ampere_plus":
        return our_major >= _AMPERE
    if info.built_with.builds_without_gpu:
        # Kernels are compiled when the engine is loaded, for the same or a later GPU of the same generation.
        return major == our_major and minor <= our_minor
    return built == here


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
    flavor: Flavor, logger: Any, plan: bytes, plugins: Sequence[FilePath] = ()
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
    inputs, outputs = (
        _datatypes(tensor.get("Format/Datatype", "") for tensor in _tensors(layer, key))
        for key in ("Inputs", "Outputs")
    )
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
    shapes = [tensor.get("Dimensions") for tensor in _tensors(layer, key)]
    known = [
        tuple(shape)
        for shape in shapes
        if isinstance(shape, list) and all(isinstance(size, int) for size in shape)
    ]
    return tuple(known) if len(known) == len(shapes) else ()


def _tensors(layer: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    tensors = layer.get(key)
    return [one if isinstance(one, dict) else {} for one in tensors] if isinstance(tensors, list) else []


def _datatypes(texts: Iterable[str]) -> tuple[str, ...]:
    matches = (_DATATYPE.search(str(text)) for text in texts)
    return tuple(_SPELLING.get(match[1].lower(), match[1].capitalize()) for match in matches if match)
