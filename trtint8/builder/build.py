"""Builds a serialized engine from an ONNX model and build options.

The model is read into a network of TensorRT, and nodes that it refuses are named. Optimization profiles get
TensorRT's own form. A build reports its progress, and Ctrl-C and SIGTERM cancel it. On a machine without a
GPU a build also proves that the layers of a Q/DQ model run in INT8.

What TensorRT refuses, or runs in float, is written in forms that compute the same. A scale must be positive
for TensorRT, and exporters give weights that were pruned to 0 the scale 0. Many exporters give activations
scales of shape [1], which are scales per channel for TensorRT. TensorRT for RTX 1.7 fails inside
("same_symbolic_shapes") where one number multiplies the output of an INT8 convolution.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from calibrators.checks import FilePath
from calibrators.cuda import (
    check_ordinal,
    compute_capability,
    gpu_problem,
    gpu_uuid,
    primary_context,
    require_gpu,
    turn_on_gpu,
)
from calibrators.data.feeds import Array
from calibrators.data.inputs import InputSpec
from calibrators.data.samples import SampleSizes
from calibrators.errors import Argument, BuildError, ModelError, TrtInt8Error, advice, counted, such_as
from calibrators.files import is_file
from calibrators.interruption import deferred_interrupt
from calibrators.operators import operator_of
from calibrators.progress import BUILDING, progress_bar
from calibrators.tensorrt import flavor
from calibrators.tensorrt.calibrator import AnyCalibrator, ServedBuild
from calibrators.tensorrt.feeding import network_dtypes
from calibrators.tensorrt.flavor import WITHOUT_GPU, Flavor, FlavorName
from calibrators.tensorrt.messages import BuildLog, collected, plain, plain_words, shared_logger
from trtint8.builder.config import (
    BuildOptions,
    attach_timing_cache,
    check_options,
    configure,
    load_plugins,
    resolve_capabilities,
    save_timing_cache,
    set_capabilities,
)
from trtint8.builder.dynamic_ranges import MissingRange, layers_of
from trtint8.builder.implicit import (
    ImplicitInt8,
    apply_ranges,
    calibration_profile,
    check_calibrator,
    check_device,
    finish_calibration,
    io_dtypes,
    set_io,
    set_precisions,
)
from trtint8.engine.layers import LayerReport, parse_layers, total_weights_memory
from trtint8.engine.plan import inspect_plan
from trtint8.engine.profiles import Profile, ShapeRange, check_profile, complete_profile
from trtint8.interop.pairs import dequantizer_behind, float_values, input_at, is_weight
from trtint8.models.graph import is_constant, made_by, read_constant, set_constant_input, value_names
from trtint8.models.serialization import runnable

_DEFAULTS = BuildOptions()

#: The compiler inside TensorRT, by which its internal errors are told.
_COMPILER = "Myelin"


@dataclass(frozen=True)
class BuiltEngine:
    """The result of a build.

    Attributes:
        plan: The serialized engine.
        report: The layers of the engine; None where this TensorRT does not list them.
        weights_bytes: Size of the engine's weights in bytes; None where this TensorRT does not report it.
        compute_capabilities: The compute capabilities that the engine was built for, like ("8.6",), or
            ("current",) for the GPU that built it.
        flavor: "tensorrt" or "rtx".
        version: The TensorRT version.
        profiles: The optimization profiles, defaults included; empty where all inputs are static.
        warnings: TensorRT's warnings, in plain words and without repetitions.
        missing_ranges: Tensors that have no dynamic range, around which nothing runs in INT8; empty where the
            graph gives the precisions, or a calibrator found the ranges.
        dtypes: Input or output name to its element type in the engine; those of a type that NumPy lacks are
            left out.
        seconds: How long parsing and building took, in seconds.
    """

    plan: bytes
    report: LayerReport | None
    weights_bytes: int | None
    compute_capabilities: tuple[str, ...]
    flavor: FlavorName
    version: str
    profiles: tuple[dict[str, ShapeRange], ...]
    warnings: tuple[str, ...]
    missing_ranges: tuple[MissingRange, ...]
    dtypes: Mapping[str, np.dtype[Any]]
    seconds: float


@dataclass(frozen=True)
class Build:
    """What is known of an engine before its graph and its ranges; whoever makes one has it checked.

    So nothing that could be refused at once is refused after minutes of calibration.

    Attributes:
        flavor: The TensorRT to build with.
        inputs: The model's inputs.
        profiles: The shapes of dynamic inputs in every optimization profile; inputs that a profile leaves out
            get defaults. Empty means one profile of defaults.
        compute_capabilities: The compute capabilities to build for, resolved: see
            :func:`~trtint8.builder.config.resolve_capabilities`.
        options: All other options of the build. Where TensorRT takes types from the graph, ``fp16`` says
            what the graph was made for, and the graph decides.
        progress: Whether to show a progress bar.

    Raises:
        UnsupportedError: This TensorRT lacks an option or a compute capability.
        BuildError: A value is out of range, a file is missing, or a profile does not fit the inputs.
        GpuUnavailableError: This TensorRT needs a GPU to build.
    """

    flavor: Flavor
    inputs: Sequence[InputSpec]
    profiles: Sequence[Profile] = ()
    compute_capabilities: Sequence[str] = ()
    options: BuildOptions = _DEFAULTS
    progress: bool = True

    def __post_init__(self) -> None:
        # Checked before TensorRT is used, because without a driver it may crash the process.
        if not self.flavor.builds_without_gpu:
            require_gpu(
                f"building with {self.flavor}", advice(WITHOUT_GPU, "run this on a machine that has one")
            )
            check_ordinal(self.options.device)
        check_options(self.flavor, self.options)
        resolved = resolve_capabilities(self.flavor, self.compute_capabilities, self.options.device)
        object.__setattr__(self, "compute_capabilities", resolved)
        for profile in self.profiles:
            check_profile(profile, self.inputs)

    def run(
        self,
        model: bytes | FilePath,
        implicit: ImplicitInt8 | None = None,
        *,
        int8: bool = False,
        sizes: Mapping[str, SampleSizes] | None = None,
    ) -> BuiltEngine:
        """Builds the engine from an ONNX model.

        Args:
            model: The serialized model, or its path. Weights in external files need the path.
            implicit: Where the ranges of a float model come from, for a TensorRT that has dynamic ranges;
                None where the graph gives the precisions.
            int8: Whether the model holds Q/DQ nodes.
            sizes: Input name to the sizes that samples had, of which defaults are made: see
                :func:`~trtint8.engine.profiles.complete_profile`.

        Returns:
            The engine, with a report of its layers.

        Raises:
            ModelError: The model cannot be read, is empty, or lacks a file with its weights.
            BuildError: TensorRT refused the model or failed, or sizes are missing.
            UnsupportedError: This TensorRT cannot use the calibrator.
            KeyboardInterrupt: Ctrl-C was pressed. The build was cancelled at its next step; a step can take
                seconds.
            BaseException: The calibrator failed, or the program's handler of SIGTERM raised an exception,
                which cancels the build as Ctrl-C does; the same exception is raised.
        """
        flavor, options = self.flavor, self.options
        completed = (complete_profile(profile, self.inputs, sizes) for profile in self.profiles or [{}])
        shapes = tuple(filter(None, completed))
        if not isinstance(model, bytes) and not is_file(model):
            raise ModelError(f"there is no model '{os.fspath(model)}'; give the path of an ONNX file")
        _check_dla(options, shapes)
        calibrator = implicit.calibrator if implicit else None
        # The calibrator is told of both now; they are known once Ctrl-C is deferred and once the model is
        # parsed.
        interrupted: Callable[[], bool] = bool
        dtypes_to_feed: dict[str, np.dtype[Any]] = {}
        calibration_shapes: Profile | None = None
        if implicit is not None and calibrator is not None:
            check_calibrator(flavor.module, calibrator, options)
            check_device(calibrator, options.device)
            # Without a monitor, as in TensorRT 8, a build can only be cancelled between two calibration
            # batches.
            served = ServedBuild(
                implicit.model, options.calibrate_before_fusion, dtypes_to_feed, lambda: interrupted()
            )
            # Both may read from the data's source, which is code of the user. Ctrl-C ends that at once, as
            # long as TensorRT is not running.
            calibrator.bind(served)
            calibration_shapes = calibration_profile(calibrator, shapes)

        with (
            _turn(flavor, options.device),
            _context(calibrator, options.device),
            collected(flavor.module) as log,
            deferred_interrupt() as deferred,
            progress_bar(BUILDING, None, enabled=self.progress) as advance,
        ):
            start = time.perf_counter()
            interrupted = deferred
            monitor = _new_monitor(flavor.module, advance, deferred) if flavor.has_progress_monitor else None
            try:
                plan, missing, dtypes = self._plan(
                    model, shapes, implicit, calibration_shapes, dtypes_to_feed, log, monitor, int8=int8
                )
            except TrtInt8Error as error:
                # The frames of the traceback refer to the builder and the weights, which would stay in
                # memory as long as somebody keeps the error, as notebooks do.
                traceback.clear_frames(error.__traceback__)
                error.with_traceback(None)
                finish_calibration(calibrator, error)
                raise error from None
            finally:
                if calibrator:
                    calibrator.close()
            finish_calibration(calibrator, None)
            if flavor.lists_layers:
                report = parse_layers(log.details)
            else:
                # A version-compatible plan contains them.
                plugins = () if options.version_compatible else options.plugins
                report = inspect_plan(flavor, shared_logger(flavor.module), plan, plugins)
        return BuiltEngine(
            plan=plan,
            report=report,
            weights_bytes=total_weights_memory(log.details),
            compute_capabilities=tuple(self.compute_capabilities) or (compute_capability(options.device),),
            flavor=flavor.name,
            version=flavor.version,
            profiles=shapes,
            warnings=tuple(plain_words(log.warnings)),
            missing_ranges=missing,
            dtypes=dtypes,
            seconds=time.perf_counter() - start,
        )

    def _plan(
        self,
        model: bytes | FilePath,
        profiles: Sequence[Profile],
        implicit: ImplicitInt8 | None,
        calibration_shapes: Profile | None,
        dtypes_to_feed: dict[str, np.dtype[Any]],
        log: BuildLog,
        monitor: Any,
        *,
        int8: bool,
    ) -> tuple[bytes, tuple[MissingRange, ...], dict[str, np.dtype[Any]]]:
        """The plan, the tensors that have no range, and the types at the plan's ends."""
        trt, flavor, options = self.flavor.module, self.flavor, self.options
        reader = NetworkReader.new(flavor, options, log)
        builder, config, network = reader.builder, reader.config, reader.network
        reader.read(model)
        configure(trt, flavor, builder, config, options, int8=int8 or implicit is not None)
        set_capabilities(trt, config, self.compute_capabilities)
        check_shape_values(network, options.shape_values)
        for shapes in profiles or ([{}] if options.shape_values else []):
            _add_profile(builder, config, shapes, options.shape_values)
        set_io(trt, network, options)
        missing: tuple[MissingRange, ...] = ()
        if implicit is not None:
            missing = apply_ranges(trt, network, config, implicit, options)
            if implicit.calibrator is not None:
                dtypes_to_feed.update(network_dtypes(trt, network))
                config.int8_calibrator = implicit.calibrator.implementation
            if calibration_shapes:
                # A calibration has one shape per input, and one value of an input that decides shapes.
                values = {
                    name: ShapeRange(sizes.opt, sizes.opt, sizes.opt)
                    for name, sizes in options.shape_values.items()
                }
                if not config.set_calibration_profile(new_profile(builder, calibration_shapes, values)):
                    raise BuildError(
                        f"TensorRT refuses to calibrate with {_format_shapes(calibration_shapes)}; give "
                        "batches of another size"
                    )
        elif options.layer_precisions or options.output_types:
            set_precisions(trt, network, config, options)
        if monitor is not None:
            config.progress_monitor = monitor
        if options.timing_cache is not None:
            attach_timing_cache(config, options.timing_cache, log)
        memory = builder.build_serialized_network(network, config)
        if memory is None:
            advice = self._advice(log, network)
            raise BuildError(f"{flavor} could not build the engine: {log.reason()}{advice}")
        if options.timing_cache is not None:
            save_timing_cache(config, options.timing_cache)
        return bytes(memory), missing, io_dtypes(trt, network)

    def _advice(self, log: BuildLog, network: Any) -> str:
        """What to do where the compiler inside TensorRT failed, which is no fault of the model's."""
        if _COMPILER not in log.reason():
            return ""
        other = f"build in FP16 ({Argument('fp16', 'True')}), which takes other kernels"
        ways = advice(
            *([] if self._has_fp16(network) else [other]),
            f"keep layers in float ({Argument('keep_float')})",
            "take another version of TensorRT",
        )
        return f", an error inside TensorRT; {ways}"

    def _has_fp16(self, network: Any) -> bool:
        """True if the engine may compute in FP16."""
        if not self.flavor.strongly_typed_only:
            return self.options.fp16 is not False
        half = self.flavor.module.DataType.HALF
        layers = layers_of(network)
        return any(
            layer.get_output(index).dtype == half for layer in layers for index in range(layer.num_outputs)
        )


