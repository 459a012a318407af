"""Builds a serialized engine from an ONNX model and build options."""

from __future__ import annotations

import contextlib
import os
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrators.cuda import (
    check_ordinal,
    compute_capability,
    gpu_problem,
    primary_context,
    require_gpu,
)
from calibrators.data.inputs import InputSpec
from calibrators.data.samples import SampleSizes
from calibrators.errors import Argument, BuildError, ModelError, TrtInt8Error, UnsupportedError
from calibrators.files import is_file
from calibrators.progress import progress_bar
from calibrators.tensorrt.calibrator import ServedBuild
from calibrators.tensorrt.flavor import Flavor, FlavorName
from calibrators.tensorrt.foreign import AnyCalibrator
from calibrators.tensorrt.messages import BuildLog, collected, plain_words, shared_logger
from calibrators.tensorrt.network_inputs import network_dtypes
from trtint8.builder.compute_capabilities import resolve_capabilities, set_capabilities
from trtint8.builder.config import check_options, configure, load_plugins
from trtint8.builder.dynamic_ranges import MissingRange
from trtint8.builder.implicit import (
    ImplicitInt8,
    apply_ranges,
    calibration_profile,
    check_calibrator,
    check_device,
    finish_calibration,
)
from trtint8.builder.monitor import deferred_interrupt, new_monitor
from trtint8.builder.optimization_profiles import add_profile, check_shape_values, format_shapes, new_profile
from trtint8.builder.options import BuildOptions
from trtint8.builder.parsing import network_flags, new_builder, parse_model
from trtint8.builder.precisions import io_dtypes, set_io, set_precisions
from trtint8.builder.timing_cache import attach_timing_cache, save_timing_cache
from trtint8.engine.inspection import inspect_plan
from trtint8.engine.layers import LayerReport, parse_layers, total_weights_memory
from trtint8.engine.profiles import Profile, ShapeRange, complete_profile

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


def check_build(
    flavor: Flavor, options: BuildOptions, compute_capabilities: Sequence[str] = ()
) -> tuple[str, ...]:
    """Refuses what TensorRT or this machine cannot do; :func:`build_engine` does so, too.

    Args:
        flavor: The TensorRT that builds.
        options: The build options.
        compute_capabilities: See :func:`build_engine`.

    Returns:
        For which compute capabilities is built; see
        :func:`trtint8.builder.compute_capabilities.resolve_capabilities`.

    Raises:
        UnsupportedError: This TensorRT lacks an option or a compute capability.
        BuildError: A value is out of range, or a file is missing.
        GpuUnavailableError: This TensorRT needs a GPU to build.
    """
    # Checked before TensorRT is used, because without a driver it may crash the process.
    if not flavor.builds_without_gpu:
        require_gpu(f"building with {flavor}")
        check_ordinal(options.device)
    check_options(flavor, options)
    return resolve_capabilities(flavor, compute_capabilities, options.device)


