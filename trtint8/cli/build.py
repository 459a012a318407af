"""`trtint8 build`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from calibrators.tensorrt.flavor import title_of
from trtint8.api.building import build_int8_engine
from trtint8.built_files import float_file_of, tail_file_of
from trtint8.cli.output import print_facts, print_json, say
from trtint8.cli.verbs import Way, add_arguments, refuse_overwriting_arguments, values_of
from trtint8.engine.file import EngineInfo, engine_rows, sidecar_path
from trtint8.engine.profiles import as_sampled

#: Of more inputs than this, besides the first one, a sentence says only how many there are.
_MOST_LISTED = 3

#: What to say of a model with Q/DQ pairs where TensorRT takes all types from it.
_FP32 = "what is outside INT8 is in FP32, as in the model; --fp16 puts it into FP16, half the bytes"

EXAMPLE = (
    "example:\n  trtint8 build resnet50.onnx calibration_images/ -o resnet50.engine "
    "--resize 256 --crop 224,224 \\\n      --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225 "
    "--profile images=1x3x224x224,8x3x224x224,32x3x224x224"
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    add_arguments(
        parser,
        build_int8_engine,
        json="the engine's sidecar, and the expected time,",
        model=Way(help="a float ONNX model, or one with Q/DQ pairs"),
        calibration=Way(
            metavar="DATA_OR_TABLE",
            nargs="?",
            help="sample inputs (also MODULE:FUNCTION, which returns a data loader), a table or a "
            "calibration cache; not for a model with Q/DQ pairs",
        ),
        output=Way(metavar="OUT.engine"),
        dynamic_ranges=Way(
            help="ranges set by hand, one line 'tensor: amax' per tensor; they override what is calibrated"
        ),
        rounding=Way(
            ("--no-round",),
            help="leave weights and biases as they are. By default biases are corrected and weights rounded "
            "up or down, if that gains on samples that it was not made with",
        ),
        profiles=Way(
            help="shapes of a dynamic input, like images=1x3x224x224,8x3x224x224,32x3x224x224. An input that "
            "is named again begins another profile",
        ),
    )


def run(options: argparse.Namespace) -> None:
    """Builds and writes the engine."""
    output = Path(options.output)
    beside = [float_file_of(output), tail_file_of(output)] if options.cut_at else []
    refuse_overwriting_arguments([output, sidecar_path(output), *beside], options)
    given = values_of(build_int8_engine, options)
    result = build_int8_engine(**given)
    for warning in result.warnings:
        say(f"TensorRT: {warning}")
    if options.json:
        print_json(result)
        return
    in_int8 = result.info.int8_layers
    accurate = "accuracy" in result.info.float_causes.values() and (in_int8 is None or in_int8[0] > 0)
    facts: list[tuple[str, object]] = [
        ("engine", result.engine),
        ("Q/DQ model", result.qdq_model),
        ("calibration table", result.table_file),
        ("float model", result.float_model),
        ("the rest, in float", tail_file_of(output) if options.cut_at else None),
        ("changed weights", result.rounded),
        ("in float for accuracy", result.table.float_layers if result.table and accurate else None),
        (title_of(result.info.flavor), result.info.tensorrt_version),
        ("built for", ", ".join(result.info.compute_capabilities)),
        *engine_rows(result.info),
        ("build", f"{result.seconds:.1f} s"),
    ]
    print_facts("Built", facts)
    sized = result.table.provenance.input_sizes if result.table else {}
    if open_inputs := as_sampled(given["profiles"], result.info.inputs, sized):
        say(
            f"{_listed(open_inputs)} samples of the sizes that the calibration samples had; "
            f"--profile '{open_inputs[0]}=MIN,OPT,MAX' gives others"
        )
    asked = options.fp16 is not None or options.bf16 or result.table is not None
    if not asked and result.info.built_with.strongly_typed_only and not _has_half(result.info):
        say(_FP32)
    slower = sum(cause == "slower" for cause in result.info.float_causes.values())
    if slower and result.info.quantized_nodes:  # without any there is a warning
        say(
            f"{slower} {'layer is' if slower == 1 else 'layers are'} in FP16 that could be in INT8, because "
            "INT8 is estimated to be slower there; --keep-int8 '*' puts all of them in INT8"
        )
    if result.expected:
        say(result.expected.sentence)
        if result.expected.is_slower and result.table is None:  # the pairs came with the model
            say("'trtint8 tune --speed GPU' leaves layers in FP16 that INT8 does not make faster")


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