def _context(calibrator: AnyCalibrator | None, device: int) -> AbstractContextManager[None]:
    """The CUDA context to build in, where the calibrator's memory is too."""
    if gpu_problem():  # TensorRT for RTX builds all the same
        return contextlib.nullcontext()
    context = calibrator.context() if calibrator else None
    return primary_context(device) if context is None else context


def _turn(flavor: Flavor, device: int) -> AbstractContextManager[None]:
    """The GPU for this build alone, where TensorRT times kernels on it."""
    if flavor.builds_without_gpu:
        return contextlib.nullcontext()
    return turn_on_gpu(gpu_uuid(device), "building an engine")


def _check_dla(options: BuildOptions, profiles: Sequence[Profile]) -> None:
    for name, sizes in ((name, sizes) for profile in profiles for name, sizes in profile.items()):
        if options.dla_core is not None and sizes.min != sizes.max:
            raise BuildError(
                f"the DLA takes fixed shapes only, and the profile of input '{name}' is {sizes}; give the "
                "same shape three times"
            )


#: Phrases in the parser's errors, and what the user can do.
_ADVICE = (
    ("zero point", "quantize symmetrically, with zero point 0"),
    ("type Int32 but must have type", "leave the bias in float"),
    ("does not support this operator", "replace the node by operators that TensorRT has"),
    ("Scale coefficients must all be positive", "calibrate the tensor again"),
)
_EXTERNAL_DATA = re.compile(r"(?:Failed to open|out of range for) file: (?P<file>.*?)(?: \(offset=.*)?$")


