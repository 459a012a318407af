"""Checks build options, and sets them in TensorRT's builder configuration."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from calibrators.checks import as_integer
from calibrators.cuda import require_gpu
from calibrators.errors import Argument, BuildError, UnsupportedError
from calibrators.files import check_writable, is_file
from calibrators.tensorrt.flavor import Flavor
from calibrators.tensorrt.messages import shared_logger
from calibrators.tensorrt.own_plugins import register_own_plugins
from calibrators.tensorrt.plugin_libraries import load_plugin_library
from trtint8.builder.options import BuildOptions
from trtint8.engine.profiles import ShapeRange

#: Value of ``hardware_compatibility`` to the feature that TensorRT needs for it.
_HARDWARE = {"ampere_plus": "hardware_compatibility", "same_compute_capability": "same_compute_capability"}

#: The largest numbers that TensorRT has for numbers of streams, values of shapes, and bytes.
_INT32, _INT64, _SIZE = 2**31 - 1, 2**63 - 1, 2**64 - 1


def check_options(flavor: Flavor, options: BuildOptions) -> None:
    """Refuses options that this TensorRT lacks, before a build that takes minutes begins.

    Args:
        flavor: The TensorRT that builds.
        options: The build options.

    Raises:
        UnsupportedError: This TensorRT lacks an option; the message names the version that has it.
        BuildError: A value is out of range, or a file is missing.
        OutputError: The timing cache cannot be written.
    """
    if options.fp16 and flavor.strongly_typed_only:
        raise UnsupportedError(
            f"{flavor} takes precisions from the model and has no FP16 switch; convert the model itself, "
            f"as 'trtint8 quantize --float16' does"
        )
    wanted = {
        "bf16": options.bf16,
        "layer_precisions": bool(
            options.layer_precisions or options.output_types or options.precision_constraints
        ),
        "io_types": bool(options.io_types),
        "calibrate_before_fusion": options.calibrate_before_fusion,
        "optimization_level": options.optimization_level is not None,
        "max_aux_streams": options.max_aux_streams is not None,
        "version_compatible": options.version_compatible,
        "strip_plan": options.strip_plan,
        "timing_cache": options.timing_cache is not None,
        "serialized_plugins": bool(options.plugins) and options.version_compatible,
    }
    if options.hardware_compatibility is not None:
        wanted[_HARDWARE[options.hardware_compatibility]] = True
    for feature, asked in wanted.items():
        if asked:
            flavor.require(feature)
    if (options.refit or options.strip_plan) and flavor.builds_without_gpu:
        require_gpu(f"building a refittable engine with {flavor}")
    if options.dla_core is not None and flavor.builds_without_gpu:
        raise UnsupportedError(
            f"there is no DLA core {options.dla_core}: {flavor} builds for GPUs only, and the TensorRT of a "
            f"Jetson builds for its DLA; leave {Argument('dla_core')} out to use the GPU"
        )
    if options.optimization_level is not None:
        _check_integer("optimization_level", options.optimization_level, 5)
    if options.max_aux_streams is not None:
        _check_integer("max_aux_streams", options.max_aux_streams, _INT32)
    for pool, limit in options.memory_pools.items():
        member(flavor.module.MemoryPoolType, pool, "memory pool")
        _check_integer(f"the limit of the memory pool '{pool}'", limit, _SIZE)
    for name, values in options.shape_values.items():
        _check_values(name, values)
    if options.timing_cache is not None:
        check_writable(options.timing_cache)
    for source in options.tactic_sources or ():
        member(flavor.module.TacticSource, source, "tactic source")
    for name in itertools.chain(*options.io_formats.values()):
        member(flavor.module.TensorFormat, name, "format")
    for library in options.plugins:
        if not is_file(library):
            raise BuildError(
                f"there is no plugin library '{os.fspath(library)}'; give the path of an .so file"
            )


def _check_integer(option: str, value: object, largest: int) -> None:
    number = as_integer(value)
    if number is None or not 0 <= number <= largest:
        raise BuildError(f"{Argument(option)} is {value!r}; give an integer from 0 to {largest}")


def _check_values(name: str, values: object) -> None:
    if not isinstance(values, ShapeRange):
        raise BuildError(
            f"{Argument('shape_values')} of input '{name}' is {values!r:.80}; give trtint8.ShapeRange(min, "
            "opt, max)"
        )
    for value in (*values.min, *values.opt, *values.max):
        if not -_INT64 - 1 <= value <= _INT64:
            raise BuildError(
                f"{Argument('shape_values')} of input '{name}' has {value}, which no integer of 64 bits holds"
            )


def load_plugins(flavor: Flavor, builder: Any, config: Any, options: BuildOptions) -> None:
    """Registers TensorRT's own plugins and those of the user; to be called before the model is parsed.

    Args:
        flavor: The TensorRT that builds.
        builder: The ``Builder``.
        config: The ``IBuilderConfig``, which stores the libraries in a version-compatible plan.
        options: The build options, with the libraries.

    Raises:
        BuildError: A library cannot be loaded, or cannot be stored in a version-compatible plan.
        UnsupportedError: This TensorRT does not take such a library.
    """
    register_own_plugins(flavor.module)
    for library in options.plugins:
        gives_creators = load_plugin_library(library, builder, flavor, BuildError)
        if options.version_compatible and not gives_creators:
            raise BuildError(
                f"the plugin library '{os.fspath(library)}' cannot be stored in a version-compatible plan: "
                "it exports neither getCreators nor getPluginCreators; give one that does, or leave "
                f"{Argument('version_compatible')} out"
            )
    if options.plugins and options.version_compatible:
        config.plugins_to_serialize = [str(Path(library).absolute()) for library in options.plugins]


def configure(
    trt: Any, flavor: Flavor, builder: Any, config: Any, options: BuildOptions, *, int8: bool
) -> None:
    """Sets the flags, limits and devices of a build.

    Args:
        trt: The TensorRT module.
        flavor: The TensorRT that builds.
        builder: The ``Builder``.
        config: The ``IBuilderConfig`` to change.
        options: The build options, checked by :func:`check_options`.
        int8: Whether layers may run in INT8.

    Raises:
        BuildError: TensorRT refuses a value.
        UnsupportedError: This TensorRT or machine lacks a memory pool, a tactic source or a DLA core.
    """
    config.profiling_verbosity = member(
        trt.ProfilingVerbosity, options.profiling_verbosity, "profiling verbosity"
    )
    if not flavor.strongly_typed_only:
        set_flag(trt, config, "INT8", int8)
        set_flag(trt, config, "FP16", options.fp16 is not False)
        set_flag(trt, config, "BF16", options.bf16)
    if flavor.shares_profiles_on_request:
        config.set_preview_feature(trt.PreviewFeature.PROFILE_SHARING_0806, True)
    if not options.tf32:
        config.clear_flag(_flag(trt, "TF32"))
    set_flag(trt, config, "VERSION_COMPATIBLE", options.version_compatible)
    set_flag(trt, config, "SPARSE_WEIGHTS", options.sparse_weights)
    set_flag(trt, config, "REFIT", options.refit)
    set_flag(trt, config, "STRIP_PLAN", options.strip_plan)
    if options.calibrate_before_fusion:
        config.set_quantization_flag(trt.QuantizationFlag.CALIBRATE_BEFORE_FUSION)
    if options.optimization_level is not None:
        config.builder_optimization_level = options.optimization_level
    if options.max_aux_streams is not None:
        config.max_aux_streams = options.max_aux_streams
    if options.hardware_compatibility is not None:
        config.hardware_compatibility_level = member(
            trt.HardwareCompatibilityLevel, options.hardware_compatibility, "hardware compatibility"
        )
    for pool, limit in options.memory_pools.items():
        _set_pool_limit(trt, config, pool, limit)
    if options.tactic_sources is not None:
        sources = [member(trt.TacticSource, name, "tactic source") for name in options.tactic_sources]
        if not config.set_tactic_sources(sum(1 << int(source) for source in set(sources))):
            raise BuildError(f"TensorRT refuses the tactic sources {', '.join(options.tactic_sources)}")
    if options.dla_core is not None:
        _check_dla_core(options.dla_core, builder.num_DLA_cores)
        _use_dla(trt, config, options.dla_core, gpu_fallback=options.gpu_fallback)


def _set_pool_limit(trt: Any, config: Any, pool: str, limit: int) -> None:
    kind = member(trt.MemoryPoolType, pool, "memory pool")
    config.set_memory_pool_limit(kind, limit)
    # A limit that it refuses, it only logs.
    if config.get_memory_pool_limit(kind) != limit:
        raise BuildError(
            f"TensorRT refuses {limit} bytes for the memory pool '{pool}' ({shared_logger(trt).last_error}); "
            "give another size, for tactic_dram and the pools of the DLA a power of two from 4096 on, or none"
        )


def _check_dla_core(core: int, cores: int) -> None:
    if 0 <= core < cores:
        return
    reason = f"this machine has {cores}, numbered from 0" if cores else "this machine has none"
    raise UnsupportedError(
        f"there is no DLA core {core}: {reason}; leave {Argument('dla_core')} out to use the GPU"
    )


def _use_dla(trt: Any, config: Any, core: int, *, gpu_fallback: bool) -> None:
    config.default_device_type = trt.DeviceType.DLA
    config.DLA_core = core
    set_flag(trt, config, "GPU_FALLBACK", gpu_fallback)


def set_flag(trt: Any, config: Any, name: str, wanted: bool) -> None:
    """Sets a flag of a build where it is wanted.

    Args:
        trt: The TensorRT module.
        config: The ``IBuilderConfig``.
        name: The name of the ``BuilderFlag``.
        wanted: Whether to set it.

    Raises:
        UnsupportedError: This TensorRT has no such flag.
    """
    if wanted:
        config.set_flag(_flag(trt, name))


def _flag(trt: Any, name: str) -> Any:
    flags: Mapping[str, Any] = trt.BuilderFlag.__members__
    if name not in flags:
        raise UnsupportedError(
            f"this TensorRT has no builder flag {name}; leave out the option that sets it, or use another "
            "version"
        )
    return flags[name]


def member(enum: Any, name: str, kind: str) -> Any:
    """The member of an enumeration of TensorRT, in capitals or not.

    Args:
        enum: The enumeration.
        name: The member's name.
        kind: What it is, for the message.

    Raises:
        UnsupportedError: This TensorRT has no such member.
    """
    members: Mapping[str, Any] = enum.__members__
    if name.upper() not in members:
        raise UnsupportedError(
            f"this TensorRT has no {kind} '{name}'; it has {', '.join(member.lower() for member in members)}"
        )
    return members[name.upper()]
