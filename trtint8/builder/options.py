"""Everything about a build besides the model and its ranges."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

#: How hard TensorRT tries to give layers the precisions that were asked for.
PrecisionConstraints = Literal["prefer", "obey"]


@dataclass(frozen=True)
class BuildOptions:
    """How TensorRT builds. Every default leaves the choice to TensorRT.

    Attributes:
        fp16: Whether layers outside INT8 may run in FP16; None allows it where TensorRT chooses
            precisions. Where they stand in the graph it is the graph that is converted, before the builder.
        bf16: Whether they may run in BF16.
        tf32: Whether FP32 convolutions and matrix products may use TF32.
        layer_precisions: Layer name or pattern (``*``, ``?``) to "fp32", "fp16", "bf16" or "int8".
        output_types: Layer name or pattern to the type of its outputs, likewise.
        precision_constraints: How the two above are meant; None prefers them.
        io_types: Input or output name to its type in the engine, likewise.
        io_formats: Input or output name to the formats it may have, like ("LINEAR", "CHW32").
        calibrate_before_fusion: Whether Entropy and Legacy calibration run before layer fusion.
        memory_pools: Pool name like "workspace" to its limit in bytes.
        timing_cache: File with the timings of kernels; read, extended and written under a lock.
        optimization_level: 0 (quick build) to 5 (quick engine).
        max_aux_streams: How many streams besides its own the engine may use.
        dla_core: DLA core to build for; None builds for the GPU.
        gpu_fallback: Whether layers that the DLA lacks may run on the GPU.
        hardware_compatibility: "ampere_plus" or "same_compute_capability": on which other GPUs it runs.
        version_compatible: Whether newer TensorRT versions can run it.
        sparse_weights: Whether 2:4 sparse weights may use sparse kernels.
        refit: Whether its weights can be replaced later.
        strip_plan: Whether to leave out the weights that a refit brings back.
        tactic_sources: Names of libraries that kernels may come from; None for TensorRT's choice.
        profiling_verbosity: What the engine can tell of its layers: "detailed", "layer_names_only" or
            "none". The report of what runs in INT8 needs the first.
        plugins: Shared libraries with plugins, loaded and kept in the plan.
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
    memory_pools: Mapping[str, int] = field(default_factory=dict)
    timing_cache: str | os.PathLike[str] | None = None
    optimization_level: int | None = None
    max_aux_streams: int | None = None
    dla_core: int | None = None
    gpu_fallback: bool = True
    hardware_compatibility: Literal["ampere_plus", "same_compute_capability"] | None = None
    version_compatible: bool = False
    sparse_weights: bool = False
    refit: bool = False
    strip_plan: bool = False
    tactic_sources: Sequence[str] | None = None
    profiling_verbosity: Literal["detailed", "layer_names_only", "none"] = "detailed"
    plugins: Sequence[str | os.PathLike[str]] = ()