def network_flags(trt: Any, flavor: Flavor) -> int:
    """The flags with which a network for an ONNX model is created."""
    if flavor.explicit_batch_flag:
        return 1 << int(trt.NetworkDefinitionCreationFlag.EXPLICIT_BATCH)
    return 0


@dataclass(frozen=True)
class NetworkReader:
    """What TensorRT reads a model into.

    None of these objects keeps the objects that it was made from alive, so all stay here until the end.

    Attributes:
        flavor: The TensorRT.
        log: What TensorRT has said.
        logger: Its ``ILogger``.
        builder: Its ``Builder``.
        config: The ``IBuilderConfig`` of the build.
        network: The ``INetworkDefinition``.
        parser: The ``OnnxParser`` of the network.
    """

    flavor: Flavor
    log: BuildLog
    logger: Any
    builder: Any
    config: Any
    network: Any
    parser: Any

    @classmethod
    def new(cls, flavor: Flavor, options: BuildOptions, log: BuildLog) -> NetworkReader:
        """An empty network, with the plugins of a build.

        Raises:
            BuildError: TensorRT does not start, or a plugin cannot be loaded.
            UnsupportedError: This TensorRT does not take such a library.
        """
        trt = flavor.module
        logger = shared_logger(trt)
        try:
            builder = trt.Builder(logger)
        except TypeError as error:
            # Where the driver is too old for TensorRT's CUDA, the bindings only get a null pointer.
            raise BuildError(
                f"{flavor} does not start ({log.reason()}); check that the NVIDIA driver is new enough for it"
            ) from error
        config = builder.create_builder_config()
        load_plugins(flavor, builder, config, options)
        network = builder.create_network(network_flags(trt, flavor))
        return cls(flavor, log, logger, builder, config, network, trt.OnnxParser(network, logger))

    def read(self, model: bytes | FilePath) -> None:
        """Reads an ONNX model into the network.

        Args:
            model: The serialized model, or its path.

        Raises:
            ModelError: The model cannot be read, is empty, or lacks a file with its weights.
            BuildError: TensorRT refuses a node.
        """
        if isinstance(model, bytes):
            parsed, name = self.parser.parse(model), "the model"
        else:
            parsed, name = self.parser.parse_from_file(os.fspath(model)), f"'{os.fspath(model)}'"
        if not parsed:
            self._raise_error(name)
        # The parser accepts an empty file.
        if self.network.num_layers == 0:
            raise ModelError(f"{name} holds no nodes; give an ONNX model that was exported completely")

    def _raise_error(self, name: str) -> None:
        # Only the log names the file with the weights.
        for message in self.log.errors:
            external = _EXTERNAL_DATA.search(message)
            if external:
                raise ModelError(
                    f"{name} keeps weights in '{external['file']}', which is missing or too short; put the "
                    f"whole file beside the model, and give the model's path"
                )
        error, flavor = self.parser.get_error(0), self.flavor
        if error.node() < 0:
            raise ModelError(f"{flavor} cannot read {name} as an ONNX model: {plain(error.desc())}")
        node = f"node number {error.node()}"
        if flavor.names_failing_nodes:
            node = f"node '{error.node_name()}' ({error.node_operator()})"
        raise BuildError(f"{flavor} cannot take {node} of {name}: {reason_of(error)}")


