"""The options of `trtint8 build` that say how TensorRT builds."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any

from calibrators.errors import BuildError
from trtint8.builder.options import BuildOptions
from trtint8.cli.arguments import keywords
from trtint8.cli.named_values import named_values
from trtint8.engine.profiles import Profile, ShapeRange, parse_profile

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def add_build_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options to a verb's parser."""
    _add_precisions(parser.add_argument_group("precisions"))
    _add_building(parser.add_argument_group("building"))


def _add_precisions(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--fp16",
        action=argparse.BooleanOptionalAction,
        help="layers outside INT8 may run in FP16; default yes, but for TensorRT 11 and RTX. For RTX it also "
        "takes layers out of INT8 that are estimated to be faster in FP16; --keep-int8 '*' leaves them in it",
    )
    group.add_argument("--bf16", action="store_true", help="layers outside INT8 may run in BF16")
    group.add_argument("--no-tf32", action="store_true", help="compute FP32 without TF32")
    group.add_argument(
        "--layer-precision",
        action="append",
        default=[],
        metavar="LAYER=TYPE",
        help="the type that a layer computes in; repeatable",
    )
    group.add_argument(
        "--output-type",
        action="append",
        default=[],
        metavar="LAYER=TYPE",
        help="the type of a layer's output; repeatable",
    )
    group.add_argument("--precision-constraints", choices=("prefer", "obey"))
    group.add_argument(
        "--io-type",
        action="append",
        default=[],
        metavar="NAME=TYPE",
        help="type of an input or output; repeatable",
    )
    group.add_argument("--io-format", action="append", default=[], metavar="NAME=FORMAT,...")
    group.add_argument(
        "--calibrate-before-fusion",
        action="store_true",
        help="makes the caches of the calibrators Entropy and Legacy portable",
    )


def _add_building(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--shape-values",
        action="append",
        default=[],
        metavar="NAME=MIN,OPT,MAX",
        help="values of an input that decides shapes, like size=64x64,128x128,256x256; repeatable",
    )
    group.add_argument(
        "--memory-pool",
        action="append",
        default=[],
        metavar="POOL=SIZE",
        help="size of a memory pool, like workspace=1G; repeatable",
    )
    group.add_argument(
        "--timing-cache", metavar="FILE", help="timings of kernels; the file is read and extended"
    )
    group.add_argument("--optimization-level", type=int, metavar="0-5")
    group.add_argument("--max-aux-streams", type=int, metavar="N")
    group.add_argument(
        "--device", type=int, default=0, metavar="N", help="index of the GPU that builds; default 0"
    )
    group.add_argument("--dla-core", type=int, metavar="N", help="build for a DLA core")
    group.add_argument("--no-gpu-fallback", action="store_true", help="fail where the DLA lacks a layer")
    group.add_argument("--hardware-compatibility", choices=("ampere_plus", "same_compute_capability"))
    group.add_argument(
        "--version-compatible", action="store_true", help="newer TensorRT versions can run the engine, too"
    )
    group.add_argument("--sparse-weights", action="store_true", help="use 2:4 sparsity")
    group.add_argument("--refit", action="store_true", help="weights can be replaced later")
    group.add_argument("--strip-plan", action="store_true", help="leave refittable weights out")
    group.add_argument(
        "--tactic-source", action="append", metavar="NAME", help="where kernels may come from; repeatable"
    )
    group.add_argument(
        "--profiling-verbosity", choices=("detailed", "layer_names_only", "none"), default="detailed"
    )
    group.add_argument(
        "--plugin",
        action="append",
        default=[],
        metavar="FILE.so",
        help="a plugin library, which is kept in a version-compatible engine only; repeatable",
    )


def build_options_from(options: argparse.Namespace) -> BuildOptions:
    """The build options that a command line gives.

    Raises:
        BuildError: A value is malformed.
    """
    return BuildOptions(
        **keywords(
            options,
            "fp16",
            "bf16",
            "precision_constraints",
            "calibrate_before_fusion",
            "timing_cache",
            "optimization_level",
            "max_aux_streams",
            "device",
            "dla_core",
            "hardware_compatibility",
            "version_compatible",
            "sparse_weights",
            "refit",
            "strip_plan",
            "profiling_verbosity",
        ),
        tf32=not options.no_tf32,
        layer_precisions=_pairs("layer-precision", options.layer_precision),
        output_types=_pairs("output-type", options.output_type),
        io_types=_pairs("io-type", options.io_type),
        io_formats={name: text.split(",") for name, text in _pairs("io-format", options.io_format).items()},
        shape_values=named_values("--shape-values", map(parse_profile, options.shape_values), BuildError),
        memory_pools={name: _size(text) for name, text in _pairs("memory-pool", options.memory_pool).items()},
        gpu_fallback=not options.no_gpu_fallback,
        tactic_sources=options.tactic_source,
        plugins=tuple(options.plugin),
    )


def profiles_from(texts: Sequence[str]) -> list[Profile]:
    """The optimization profiles that texts describe; an input that is named again begins the next profile.

    Raises:
        BuildError: A text is not NAME=MIN,OPT,MAX.
    """
    profiles: list[dict[str, ShapeRange]] = []
    for text in texts:
        name, shapes = parse_profile(text)
        if not profiles or name in profiles[-1]:
            profiles.append({})
        profiles[-1][name] = shapes
    return list(profiles)


def _pairs(option: str, texts: Sequence[str]) -> dict[str, Any]:
    return named_values(f"--{option}", (_pair(option, text) for text in texts), BuildError)


def _pair(option: str, text: str) -> tuple[str, str]:
    # Names may hold "=", values never do.
    name, equals, value = text.rpartition("=")
    if not (equals and name and value):
        raise BuildError(f"--{option}: '{text}' is not NAME=VALUE")
    return name, value


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d{1,30}(?:\.\d+)?)([KMG]?)(?:i?B)?", text, re.IGNORECASE)
    if not match:
        raise BuildError(f"--memory-pool: '{text}' is not a size; write for example 512M or 1G")
    return int(float(match[1]) * _UNITS[match[2].upper()])
