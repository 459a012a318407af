"""The options of a build."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from calibrators.checks import as_integer, check_choice, check_mapping, several
from calibrators.errors import Argument, BuildError, UnsupportedError
from trtint8.engine.profiles import ShapeRange

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


@dataclass(frozen=True)
class BuildOptions:
    """How TensorRT builds. Every default leaves the choice to TensorRT.

    Attributes:
        fp16: Whether layers that do not run in INT8 may run in FP16; by default, where TensorRT chooses
            precisions. Where the graph gives the precisions, the graph itself is converted before the build;
            for TensorRT for RTX layers that are estimated to be faster in FP16 than in INT8 are in FP16, too.
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
        profiling_verbosity: What the engine reports of its layers: "detailed", "layer_names_only" or "none".
            The report of the layers that run in INT8 needs "detailed".
        plugins: Paths of shared libraries with plugins, which are loaded. TensorRT stores them in the plan
            only if it is ``version_compatible``; for other engines ``Engine.load`` needs them again.

    Raises:
        UnsupportedError: An option is none of its choices, or no dict where it has to be one, ``device`` is
            no index, or ``gpu_fallback`` is False without a DLA.
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
    timing_cache: str | os.PathLike[str] | None = None
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
    plugins: Sequence[str | os.PathLike[str]] = ()

    def __post_init__(self) -> None:
        for option, content in _MAPPINGS.items():
            check_mapping(option, getattr(self, option), content)
        # A single name by itself is one, not its letters; nothing else is changed once the options are made.
        object.__setattr__(self, "plugins", tuple(several(self.plugins)))
        if self.tactic_sources is not None:
            object.__setattr__(self, "tactic_sources", tuple(several(self.tactic_sources)))
        formats = {name: tuple(several(names)) for name, names in self.io_formats.items()}
        object.__setattr__(self, "io_formats", formats)
        check_choice("profiling_verbosity", self.profiling_verbosity, get_args(ProfilingVerbosity))
        if self.precision_constraints is not None:
            check_choice("precision_constraints", self.precision_constraints, get_args(PrecisionConstraints))
        if self.hardware_compatibility is not None:
            choices = get_args(HardwareCompatibility)
            check_choice("hardware_compatibility", self.hardware_compatibility, choices)
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
