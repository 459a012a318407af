"""An ONNX model and a configuration in, a serialized engine out."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrators.errors import BuildError, ModelError, TrtInt8Error, UnsupportedError
from calibrators.inputs import InputSpec
from calibrators.progress import progress_bar
from trtint8.build_monitor import deferred_interrupt, new_monitor
from trtint8.capabilities import resolve_capabilities, set_capabilities
from trtint8.cuda import require_gpu
from trtint8.flavor import Flavor
from trtint8.layers import LayerReport, parse_layers, total_weights_memory
from trtint8.messages import BuildLog, collected, plain, shared_logger
from trtint8.profiles import Profile, ShapeRange, complete_profile

_ADVICE = (
    ("zero point", "quantize symmetrically, with zero point 0"),
    ("type Int32 but must have type", "leave the bias in float"),
    ("does not support this operator", "replace the node by operators that TensorRT has"),
    ("Scale coefficients must all be positive", "calibrate the tensor again"),
)
_EXTERNAL_DATA = re.compile(r"(?:Failed to open|out of range for) file: (?P<file>.*?)(?: \(offset=.*)?$")


@dataclass(frozen=True)
class BuiltEngine:
    """What a build produced.

    Attributes:
        plan: The serialized engine.
        report: Its layers; None where this TensorRT lists none.
        weights_bytes: Size of its weights; None where this TensorRT does not tell.
        compute_capabilities: What it runs on, like ("8.6",) or ("current",); empty means the GPU that
            built it.
        flavor: "tensorrt" or "rtx".
        version: The TensorRT version.
        profiles: The optimization profiles, defaults included; empty where all inputs are static.
        warnings: TensorRT's warnings, in plain words and without repetitions.
        seconds: How long parsing and building took.
    """

    plan: bytes
    report: LayerReport | None
    weights_bytes: int | None
    compute_capabilities: tuple[str, ...]
    flavor: str
    version: str
    profiles: tuple[dict[str, ShapeRange], ...]
    warnings: tuple[str, ...]
    seconds: float


def build_engine(
    model: bytes | str | os.PathLike[str],
    inputs: Sequence[InputSpec],
    *,
    flavor: Flavor,
    profiles: Sequence[Profile] = (),
    compute_capabilities: Sequence[str] = (),
    fp16: bool | None = None,
    int8: bool = False,
    progress: bool = True,
) -> BuiltEngine:
    """Builds an engine from an ONNX model whose precisions stand in the graph.

    Args:
        model: The serialized model, or its path. Weights in external files need the path.
        inputs: The model's inputs.
        flavor: The TensorRT to build with.
        profiles: Shapes of dynamic inputs, an optimization profile each; inputs that a profile leaves out
            get defaults. Empty means one profile of defaults.
        compute_capabilities: What to build for, see :func:`~trtint8.capabilities.resolve_capabilities`.
        fp16: Whether layers outside the quantized parts may run in FP16. None allows it where TensorRT
            chooses precisions, and says nothing where they stand in the graph.
        int8: Whether the model holds Q/DQ nodes.
        progress: False shows no progress bar.

    Returns:
        The engine and the evidence of what became of the model.

    Raises:
        ModelError: The model cannot be read, is empty, or lacks a file with its weights.
        BuildError: TensorRT refused the model or failed, or a profile does not fit the model.
        UnsupportedError: This TensorRT cannot do what was asked.
        GpuUnavailableError: This TensorRT needs a GPU to build.
        KeyboardInterrupt: Ctrl-C was pressed. The build was cancelled at its next step; a step can take
            seconds.
    """
    if fp16 and flavor.strongly_typed_only:
        raise UnsupportedError(
            f"{flavor} takes precisions from the model and has no FP16 switch; convert the model itself to "
            f"FP16, or leave fp16 out"
        )
    shapes = tuple(filter(None, (complete_profile(profile, inputs) for profile in profiles or [{}])))
    if not isinstance(model, bytes) and not Path(model).is_file():
        raise ModelError(f"there is no model '{os.fspath(model)}'; give the path of an ONNX file")
    # Before anything of TensorRT is touched: without a driver it may crash the process.
    if not flavor.builds_without_gpu:
        require_gpu(f"building with {flavor}")
    capabilities = resolve_capabilities(flavor, compute_capabilities)

    start = time.perf_counter()
    with (
        collected(flavor.module) as log,
        deferred_interrupt() as interrupted,
        progress_bar("building engine", None, enabled=progress) as advance,
    ):
        monitor = new_monitor(flavor.module, advance, interrupted) if flavor.has_progress_monitor else None
        try:
            plan = _build_plan(
                model, shapes, flavor, log, capabilities, monitor, int8=int8, fp16=fp16 is not False
            )
        except TrtInt8Error as error:
            # The frames in its traceback hold the builder and the weights: whoever keeps the error, as
            # notebooks do, would keep them alive.
            raise error.with_traceback(None) from None
    return BuiltEngine(
        plan=plan,
        report=parse_layers(log.details),
        weights_bytes=total_weights_memory(log.details),
        compute_capabilities=capabilities,
        flavor=flavor.name,
        version=flavor.version,
        profiles=shapes,
        warnings=tuple(dict.fromkeys(filter(None, map(plain, log.warnings)))),
        seconds=time.perf_counter() - start,
    )


def _build_plan(
    model: bytes | str | os.PathLike[str],
    profiles: Sequence[Profile],
    flavor: Flavor,
    log: BuildLog,
    capabilities: Sequence[str],
    monitor: Any,
    *,
    int8: bool,
    fp16: bool,
) -> bytes:
    # None of these objects keeps what it was made from alive, so all of them stay here until the end.
    trt, logger = flavor.module, shared_logger(flavor.module)
    builder = _new_builder(trt, logger, flavor, log)
    network = builder.create_network(_network_flags(trt, flavor))
    parser = trt.OnnxParser(network, logger)
    _parse(parser, network, model, flavor, log)
    config = builder.create_builder_config()
    # The default prints no datatypes of layers.
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    if not flavor.strongly_typed_only:
        _allow_precisions(trt, config, int8=int8, fp16=fp16)
    set_capabilities(trt, config, capabilities)
    for profile in profiles:
        _add_profile(builder, config, profile)
    if monitor is not None:
        config.progress_monitor = monitor
    memory = builder.build_serialized_network(network, config)
    if memory is None:
        raise BuildError(f"{flavor} could not build the engine: {log.reason()}")
    return bytes(memory)


def _new_builder(trt: Any, logger: Any, flavor: Flavor, log: BuildLog) -> Any:
    try:
        return trt.Builder(logger)
    except TypeError as error:
        # All that Python sees of a driver that is too old for TensorRT's CUDA is a null pointer.
        raise BuildError(
            f"{flavor} does not start ({log.reason()}); check that the NVIDIA driver is new enough for it"
        ) from error


def _network_flags(trt: Any, flavor: Flavor) -> int:
    if flavor.explicit_batch_flag:
        return 1 << int(trt.NetworkDefinitionCreationFlag.EXPLICIT_BATCH)
    return 0


def _allow_precisions(trt: Any, config: Any, *, int8: bool, fp16: bool) -> None:
    if int8:
        config.set_flag(trt.BuilderFlag.INT8)
    if fp16:
        config.set_flag(trt.BuilderFlag.FP16)


def _add_profile(builder: Any, config: Any, shapes: Profile) -> None:
    profile = builder.create_optimization_profile()
    for name, sizes in shapes.items():
        profile.set_shape(name, sizes.min, sizes.opt, sizes.max)
    if config.add_optimization_profile(profile) < 0:
        described = ", ".join(f"{name}={sizes}" for name, sizes in shapes.items())
        raise BuildError(f"TensorRT refuses the optimization profile {described}; give other shapes")


def _parse(
    parser: Any, network: Any, model: bytes | str | os.PathLike[str], flavor: Flavor, log: BuildLog
) -> None:
    if isinstance(model, bytes):
        parsed, what = parser.parse(model), "the model"
    else:
        parsed, what = parser.parse_from_file(os.fspath(model)), f"'{os.fspath(model)}'"
    if not parsed:
        _raise_parser_error(parser, flavor, log, what)
    # An empty file "parses".
    if network.num_layers == 0:
        raise ModelError(f"{what} holds no nodes; give an ONNX model that was exported completely")


def _raise_parser_error(parser: Any, flavor: Flavor, log: BuildLog, what: str) -> None:
    # Only the log names the file.
    for message in log.errors:
        external = _EXTERNAL_DATA.search(message)
        if external:
            raise ModelError(
                f"{what} keeps weights in '{external['file']}', which is missing or too short; put the whole "
                f"file beside the model, and give the model's path"
            )
    error = parser.get_error(0)
    reason = plain(error.desc())
    if error.node() < 0:
        raise ModelError(f"{flavor} cannot read {what} as an ONNX model: {reason}")
    if flavor.names_failing_nodes:
        node = f"node '{error.node_name()}' ({error.node_operator()})"
    else:
        node = f"node number {error.node()}"
    advice = "".join(f"; {advice}" for phrase, advice in _ADVICE if phrase in reason)
    raise BuildError(f"{flavor} cannot take {node} of {what}: {reason}{advice}")