def reason_of(error: Any) -> str:
    """Why the parser refuses a node, and where that is known, what to do."""
    reason = plain(error.desc())
    return reason + "".join(f"; {advice}" for phrase, advice in _ADVICE if phrase in reason)


def _new_monitor(trt: Any, advance: Callable[[int], None], cancelled: Callable[[], bool]) -> Any:
    """Creates a progress monitor for TensorRT.

    Args:
        trt: The TensorRT module.
        advance: Function that is called with 1 for every completed step of any phase.
        cancelled: Function that is called after every step; True cancels the build.

    Returns:
        An ``IProgressMonitor``, which must be kept until the build has ended.
    """

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)

        def phase_start(self, phase_name: str, parent_phase: str, num_steps: int) -> None:
            pass  # The base class requires it.

        def phase_finish(self, phase_name: str) -> None:
            pass  # The base class requires it.

        def step_complete(self, _phase_name: str, _step: int) -> bool:
            # An exception here would cancel the build, and a closed terminal is no reason for that.
            with contextlib.suppress(Exception):
                advance(1)
            return not cancelled()

    return Monitor()


def count_int8_layers(
    graph_model: ir.Model, inputs: Sequence[InputSpec], quantized_nodes: Sequence[str]
) -> int | None:
    """Builds a Q/DQ model with TensorRT for RTX and counts the layers that it runs in INT8.

    Args:
        graph_model: The model with Q/DQ pairs.
        inputs: The model's inputs.
        quantized_nodes: Names of the weighted nodes that are meant to run in INT8.

    Returns:
        The number of ``quantized_nodes`` that run in INT8; None if the builder does not list its layers.

    Raises:
        ModelError: The first argument is not a model of onnx-ir.
        UnsupportedError: TensorRT for RTX is not installed.
        BuildError: TensorRT refuses the model.

    Examples:
        >>> made = trtint8.migrate("model.onnx", "model.cache")
        >>> inputs = trtint8.model_inputs("model.onnx")
        >>> trtint8.count_int8_layers(made.graph_model, inputs, made.placement.quantized_nodes)
        9
    """
    if not isinstance(graph_model, ir.Model):
        raise ModelError(
            f"the model is given as {type(graph_model).__name__}; give an onnx_ir.Model, such as "
            "onnx_ir.load makes of a file"
        )
    with runnable(graph_model) as serialized:
        built = Build(flavor.load(flavor.ON_ANY_MACHINE), inputs).run(serialized, int8=True)
    if built.report is None:
        return None
    return len(built.report.weighted_summary(quantized_nodes).get("INT8", []))


