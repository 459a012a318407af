"""What the CPU says: FP32's outputs and the ranges that calibration without TensorRT finds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators.data.opening import open_batches
from calibrators.histograms.histogram import Histogram
from calibrators.tables.table import CalibrationTable
from gpu_checks import limits
from gpu_checks.amax import even_histograms
from gpu_checks.checking import Check
from gpu_checks.records import Finding
from gpu_checks.subjects import Subject, scores, subjects
from trtint8 import calibrate
from trtint8.models.model import load_model, prepare
from trtint8.models.serialization import runnable
from trtint8.models.session import open_graph_model

_TABLE = "FP32 and calibration on the CPU"


@dataclass(frozen=True)
class HostSide:
    """A network's reference.

    Attributes:
        table: The ranges by entropy, with histograms for the other methods.
        even: Histograms with bins that divide (0, amax) evenly.
        logits: FP32's outputs for the held-out images.
    """

    table: CalibrationTable
    even: dict[str, Histogram]
    logits: NDArray[np.float32]


def run(check: Check) -> None:
    """Runs the stage."""
    for subject in subjects(check, _TABLE):

        def work(subject: Subject = subject) -> Finding:
            # Again, although there may be one: the data may be another.
            for old in check.folder("host").glob(f"{subject.name}.*"):
                old.unlink()
            side = host_side(check, subject)
            figures = scores(side.logits, subject.labels, side.logits)
            return Finding(
                {
                    "FP32 top-1 %": figures["top-1 %"],
                    "held-out images": len(subject.labels),
                    "calibration batches": subject.calibration_batches,
                    "tensors": len(side.table.amax),
                }
            )

        check.attempt(_TABLE, subject.name, work)


def host_side(check: Check, subject: Subject) -> HostSide:
    """A network's reference, kept in the folder ``host`` and made where it is not there yet."""
    folder = check.folder("host")
    table_file, other_file = folder / f"{subject.name}.table.json", folder / f"{subject.name}.npz"
    if not (table_file.is_file() and other_file.is_file()):
        made = _make(subject)
        _save_arrays(other_file, made)
        made.table.save(table_file)
    kept = np.load(other_file)
    even = {
        name: Histogram(counts, peak / len(counts), peak, zeros)
        for name, counts, peak, zeros in zip(
            *(kept["names"].tolist(), kept["counts"], kept["peaks"].tolist(), kept["zeros"].tolist()),
            strict=True,
        )
    }
    return HostSide(CalibrationTable.load(table_file), even, kept["logits"])


def _make(subject: Subject) -> HostSide:
    data: dict[str, Any] = {
        "batch_size": limits.CALIBRATION_BATCH,
        "preprocessing": subject.preprocessing,
    }
    table = calibrate(subject.model, subject.calibration, progress=False, **data)
    prepared = prepare(load_model(subject.model))
    batches = open_batches(subject.calibration, subject.inputs, **data)
    with runnable(prepared.graph_model) as model:
        serialized = model if isinstance(model, bytes) else model.read_bytes()
    even = even_histograms(serialized, batches, table.peaks)
    reference = open_graph_model(load_model(subject.model).graph_model)
    parts = np.array_split(subject.images, max(1, len(subject.images) // limits.JUDGING_BATCH))
    return HostSide(table, even, np.concatenate([reference.run({subject.input: part})[0] for part in parts]))


def _save_arrays(path: Path, side: HostSide) -> None:
    histograms = side.even.values()
    np.savez_compressed(
        path,
        logits=side.logits,
        names=np.array(list(side.even)),
        counts=np.stack([histogram.counts for histogram in histograms]),
        peaks=np.array([histogram.amax for histogram in histograms]),
        zeros=np.array([histogram.zeros for histogram in histograms]),
    )