def build_engine(
    model: bytes | str | os.PathLike[str],
    inputs: Sequence[InputSpec],
    *,
    flavor: Flavor,
    profiles: Sequence[Profile] = (),
    sizes: Mapping[str, SampleSizes] | None = None,
    compute_capabilities: Sequence[str] = (),
    options: BuildOptions = _DEFAULTS,
    int8: bool = False,
    implicit: ImplicitInt8 | None = None,
    progress: bool = True,
) -> BuiltEngine:
    """Builds an engine from an ONNX model.

    Args:
        model: The serialized model, or its path. Weights in external files need the path.
        inputs: The model's inputs.
        flavor: The TensorRT to build with.
        profiles: The shapes of dynamic inputs in every optimization profile; inputs that a profile leaves out
            get defaults. Empty means one profile of defaults.
        sizes: Input name to the sizes that samples had, of which defaults are made: see
            :func:`~trtint8.engine.profiles.complete_profile`.
        compute_capabilities: The compute capabilities to build for: see
            :func:`~trtint8.builder.compute_capabilities.resolve_capabilities`.
        options: All other options of the build.
        int8: Whether the model holds Q/DQ nodes.
        implicit: Where the ranges of a float model come from; None where the graph gives the precisions.
        progress: Whether to show a progress bar.

    Returns:
        The engine, with a report of its layers.

    Raises:
        ModelError: The model cannot be read, is empty, or lacks a file with its weights.
        BuildError: TensorRT refused the model or failed, or a profile or an option does not fit.
        UnsupportedError: This TensorRT cannot do what was asked for.
        GpuUnavailableError: This TensorRT needs a GPU to build.
        KeyboardInterrupt: Ctrl-C was pressed. The build was cancelled at its next step; a step can take
            seconds.
        BaseException: The calibrator failed, or the program's handler of SIGTERM raised an exception, which
            cancels the build as Ctrl-C does; the same exception is raised.
    """
    shapes = tuple(filter(None, (complete_profile(profile, inputs, sizes) for profile in profiles or [{}])))
    if not isinstance(model, bytes) and not is_file(model):
        raise ModelError(f"there is no model '{os.fspath(model)}'; give the path of an ONNX file")
    if implicit is not None and not flavor.implicit_int8:
        raise UnsupportedError(
            f"{flavor} has neither calibrators nor dynamic ranges; take the explicit route, which puts Q/DQ "
            f"pairs into the graph"
        )
    capabilities = check_build(flavor, options, compute_capabilities)
    _check_dla(options, shapes)
    calibrator = implicit.calibrator if implicit else None
    # The calibrator is told of both now; they are known once Ctrl-C is deferred and once the model is parsed.
    interrupted: Callable[[], bool] = bool
    dtypes_to_feed: dict[str, np.dtype[Any]] = {}
    calibration_shapes: Profile | None = None
    if implicit is not None and calibrator is not None:
        check_calibrator(flavor.module, calibrator, options)
        check_device(calibrator, options.device)
        # Without a monitor, as in TensorRT 8, a build can only be cancelled between two calibration batches.
        served = ServedBuild(
            implicit.model, options.calibrate_before_fusion, dtypes_to_feed, lambda: interrupted()
        )
        # Both may read from the data's source, which is code of the user. Ctrl-C ends that at once, as long
        # as TensorRT is not running.
        calibrator.bind(served)
        calibration_shapes = calibration_profile(calibrator, shapes)

    start = time.perf_counter()
    with (
        _context(calibrator, options.device),
        collected(flavor.module) as log,
        deferred_interrupt() as deferred,
        progress_bar("building engine", None, enabled=progress) as advance,
    ):
        interrupted = deferred
        monitor = new_monitor(flavor.module, advance, interrupted) if flavor.has_progress_monitor else None
        in_int8 = int8 or implicit is not None
        build = _Build(
            flavor,
            log,
            capabilities,
            shapes,
            options,
            in_int8,
            implicit,
            calibration_shapes,
            monitor,
            dtypes_to_feed,
        )
        plan, missing, dtypes = build.run(model)
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
        compute_capabilities=capabilities or (compute_capability(options.device),),
        flavor=flavor.name,
        version=flavor.version,
        profiles=shapes,
        warnings=tuple(plain_words(log.warnings)),
        missing_ranges=missing,
        dtypes=dtypes,
        seconds=time.perf_counter() - start,
    )


#: A plan, the tensors that have no range, and the types at the plan's ends.
_Built = tuple[bytes, tuple[MissingRange, ...], dict[str, np.dtype[Any]]]


