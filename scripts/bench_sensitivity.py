"""How long validation and sensitivity take beside bare runs of the float and the Q/DQ model.

python scripts/bench_sensitivity.py                                     # the packaged digits model
python scripts/bench_sensitivity.py --folder FOLDER resnet20 vit
python scripts/bench_sensitivity.py --random resnet50 mobilenet_v2 encoder --samples 32
python scripts/bench_sensitivity.py --folder FOLDER resnet56 --exact    # and every layer run by itself
python scripts/bench_sensitivity.py --folder FOLDER resnet20 --ppq PYTHON   # and PPQ's analysis of layers
python scripts/bench_sensitivity.py --folder FOLDER resnet20 --validation-only --rounds 15

PYTHON is one that PPQ is installed in. FOLDER holds NAME.onnx, calibration.npz and heldout.npz. Each round
runs all three on the same samples, one after another; ratios are within a round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import trtint8
from calibrators.host.session import available_threads
from calibrators.tables.table import CalibrationTable
from trtint8.data import DEMO_MODEL, load_digits_split
from trtint8.models.model import load_model, prepare
from trtint8.quantization.placement import place
from trtint8.sensitivity.effects import ALL, ONLY, WITHOUT, EffectMeter, output_scales
from trtint8.sensitivity.measure import Probe
from trtint8.simulation.networks import Quantizer

_PREPROCESSING = trtint8.Preprocessing(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
_SMALL_BATCH, _LARGE_BATCH = 4, 64


@dataclass(frozen=True)
class Case:
    """A model with samples.

    Attributes:
        name: Name of the model.
        model: The serialized float model.
        calibration: Calibration samples, as the model takes them.
        held_out: Held-out samples, as the model takes them.
        batch_size: Samples per batch.
    """

    name: str
    model: bytes
    calibration: np.ndarray
    held_out: np.ndarray
    batch_size: int


def cases(options: argparse.Namespace) -> Iterator[Case]:
    """The cases that were asked for."""
    if options.random:
        yield from (random_case(name, options.samples) for name in options.names)
        return
    if options.folder is None:
        split = load_digits_split()
        images = split.heldout_images[: options.samples]
        yield Case("digits", Path(DEMO_MODEL).read_bytes(), split.calibration_images, images, _LARGE_BATCH)
        return
    parts = [np.load(options.folder / f"{part}.npz")["images"] for part in ("calibration", "heldout")]
    calibration, held_out = (_PREPROCESSING(part[: options.samples]) for part in parts)
    for name in options.names:
        model = (options.folder / f"{name}.onnx").read_bytes()
        yield Case(name, model, calibration, held_out, _LARGE_BATCH)


def random_case(name: str, samples: int) -> Case:
    """A network of real size with random weights."""
    from gpu_checks.encoder import encoder, random_embeddings
    from gpu_checks.mobilenet_v2 import mobilenet_v2
    from gpu_checks.resnet50 import random_images, resnet50

    makers = {"resnet50": resnet50, "mobilenet_v2": mobilenet_v2, "encoder": encoder}
    data = (random_embeddings if name == "encoder" else random_images)(samples)
    return Case(name, makers[name](), data[:8], data, _SMALL_BATCH)


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """How long a call takes, in seconds, and what it returns."""
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def run_bare(model: bytes, case: Case, threads: int | None) -> None:
    """Opens a model in ONNX Runtime with all optimizations that keep Q/DQ pairs, and runs all samples."""
    import onnxruntime as ort  # late, so that trtint8 has turned its telemetry off

    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    if threads is not None:
        options.intra_op_num_threads = threads
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    for start in range(0, len(case.held_out), case.batch_size):
        session.run(None, {name: case.held_out[start : start + case.batch_size]})


def compare_with_exact(
    case: Case, table: CalibrationTable, found: trtint8.Sensitivity, threads: int | None
) -> None:
    """Prints how far figures are from those of every layer run by itself, on the same samples."""
    import onnxruntime as ort  # late, so that trtint8 has turned its telemetry off

    prepared = prepare(load_model(case.model))
    quantizer = Quantizer.of(place(prepared.graph_model), table.amax)
    names = [layer.node for layer in found.layers]
    session = ort.InferenceSession(case.model, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    first = case.held_out[: case.batch_size]
    made = [output.name for output in session.get_outputs()]
    outputs = dict(zip(made, session.run(None, {name: first}), strict=True))
    variants = [ALL, *((word, layer) for word in (ONLY, WITHOUT) for layer in names)]
    exact = EffectMeter(variants, output_scales(outputs), classes=False, labelled=False)
    probe = Probe(prepared.graph_model, quantizer, inputs=prepared.inputs, effects=exact, threads=threads)
    start = time.perf_counter()
    for place_in_data in range(0, len(case.held_out), case.batch_size):
        rows = case.held_out[place_in_data : place_in_data + case.batch_size]
        effects = probe.run({name: rows}, None, place_in_data).effects
        assert effects is not None
        exact.merge(effects)
    elapsed = time.perf_counter() - start
    real = np.array([exact.effect((ONLY, layer)).sqnr_db for layer in names])
    levels = np.array([layer.only.sqnr_db for layer in found.layers])
    low, high = np.array([layer.only.interval_db for layer in found.layers]).T
    ranks = [np.argsort(np.argsort(values)) for values in (real, levels)]
    worst = [set(np.argsort(values)[:5].tolist()) for values in (real, levels)]
    print(
        f"{case.name}: every layer by itself {elapsed:.1f} s; rank correlation "
        f"{np.corrcoef(*ranks)[0, 1]:.3f}, {len(worst[0] & worst[1])} of the worst five the same, "
        f"{np.mean((low <= real) & (real <= high)):.1%} within their intervals, mean difference "
        f"{np.abs(levels - real).mean():.2f} dB"
    )


def compare_with_ppq(
    case: Case, found: trtint8.Sensitivity, measuring: float, python: Path, threads: int | None
) -> None:
    """Prints how long PPQ analyses the same samples, layer by layer, and which layers it finds worst."""
    with tempfile.TemporaryDirectory() as name:
        model, data = Path(name) / "model.onnx", Path(name) / "data.npz"
        model.write_bytes(case.model)
        np.savez(data, calibration=case.calibration, held_out=case.held_out)
        script = Path(__file__).parent / "calibration_bench" / "ppq_sensitivity.py"
        command = [python, script, model, data, str(case.batch_size), str(threads or available_threads())]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    theirs = json.loads(done.stdout.splitlines()[-1])
    layers = sorted(found.layers, key=lambda layer: layer.only.sqnr_db)
    worst = {layer.node for layer in layers[:5]} & set(theirs["layers"][:5])
    print(
        f"{case.name}: PPQ takes {theirs['seconds']:.1f} s for {len(theirs['layers'])} layers, "
        f"{theirs['seconds'] / measuring:.1f}x; {len(worst)} of the worst five the same"
    )


def main() -> None:
    """Prints one line per round, and one per model with the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", default=["resnet20"])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--random", action="store_true", help="networks with random weights")
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--validation-only", action="store_true", help="leave sensitivity out")
    parser.add_argument("--exact", action="store_true", help="run every layer by itself as well")
    parser.add_argument("--ppq", type=Path, metavar="PYTHON", help="compare with PPQ, installed there")
    options = parser.parse_args()
    if options.validation_only and (options.exact or options.ppq):
        parser.error("--exact and --ppq compare with sensitivity, which --validation-only leaves out")
    for case in cases(options):
        (measure_validation if options.validation_only else measure)(case, options)