def check_shape_values(network: Any, values: Mapping[str, ShapeRange]) -> None:
    """Refuses values for inputs that decide no shapes.

    Args:
        network: The parsed ``INetworkDefinition``.
        values: Input name to its values in the optimization profiles.

    Raises:
        BuildError: The network has no such input, or it decides no shapes or has another number of elements,
            or min <= opt <= max does not hold.
    """
    inputs = {tensor.name: tensor for tensor in map(network.get_input, range(network.num_inputs))}
    for name, given in values.items():
        if name not in inputs or not inputs[name].is_shape_tensor:
            found = [name for name, tensor in inputs.items() if tensor.is_shape_tensor]
            raise BuildError(
                f"{Argument('shape_values')} has '{name}', which is no input that decides shapes; the "
                f"network has {such_as(found)}"
            )
        count = math.prod(inputs[name].shape)
        if {len(given.min), len(given.opt), len(given.max)} != {count}:
            raise BuildError(
                f"input '{name}' has {counted(count, 'element')}, and {Argument('shape_values')} {given}; "
                "give as many of each"
            )
        if any(
            not low <= best <= high for low, best, high in zip(given.min, given.opt, given.max, strict=True)
        ):
            raise BuildError(
                f"{Argument('shape_values')} of input '{name}' is {given}; values must grow from min over "
                "opt to max"
            )