@dataclass(frozen=True)
class _Build:
    """One run of TensorRT's builder."""

    flavor: Flavor
    log: BuildLog
    capabilities: Sequence[str]
    profiles: Sequence[Profile]
    options: BuildOptions
    int8: bool
    implicit: ImplicitInt8 | None
    calibration_shapes: Profile | None
    monitor: Any
    dtypes_to_feed: dict[str, np.dtype[Any]]

    @property
    def calibrator(self) -> AnyCalibrator | None:
        return self.implicit.calibrator if self.implicit else None

    def run(self, model: bytes | str | os.PathLike[str]) -> _Built:
        """Builds the plan; what a calibrator failed with comes before what the build failed with."""
        try:
            built = self._build(model)
        except TrtInt8Error as error:
            # The frames of the traceback refer to the builder and the weights, which would stay in memory as
            # long as somebody keeps the error, as notebooks do.
            traceback.clear_frames(error.__traceback__)
            error.with_traceback(None)
            finish_calibration(self.calibrator, error)
            raise error from None
        finally:
            if self.calibrator:
                self.calibrator.close()
        finish_calibration(self.calibrator, None)
        return built

    def _build(self, model: bytes | str | os.PathLike[str]) -> _Built:
        # None of these objects keeps the objects that it was made from alive, so all stay here until the end.
        trt, flavor, options = self.flavor.module, self.flavor, self.options
        logger = shared_logger(trt)
        builder = new_builder(trt, logger, flavor, self.log)
        config = builder.create_builder_config()
        load_plugins(flavor, builder, config, options)
        network = builder.create_network(network_flags(trt, flavor))
        parser = trt.OnnxParser(network, logger)
        parse_model(parser, network, model, flavor, self.log)
        configure(trt, flavor, builder, config, options, int8=self.int8)
        set_capabilities(trt, config, self.capabilities)
        check_shape_values(network, options.shape_values)
        for shapes in self.profiles or ([{}] if options.shape_values else []):
            add_profile(builder, config, shapes, options.shape_values)
        set_io(trt, network, options)
        missing: tuple[MissingRange, ...] = ()
        if self.implicit is not None:
            missing = apply_ranges(trt, network, config, self.implicit, options)
            self._attach_calibrator(builder, config, network)
        elif options.layer_precisions or options.output_types:
            set_precisions(trt, network, config, options)
        if self.monitor is not None:
            config.progress_monitor = self.monitor
        if options.timing_cache is not None:
            attach_timing_cache(config, options.timing_cache, self.log)
        memory = builder.build_serialized_network(network, config)
        if memory is None:
            raise BuildError(f"{flavor} could not build the engine: {self.log.reason()}{self._advice()}")
        if options.timing_cache is not None:
            save_timing_cache(config, options.timing_cache)
        return bytes(memory), missing, io_dtypes(trt, network)

    def _advice(self) -> str:
        """What to do where the compiler inside TensorRT failed, which is no fault of the model's."""
        if _COMPILER not in self.log.reason():
            return ""
        other = (
            ""
            if self.options.fp16
            else f"build in FP16 ({Argument('fp16', 'True')}), which takes other kernels, or "
        )
        return f", an error inside TensorRT; {other}keep layers in float ({Argument('keep_float')})"

    def _optimal_values(self) -> dict[str, ShapeRange]:
        """The values of inputs that decide shapes, for a calibration, which has one shape per input."""
        values = self.options.shape_values.items()
        return {name: ShapeRange(sizes.opt, sizes.opt, sizes.opt) for name, sizes in values}

    def _attach_calibrator(self, builder: Any, config: Any, network: Any) -> None:
        if self.calibrator is None:
            return
        self.dtypes_to_feed.update(network_dtypes(self.flavor.module, network))
        config.int8_calibrator = self.calibrator.implementation
        shapes = self.calibration_shapes
        if shapes and not config.set_calibration_profile(
            new_profile(builder, shapes, self._optimal_values())
        ):
            raise BuildError(
                f"TensorRT refuses to calibrate with {format_shapes(shapes)}; give batches of another size"
            )


def _context(calibrator: AnyCalibrator | None, device: int) -> AbstractContextManager[None]:
    """The CUDA context to build in, where the calibrator's memory is too."""
    if gpu_problem():  # TensorRT for RTX builds all the same
        return contextlib.nullcontext()
    context = calibrator.context() if calibrator else None
    return primary_context(device) if context is None else context


def _check_dla(options: BuildOptions, profiles: Sequence[Profile]) -> None:
    for name, sizes in ((name, sizes) for profile in profiles for name, sizes in profile.items()):
        if options.dla_core is not None and sizes.min != sizes.max:
            raise BuildError(
                f"the DLA takes fixed shapes only, and the profile of input '{name}' is {sizes}; give the "
                "same shape three times"
            )
