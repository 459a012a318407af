"""How long a measurement of sensitivity takes beside one validation of the same model on the same data.

python scripts/bench_sensitivity.py    # the packaged digits model
python scripts/bench_sensitivity.py FOLDER resnet20 resnet56

FOLDER holds NAME.onnx, calibration.npz and heldout.npz.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import trtint8
from trtint8.data import DEMO_MODEL, load_digits_split

_ROUNDS = 3


def cases(options: argparse.Namespace) -> Iterator[tuple[str, Path, Any, Any, dict[str, Any]]]:
    """Name, model, calibration data, held-out data, and keywords of the calls that open the data."""
    if options.folder is None:
        split = load_digits_split()
        held_out = {"images": split.heldout_images, "labels": split.heldout_labels}
        yield "digits", Path(DEMO_MODEL), split.calibration_images, held_out, {}
        return
    preprocessing = trtint8.Preprocessing(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    for name in options.names:
        files = (options.folder / f"{name}.onnx", *(options.folder / f"{part}.npz" for part in _PARTS))
        yield name, *files, {"preprocessing": preprocessing}


_PARTS = ("calibration", "heldout")


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """How long a call takes, in seconds, and what it returns."""
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def main() -> None:
    """Prints one line per round, and one per model with the median."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("names", nargs="*", default=["resnet20"])
    for name, model, calibration, held_out, keywords in cases(parser.parse_args()):
        keywords = {**keywords, "progress": False}
        table = trtint8.calibrate(model, calibration, tensors="placed", **keywords)
        quantized = trtint8.quantize(model, table)
        ratios = []
        for _ in range(_ROUNDS):
            validating, accuracy = seconds(
                lambda: trtint8.validate(quantized, held_out, reference=model, **keywords)  # noqa: B023
            )
            measuring, sensitivity = seconds(
                lambda: trtint8.measure_sensitivity(model, table, held_out, **keywords)  # noqa: B023
            )
            ratios.append(measuring / validating)
            print(
                f"{name}: validation {validating:.1f} s ({accuracy.samples} samples), sensitivity of "
                f"{len(sensitivity.layers)} layers {measuring:.1f} s ({sensitivity.samples} samples"
                f"{', certain' if sensitivity.converged else ''})"
            )
        print(f"{name}: {statistics.median(ratios):.2f}x of one validation (median of {_ROUNDS})")


if __name__ == "__main__":
    main()
