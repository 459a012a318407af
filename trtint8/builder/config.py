"""The options of a build: checked, and set in TensorRT's builder configuration.

Compute capabilities are the generations of GPU that an engine of TensorRT for RTX is built for. TensorRT's
timing cache is kept in a file that several builds may share.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from calibrators import records
from calibrators.checks import FilePath, as_integer, check_choice, check_mapping, several
from calibrators.cuda import compute_capability, gpu_problem, require_gpu
from calibrators.errors import Argument, BuildError, UnsupportedError
from calibrators.files import check_writable, is_file, open_lock, take_lock, write_atomically
from calibrators.tensorrt.flavor import Flavor
from calibrators.tensorrt.messages import NO_REASON, BuildLog, plain_words, shared_logger
from calibrators.tensorrt.plugins import load_plugin_library, register_own_plugins
from trtint8.engine.profiles import ShapeRange
from trtint8.quantization.targets import refuse_capability

#: Value of ``hardware_compatibility`` to the feature that TensorRT needs for it.
_HARDWARE = {"ampere_plus": "hardware_compatibility", "same_compute_capability": "same_compute_capability"}

#: The options that are features of TensorRT by themselves.
_FEATURES = (
    "bf16",
    "io_types",
    "calibrate_before_fusion",
    "optimization_level",
    "max_aux_streams",
    "version_compatible",
    "strip_plan",
    "timing_cache",
)

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
    defaults = BuildOptions()
    wanted = [name for name in _FEATURES if getattr(options, name) not in (None, getattr(defaults, name))]
    if options.layer_precisions or options.output_types or options.precision_constraints:
        wanted.append("layer_precisions")
    if options.plugins and options.version_compatible:
        wanted.append("serialized_plugins")
    if options.hardware_compatibility is not None:
        wanted.append(_HARDWARE[options.hardware_compatibility])
    for feature in wanted:
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
        config.default_device_type, config.DLA_core = trt.DeviceType.DLA, options.dla_core
        set_flag(trt, config, "GPU_FALLBACK", options.gpu_fallback)


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


#: Whether TensorRT prefers the precisions that were asked for, or must obey them.
PrecisionConstraints = Literal["prefer", "obey"]

#: The GPUs beside the one it was built on that an engine runs on.
HardwareCompatibility = Literal["ampere_plus", "same_compute_capability"]

#: What an engine keeps of its layers.
ProfilingVerbosity = Literal["detailed", "layer_names_only", "none"]

#: The options that are dicts, and what these say.
_MAPPINGS = {
    "layer_precisions": "from layer name to precision",
    "output_types": "from layer name to type",
    "io_types": "from the name of an input or output to its type",
    "io_formats": "from the name of an input or output to its formats",
    "shape_values": "from input name to trtint8.ShapeRange(min, opt, max)",
    "memory_pools": "from pool name to bytes",
}


#: The options that are one of several words.
_CHOICES = {
    "profiling_verbosity": get_args(ProfilingVerbosity),
    "precision_constraints": get_args(PrecisionConstraints),
    "hardware_compatibility": get_args(HardwareCompatibility),
}


@dataclass(frozen=True)
class BuildOptions:
    """Options of a build. By default TensorRT chooses.

    Attributes:
        fp16: Whether layers that do not run in INT8 may run in FP16. By default they may. If TensorRT takes
            types from the graph, the graph is converted before the build; by default a model with Q/DQ pairs
            then keeps its types. For TensorRT for RTX, layers that are estimated to be faster in FP16 than in
            INT8 are also in FP16.
        bf16: Whether layers that do not run in INT8 may run in BF16.
        tf32: Whether FP32 convolutions and matrix products may use TF32.
        layer_precisions: Layer name or pattern (``*``, ``?``) to "fp32", "fp16", "bf16" or "int8".
        output_types: Layer name or pattern to the type of the layer's outputs: "fp32", "fp16", "bf16" or
            "int8".
        precision_constraints: Whether TensorRT must obey ``layer_precisions`` and ``output_types``; by
            default, it prefers them.
        io_types: Input or output name to its type in the engine: "fp32", "fp16", "bf16" or "int8".
        io_formats: Input or output name to the formats that it may have, like ("LINEAR", "CHW32").
        calibrate_before_fusion: Whether Entropy and Legacy calibration run before layer fusion.
        shape_values: Name of an input that decides shapes, like the size of a Resize, to its smallest,
            optimal and largest values, one per element; for all optimization profiles.
        memory_pools: Pool name like "workspace" to its limit in bytes.
        timing_cache: File with the timings of kernels; it is read, extended and written under a lock.
        optimization_level: 0 (fast build) to 5 (fast engine).
        max_aux_streams: How many auxiliary streams the engine may use.
        device: Index of the GPU that builds, measures kernels and calibrates.
        dla_core: DLA core to build for; by default, the GPU.
        gpu_fallback: Whether layers that the DLA lacks may run on the GPU.
        hardware_compatibility: The other GPUs on which the engine runs: "ampere_plus" or
            "same_compute_capability"; by default, no others.
        version_compatible: Whether newer TensorRT versions can run the engine.
        sparse_weights: Whether layers with 2:4 sparse weights may use sparse kernels.
        refit: Whether the weights of the engine can be replaced later.
        strip_plan: Whether to leave out of the plan the weights that a refit can add again.
        tactic_sources: Names of the libraries that kernels may come from; by default, TensorRT chooses.
        profiling_verbosity: What the engine reports about its layers: "detailed", "layer_names_only" or
            "none". The report of the layers that run in INT8 needs "detailed".
        plugins: Paths of shared libraries with plugins, which are loaded. TensorRT stores them in the plan
            only if it is ``version_compatible``; for other engines ``Engine.load`` needs them again.

    Raises:
        UnsupportedError: An option has an unknown value, or is not a dict although it has to be one;
            ``device`` is not an index; or ``gpu_fallback`` is False without a DLA.

    Examples:
        >>> options = trtint8.BuildOptions(optimization_level=5, memory_pools={"workspace": 1 << 30})
        >>> built = trtint8.build_int8_engine("model.onnx", "table.json", "model.engine", options=options)
    """

    fp16: bool | None = None
    bf16: bool = False
    tf32: bool = True
    layer_precisions: Mapping[str, str] = field(default_factory=dict)
    output_types: Mapping[str, str] = field(default_factory=dict)
    precision_constraints: PrecisionConstraints | None = None
    io_types: Mapping[str, str] = field(default_factory=dict)
    io_formats: Mapping[str, Sequence[str]] = field(default_factory=dict)
    calibrate_before_fusion: bool = False
    shape_values: Mapping[str, ShapeRange] = field(default_factory=dict)
    memory_pools: Mapping[str, int] = field(default_factory=dict)
    timing_cache: FilePath | None = None
    optimization_level: int | None = None
    max_aux_streams: int | None = None
    device: int = 0
    dla_core: int | None = None
    gpu_fallback: bool = True
    hardware_compatibility: HardwareCompatibility | None = None
    version_compatible: bool = False
    sparse_weights: bool = False
    refit: bool = False
    strip_plan: bool = False
    tactic_sources: Sequence[str] | None = None
    profiling_verbosity: ProfilingVerbosity = "detailed"
    plugins: Sequence[FilePath] = ()

    def __post_init__(self) -> None:
        for option, content in _MAPPINGS.items():
            check_mapping(option, getattr(self, option), content)
        # A single name by itself is one, not its letters; nothing else is changed once the options are made.
        object.__setattr__(self, "plugins", tuple(several(self.plugins)))
        if self.tactic_sources is not None:
            object.__setattr__(self, "tactic_sources", tuple(several(self.tactic_sources)))
        formats = {name: tuple(several(names)) for name, names in self.io_formats.items()}
        object.__setattr__(self, "io_formats", formats)
        for option, choices in _CHOICES.items():
            if (value := getattr(self, option)) is not getattr(BuildOptions, option):
                check_choice(option, value, choices)
        index = as_integer(self.device)
        if index is None or index < 0:
            raise UnsupportedError(
                f"{Argument('device')} is {self.device!r:.80}; give the index of a GPU, such as 0"
            )
        if not self.gpu_fallback and self.dla_core is None:
            raise UnsupportedError(
                f"{Argument('gpu_fallback', 'False')} needs a DLA: without one, layers run on the GPU "
                f"anyway; give {Argument('dla_core')}, or leave it out"
            )


def given_options(options: BuildOptions | None) -> BuildOptions:
    """Options of a build as they are given to a public call; the defaults where None.

    Raises:
        BuildError: They are of another type.
    """
    if options is None:
        return BuildOptions()
    if not isinstance(options, BuildOptions):
        raise BuildError(f"{Argument('options')} is {options!r:.80}; give trtint8.BuildOptions(...)")
    return options


#: The largest file that is read, in bytes.
_MOST_BYTES = 1 << 30


def attach_timing_cache(config: Any, path: FilePath, log: BuildLog) -> None:
    """Gives a build the timings of earlier builds.

    Args:
        config: The ``IBuilderConfig`` of the build.
        path: The file; a missing file is an empty cache.
        log: The log that collects TensorRT's messages.

    Raises:
        BuildError: The file is not a timing cache of this TensorRT and GPU, or cannot be locked or read.
    """
    with _locked(path):
        data = _read(path)
    errors, warnings = len(log.errors), len(log.warnings)
    timing_cache = config.create_timing_cache(data)
    # Timings of another GPU would mislead TensorRT, so a mismatch is refused.
    attached = timing_cache is not None and config.set_timing_cache(timing_cache, False)
    if not attached or _lost(config, timing_cache, data):
        reasons = "; ".join(plain_words([*log.errors[errors:], *log.warnings[warnings:]])) or NO_REASON
        raise BuildError(
            f"'{os.fspath(path)}' is not a timing cache of this TensorRT and GPU ({reasons}); give another "
            "file or remove it"
        )
    # What it says of a cache that it takes is no reason why a build fails.
    del log.errors[errors:]


def _lost(config: Any, timing_cache: Any, data: bytes) -> bool:
    """Whether TensorRT took nothing of a file, which it only logs.

    What it logs does not tell: TensorRT 8.6 says of its own cache that it will not be used where the compiler
    of fused parts cannot read its share, and uses the timings of all other layers.
    """
    if not data:
        return False
    empty = bytes(config.create_timing_cache(b"").serialize())
    return data != empty and bytes(timing_cache.serialize()) == empty


def save_timing_cache(config: Any, path: FilePath) -> None:
    """Writes the timings after a build, together with those that other builds have written since it began.

    Args:
        config: The ``IBuilderConfig`` of the build.
        path: The file.

    Raises:
        BuildError: The file cannot be locked or read.
        OutputError: It cannot be written.
    """
    timing_cache = config.get_timing_cache()
    with _locked(path):
        data = _read(path)
        others = config.create_timing_cache(data) if data else None
        if others is not None:
            # Combined with a second object, because TensorRT never returns from combining a cache with
            # itself.
            timing_cache.combine(others, False)
        write_atomically(path, bytes(timing_cache.serialize()))


@contextlib.contextmanager
def _locked(path: FilePath) -> Iterator[None]:
    place = f"{os.fspath(path)}.lock"
    with contextlib.ExitStack() as until_the_end:
        try:
            take_lock(until_the_end.enter_context(open_lock(place)), wait=True)
        except OSError as error:
            raise BuildError(
                f"the timing cache '{os.fspath(path)}' cannot be locked with '{place}': "
                f"{error.strerror or error}; give a file in a folder that can be written"
            ) from error
        yield


def _read(path: FilePath) -> bytes:
    try:
        return records.read_bytes(path, _MOST_BYTES)
    except FileNotFoundError:
        return b""
    except (OSError, records.RecordError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise BuildError(f"the timing cache '{os.fspath(path)}' cannot be read: {reason}") from error


_CURRENT = "current"


def resolve_capabilities(flavor: Flavor, wanted: Sequence[str], device: int = 0) -> tuple[str, ...]:
    """Decides for which compute capabilities to build.

    Args:
        flavor: The TensorRT that builds.
        wanted: Compute capabilities like "8.6" or "SM86", or "current" for this machine's GPU. Empty means
            this machine's GPU, or, where there is none, every compute capability from Ampere on.
        device: Index of this machine's GPU.

    Returns:
        Compute capabilities like ("8.6",) or ("current",); empty where TensorRT can build only for the GPU on
        which it runs.

    Raises:
        UnsupportedError: The flavor cannot build for one of them.
        GpuUnavailableError: There is a GPU, but none of that index.
    """
    if not flavor.has_compute_capabilities:
        if wanted:
            raise UnsupportedError(
                f"{flavor} builds for the GPU it runs on, so compute capabilities ({', '.join(wanted)}) "
                f"cannot be chosen; leave them out, or build with TensorRT for RTX"
            )
        return ()
    if wanted:
        return tuple(dict.fromkeys(_resolve(flavor, name, device) for name in wanted))
    # More compute capabilities cost neither time nor size: a plan holds the network once, and its kernels are
    # compiled when it is loaded. ResNet-20 in Q/DQ form takes 0.3 s and 2.74 MB for 8.6 alone, and for all
    # five.
    return _available(flavor) if gpu_problem() else (_current(flavor, device),)


def nearest_capability(flavor: Flavor, wanted: str) -> str | None:
    """The compute capability to build for where a graph is compiled to be looked at, not to be run.

    Args:
        flavor: The TensorRT that builds.
        wanted: The GPU's compute capability, like "9.0".

    Returns:
        ``wanted`` where the flavor can build for it; else the highest below it, else the lowest of all. None
        where TensorRT can build only for the GPU on which it runs.
    """
    if not flavor.has_compute_capabilities:
        return None
    available = sorted(_available(flavor), key=_version)
    below = [name for name in available if _version(name) <= _version(wanted)]
    return below[-1] if below else available[0]


def set_capabilities(trt: Any, config: Any, names: Sequence[str]) -> None:
    """Sets the compute capabilities in the builder's configuration.

    Args:
        trt: The TensorRT module.
        config: The builder's ``IBuilderConfig``.
        names: Compute capabilities from :func:`resolve_capabilities`; empty changes nothing.
    """
    if names:
        config.num_compute_capabilities = len(names)
    for index, name in enumerate(names):
        member = "CURRENT" if name == _CURRENT else f"SM{name.replace('.', '')}"
        config.set_compute_capability(trt.ComputeCapability.__members__[member], index)


def _resolve(flavor: Flavor, name: str, device: int) -> str:
    if name.lower() == _CURRENT:
        problem = gpu_problem()
        if problem:
            raise UnsupportedError(
                f"the engine cannot be built for the current GPU, because {problem}; choose among "
                f"{', '.join(_available(flavor))}"
            )
        return _current(flavor, device)
    match = re.fullmatch(r"(?:sm_?)?(\d+)\.?(\d)", name, re.IGNORECASE)
    capability = f"{match[1]}.{match[2]}" if match else name
    _check_capability(flavor, capability)
    return capability


def _current(flavor: Flavor, device: int) -> str:
    """Stands for the GPU of that index, if engines can be built for it."""
    _check_capability(flavor, compute_capability(device))
    return _CURRENT


def _check_capability(flavor: Flavor, capability: str) -> None:
    if capability not in (available := _available(flavor)):
        refuse_capability(str(flavor), capability, available)


def _version(capability: str) -> tuple[int, ...]:
    return tuple(map(int, capability.split(".")))


def _available(flavor: Flavor) -> tuple[str, ...]:
    members = (re.fullmatch(r"SM(\d+)(\d)", name) for name in flavor.module.ComputeCapability.__members__)
    names = (f"{match[1]}.{match[2]}" for match in members if match)
    # For 7.5, TensorRT for RTX has kernels that dequantize and multiply in float, and none for FP32 matrix
    # products. After a build that failed because of these, even the next engine runs in float.
    return tuple(name for name in names if name != "7.5")
