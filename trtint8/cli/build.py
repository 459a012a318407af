"""`trtint8 build`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import get_args

from calibrators.files import check_writable, refuse_overwriting
from calibrators.tables.file_names import is_table_name
from calibrators.tables.ranges import read_ranges
from calibrators.tensorrt.flavor import Target, title_of
from trtint8.builder.routes import Route
from trtint8.built_files import qdq_file_of
from trtint8.cli.arguments import (
    add_keep_float_option,
    add_keep_int8_option,
    keywords,
    refuse_overwriting_arguments,
)
from trtint8.cli.build_options import add_build_options, build_options_from, profiles_from
from trtint8.cli.cutting import TAIL, add_cut_option, cut_from, files_of_cut
from trtint8.cli.data_options import add_data_options, add_method_option, data_options_from
from trtint8.cli.output import print_json, print_table, say
from trtint8.cli.own_data import data_from, refuse_axes_and_states
from trtint8.engine.file import EngineInfo, engine_rows, sidecar_path
from trtint8.engine.profiles import as_sampled
from trtint8.engine.table import table_file_of
from trtint8.int8_engine import Int8Options, build_from_sources
from trtint8.quantization.slower.choose import SLOWER_IN_INT8
from trtint8.range_sources import RangeSources

#: Of more inputs than this, besides the first one, a sentence says only how many there are.
_MOST_LISTED = 3

#: What to say where TensorRT takes all types from the model, and --fp16 was not thought of.
_FP32 = "what is outside INT8 is in FP32; --fp16 puts it into FP16, half the bytes"
_FP32_FOR_RTX = (
    "layers outside INT8 are in FP32; --fp16 puts them into FP16, and with them INT8 layers that are "
    "estimated to be faster in FP16; --keep-int8 '*' keeps those in INT8"
)

EXAMPLE = (
    "example:\n  trtint8 build resnet50.onnx calibration_images/ -o resnet50.engine "
    "--resize 256 --crop 224,224 \\\n      --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225 "
    "--profile images=1x3x224x224,8x3x224x224,32x3x224x224"
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.add_argument("model", metavar="MODEL", help="a float ONNX model, or one with Q/DQ pairs")
    parser.add_argument(
        "calibration",
        metavar="DATA_OR_TABLE",
        nargs="?",
        help="sample inputs (also MODULE:FUNCTION, which returns a data loader), a table or a calibration "
        "cache; not for a model with Q/DQ pairs",
    )
    parser.add_argument("-o", "--output", required=True, metavar="OUT.engine")
    add_method_option(parser)
    parser.add_argument("--target", choices=get_args(Target), default="auto")
    parser.add_argument("--route", choices=get_args(Route), default="auto")
    parser.add_argument(
        "--dynamic-ranges",
        metavar="FILE",
        help="ranges set by hand, one line 'tensor: amax' per tensor; they override what is calibrated",
    )
    parser.add_argument(
        "--profile",
        action="append",
        default=[],
        metavar="NAME=MIN,OPT,MAX",
        help="shapes of a dynamic input, like images=1x3x224x224,8x3x224x224,32x3x224x224; repeatable; an "
        "input that is named again begins another profile",
    )
    parser.add_argument(
        "--compute-capability",
        action="append",
        default=[],
        metavar="X.Y",
        help="a GPU to build for; repeatable",
    )
    add_keep_float_option(parser)
    add_keep_int8_option(parser)
    add_cut_option(parser, "; OUT.tail.onnx, the rest, and OUT.float.onnx are written as well")
    parser.add_argument("--json", action="store_true", help="print the engine's sidecar as JSON")
    add_build_options(parser)
    add_data_options(parser)


def run(options: argparse.Namespace) -> None:
    """Builds and writes the engine."""
    if options.calibration is None or is_table_name(options.calibration):
        refuse_axes_and_states(options, "without calibration samples")
    cut = cut_from(options.model, options)
    profiles = profiles_from(options.profile)
    output = check_writable(options.output)
    refuse_overwriting_arguments([output, sidecar_path(output)], options)
    refuse_overwriting([table_file_of(output), qdq_file_of(output)], [options.dynamic_ranges])
    cut_files = files_of_cut(output, options) if cut else {}
    manual = read_ranges(options.dynamic_ranges) if options.dynamic_ranges is not None else {}
    result = build_from_sources(
        cut.head if cut else options.model,
        RangeSources(
            data_from(options.calibration, options),
            manual,
            options.method,
            data_options_from(options),
            progress=True,
        ),
        output,
        Int8Options(
            profiles=profiles,
            compute_capabilities=options.compute_capability,
            **keywords(options, "route", "target", "keep_float", "keep_int8"),
        ),
        build_options_from(options),
        cut.tail if cut else None,
    )
    for warning in result.warnings:
        say(f"TensorRT: {warning}")
    if options.json:
        print_json(result.info)
        return
    rows = [("engine", str(result.engine))]
    if result.qdq_model:
        rows.append(("Q/DQ model", str(result.qdq_model)))
    if result.table_file:
        rows.append(("calibration table", str(result.table_file)))
    if cut is not None:
        rows += [("float model", str(result.float_model)), ("the rest, in float", str(cut_files[TAIL]))]
    rows += [
        (title_of(result.info.flavor), result.info.tensorrt_version),
        ("built for", ", ".join(result.info.compute_capabilities)),
        *engine_rows(result.info),
        ("build", f"{result.seconds:.1f} s"),
    ]
    print_table("Built", ("", ""), rows)
    sized = result.table.provenance.input_sizes if result.table else {}
    if open_inputs := as_sampled(profiles, result.info.inputs, sized):
        say(
            f"{_listed(open_inputs)} samples of the sizes that the calibration samples had; "
            f"--profile '{open_inputs[0]}=MIN,OPT,MAX' gives others"
        )
    asked = options.fp16 is not None or options.bf16
    # A float model was computed in FP32 when it was quantized; one with Q/DQ pairs is built as it is.
    keeps_types = result.table is None and _has_half(result.info)
    if not asked and result.info.built_with.strongly_typed_only and not keeps_types:
        say(_FP32_FOR_RTX if result.info.flavor == "rtx" else _FP32)
    if slower := sum(reason.startswith(SLOWER_IN_INT8) for _, reason in result.info.float_nodes):
        say(
            f"with --fp16, {slower} {'layer is' if slower == 1 else 'layers are'} in FP16 that could be in "
            "INT8, because INT8 is estimated to be slower there; --keep-int8 '*' puts all of them in INT8"
        )


def _has_half(info: EngineInfo) -> bool:
    """Whether a layer of an engine reads or writes 16-bit floats, as where the model has them."""
    layers = info.layers.layers if info.layers else ()
    return any(kind in ("Half", "BFloat16") for one in layers for kind in (*one.inputs, *one.outputs))


def _listed(names: Sequence[str]) -> str:
    """Some inputs as the subject of a sentence, with its verb; of many, the first one and how many more."""
    first, *others = (f"'{name}'" for name in names)
    if not others:
        return f"input {first} takes"
    if len(others) > _MOST_LISTED:
        return f"input {first} and {len(others)} others take"
    return f"inputs {', '.join([first, *others[:-1]])} and {others[-1]} take"