def _add_profile(builder: Any, config: Any, shapes: Profile, values: Mapping[str, ShapeRange]) -> None:
    """Adds an optimization profile to a builder's configuration; see :func:`new_profile`.

    Raises:
        BuildError: TensorRT refuses it.
    """
    if config.add_optimization_profile(new_profile(builder, shapes, values)) < 0:
        raise BuildError(
            f"TensorRT refuses the optimization profile {_format_shapes({**shapes, **values})}; give other "
            "shapes"
        )


def new_profile(builder: Any, shapes: Profile, values: Mapping[str, ShapeRange]) -> Any:
    """Makes an optimization profile.

    Args:
        builder: The ``Builder``.
        shapes: Input name to its shapes.
        values: Name of an input that decides shapes to its values.

    Returns:
        An ``IOptimizationProfile``.
    """
    profile = builder.create_optimization_profile()
    for name, sizes in shapes.items():
        profile.set_shape(name, sizes.min, sizes.opt, sizes.max)
    for name, sizes in values.items():
        profile.set_shape_input(name, sizes.min, sizes.opt, sizes.max)
    return profile


def _format_shapes(shapes: Profile) -> str:
    """The shapes in words, for a message."""
    return ", ".join(f"{name}={sizes}" for name, sizes in shapes.items())