def quantized(case: Case) -> tuple[CalibrationTable, bytes]:
    """The calibration table of a case, and its serialized Q/DQ model."""
    table = trtint8.calibrate(
        case.model, case.calibration, tensors="placed", batch_size=case.batch_size, progress=False
    )
    return table, trtint8.quantize(case.model, table).SerializeToString()


def measure_validation(case: Case, options: argparse.Namespace) -> None:
    """Prints how long validation takes beside the bare runs, first and last in turn."""
    _, int8 = quantized(case)
    run = {
        "bare": lambda: [run_bare(model, case, options.threads) for model in (case.model, int8)],
        "validation": lambda: trtint8.validate(
            int8,
            case.held_out,
            reference=case.model,
            progress=False,
            batch_size=case.batch_size,
            threads=options.threads,
        ),
    }
    taken: dict[str, list[float]] = {name: [] for name in run}
    for index in range(options.rounds):
        # What runs second finds processors and memory as the first has left them.
        for name in list(run) if index % 2 else reversed(run):
            taken[name].append(seconds(run[name])[0])
    ratios = [one / other for one, other in zip(taken["validation"], taken["bare"], strict=True)]
    bare, validation = (statistics.median(taken[name]) for name in ("bare", "validation"))
    print(
        f"{case.name}: bare {bare:.2f} s, validation {validation:.2f} s; {statistics.median(ratios):.2f}x, "
        f"from {min(ratios):.2f}x to {max(ratios):.2f}x (medians of {options.rounds})"
    )


def measure(case: Case, options: argparse.Namespace) -> None:
    """Prints the figures of one case."""
    keywords = {"progress": False, "batch_size": case.batch_size, "threads": options.threads, "limit": None}
    table, int8 = quantized(case)
    ratios = []
    for _ in range(options.rounds):
        bare = sum(
            seconds(lambda model=model: run_bare(model, case, options.threads))[0]
            for model in (case.model, int8)
        )
        validating, accuracy = seconds(
            lambda: trtint8.validate(int8, case.held_out, reference=case.model, **keywords)
        )
        measuring, found = seconds(
            lambda: trtint8.measure_sensitivity(case.model, table, case.held_out, **keywords)
        )
        ratios.append((validating / bare, measuring / validating))
        print(
            f"{case.name}: {accuracy.samples} samples, {len(found.layers)} layers; bare {bare:.1f} s, "
            f"validation {validating:.1f} s, sensitivity {measuring:.1f} s"
        )
    validation, sensitivity = (statistics.median(column) for column in zip(*ratios, strict=True))
    print(
        f"{case.name}: validation {validation:.2f}x of the bare runs, sensitivity {sensitivity:.2f}x of "
        f"validation (medians of {options.rounds})"
    )
    if options.exact:
        compare_with_exact(case, table, found, options.threads)
    if options.ppq:
        compare_with_ppq(case, found, measuring, options.ppq, options.threads)


if __name__ == "__main__":
    main()
