"""`trtint8 demo`: all steps on real data, the handwritten digits that scikit-learn contains."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from calibrators.checks import check_path
from calibrators.errors import OutputError
from calibrators.files import check_writable
from calibrators.tensorrt import flavor
from trtint8.api import building
from trtint8.builder.build import Build
from trtint8.cli.output import print_json, print_line, print_table
from trtint8.data import DEMO_MODEL, load_digits_split
from trtint8.models.model import load_model, prepare
from trtint8.models.serialization import runnable
from trtint8.validation.accuracy import percent
from trtint8.validation.validate import validate

#: What to say of an engine that is not what is built by default.
_TOO_SMALL = (
    "This network is too small to be faster in INT8. Its layers are in INT8 all the same, as with "
    "'trtint8 build --keep-int8'."
)

EXAMPLE = "example:\n  trtint8 demo --output demo_output"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.add_argument("--output", default="demo_output", metavar="FOLDER", help="default demo_output")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")


def run(options: argparse.Namespace) -> None:
    """Calibrates, quantizes, builds and validates the digit classifier."""
    started = time.perf_counter()
    split = load_digits_split()
    check_path("the folder to write", options.output, OutputError)
    folder = Path(options.output)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"cannot make the folder '{folder}': {error.strerror or error}; give another one"
        ) from error
    output = check_writable(folder / "digits.engine", named=False)
    # So small a network gains no speed in INT8; the demo shows what INT8 does to accuracy and size.
    result = building.build_int8_engine(
        DEMO_MODEL, split.calibration_images, output, target=flavor.ON_ANY_MACHINE, keep_int8=["*"]
    )
    prepared = prepare(load_model(DEMO_MODEL))
    with runnable(prepared.graph_model) as serialized:
        fp32 = Build(flavor.load(flavor.ON_ANY_MACHINE), prepared.inputs).run(serialized)
    assert result.qdq_model is not None  # it has no other route
    accuracy = validate(
        result.qdq_model, split.heldout_images, reference=DEMO_MODEL, labels=split.heldout_labels
    )
    seconds = time.perf_counter() - started
    in_int8, weighted = result.info.int8_layers or (0, len(result.info.quantized_nodes))
    files = [
        result.engine,
        Path(f"{result.engine}.json"),
        result.qdq_model,
        *filter(None, [result.table_file]),
    ]
    if options.json:
        print_json(
            {
                "accuracy": accuracy,
                "weights_bytes": {"fp32": fp32.weights_bytes, "int8": result.info.weights_bytes},
                "layers_in_int8": in_int8,
                "weighted_layers": weighted,
                "files": files,
                "seconds": seconds,
            }
        )
        return
    rows = [
        ("top-1", percent(accuracy.reference_top1), percent(accuracy.top1)),
        ("same class as FP32", "", percent(accuracy.agreement)),
        ("SQNR of the logits", "", f"{accuracy.outputs[0].sqnr_db:.1f} dB"),
        ("weight memory", _kilobytes(fp32.weights_bytes), _kilobytes(result.info.weights_bytes)),
        ("layers in INT8", "0", f"{in_int8} of {weighted}"),
    ]
    title = (
        f"Handwritten digits: calibrated on {len(split.calibration_images)} images, "
        f"validated on {accuracy.samples} others"
    )
    print_table(title, ("metric", "FP32", "INT8"), rows)
    print_line(_TOO_SMALL)
    print_table(f"Written in {seconds:.1f} s", ("file",), [(str(file),) for file in files])


def _kilobytes(size: int | None) -> str:
    return "?" if size is None else f"{size / 1e3:.1f} kB"