def with_equal_forms(graph_model: ir.Model) -> ir.Model:
    """Returns a model that computes the same to the last bit, in the forms that TensorRT takes.

    Args:
        graph_model: A model with or without Q/DQ pairs; not changed.

    Returns:
        The model itself, where nothing is to be changed, or a copy. Weights that are 0 have a scale of 1 in
        place of 0. The one scale of an activation has no dimensions, and a zero point has the shape of its
        scale. A constant that multiplies the output of an INT8 convolution has a value per channel in place
        of one.
    """
    if next(_equal_constants(graph_model), None) is None:
        return graph_model
    changed = graph_model.clone()
    names = value_names(changed.graph)
    # Both nodes of a pair are looked at before either is changed.
    for node, index, array in list(_equal_constants(changed)):
        set_constant_input(node, index, array, names)
    return changed


def _equal_constants(graph_model: ir.Model) -> Iterator[tuple[ir.Node, int, Array]]:
    """The constants that nodes get in place of others: a node, the index of its input, and the constant."""
    for node in graph_model.graph:
        if operator_of(node).half_of_pair:
            yield from ((node, index, array) for index, array in _equal_parameters(node))
        elif (found := _channels_of_factor(node)) is not None:
            index, shape = found
            factor = read_constant(node.inputs[index])
            assert factor is not None
            yield node, index, np.full(shape, factor.reshape(()))


def _equal_parameters(node: ir.Node) -> Iterator[tuple[int, Array]]:
    """The scale and the zero point that a node of a pair gets in place of others, by their index."""
    scale, point = (read_constant(input_at(node, index)) for index in (1, 2))
    if scale is None:
        return
    shape = () if scale.size == 1 and not is_weight(node.inputs[0]) else scale.shape
    if _has_free_zeros(node):
        yield 1, np.where(scale == 0, scale.dtype.type(1), scale)
    elif shape != scale.shape:
        yield 1, scale.reshape(shape)
    if point is not None and point.size == 1 and point.shape != shape:
        yield 2, np.full(shape, point.reshape(()))


def _has_free_zeros(node: ir.Node) -> bool:
    """Whether a node of a pair has scales of 0, and only for weights that are 0 with any scale."""
    source, scale = node.inputs[0], read_constant(input_at(node, 1))
    if scale is None or scale.all():
        return False
    if node.op_type == "DequantizeLinear" and (quantize := made_by(source, "QuantizeLinear")):
        return _has_free_zeros(quantize)
    weights, point = read_constant(source), read_constant(input_at(node, 2))
    if weights is None:
        return False
    if point is None or node.op_type == "QuantizeLinear":
        point = np.zeros(1, np.int64)
    try:
        left = float_values(node, weights, (scale == 0).astype(np.float32).reshape(-1), point.reshape(-1))
    except ModelError:  # the scales do not fit, as the parser says
        return False
    return not left.any()


def _channels_of_factor(node: ir.Node) -> tuple[int, tuple[int, ...]] | None:
    """The shape that one number gets which multiplies the output of an INT8 convolution.

    Returns:
        The index of the input that is the number, and the shape; None of other nodes.
    """
    if node.op_type != "Mul" or node.domain != "":
        return None
    for index in (0, 1):
        factor, channels = read_constant(node.inputs[index]), _channels(node.inputs[1 - index])
        if factor is not None and factor.size == 1 and channels and factor.ndim <= len(channels) + 1:
            return index, channels
    return None


def _channels(value: ir.Value | None) -> tuple[int, ...]:
    """The shape of a value per channel of the INT8 convolution that computes a value; else nothing."""
    node = made_by(value)
    while node is not None and node.op_type == "Identity" and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    if node is None or node.domain != "" or node.op_type not in ("Conv", "ConvTranspose"):
        return ()
    data, weights = (dequantizer_behind(operand) for operand in node.inputs[:2])
    if data is None or weights is None or weights[1] is not None:
        return ()
    stored = weights[0].inputs[0]
    if quantize := made_by(stored, "QuantizeLinear"):
        stored = quantize.inputs[0]
    if not is_constant(stored) or stored is None or stored.shape is None:
        return ()
    shape = stored.shape.numpy()
    channels = shape[0] if node.op_type == "Conv" else shape[1] * node.attributes.get_int("group", 1)
    return (channels, *[1] * (len(shape) - 2))
