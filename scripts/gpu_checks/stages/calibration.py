"""Calibration on the GPU in ONNX Runtime, beside the same on the CPU."""

from __future__ import annotations

import functools
import time

from calibrators.errors import TrtInt8Error
from calibrators.host.cuda_session import open_device
from gpu_checks import limits
from gpu_checks.amax import compare_amax
from gpu_checks.checking import Check
from gpu_checks.records import Figure, Finding
from gpu_checks.stages.host import host_side
from gpu_checks.subjects import Subject, subjects
from trtint8 import calibrate
from trtint8.data import DEMO_MODEL

_TABLE = "Calibration on the GPU"

#: How far a peak's ratio to the CPU's may be from 1.
_ALLOWED = 0.001


def run(check: Check) -> None:
    """Runs the stage."""
    try:
        open_device("cuda").open_session(DEMO_MODEL, optimize=True)
    except (TrtInt8Error, ImportError) as error:
        check.skip(_TABLE, "all", str(error))
        return
    for subject in subjects(check, _TABLE, ("resnet20", "demo")):
        check.attempt(_TABLE, subject.name, functools.partial(_beside_the_cpu, check, subject))


def _beside_the_cpu(check: Check, subject: Subject) -> Finding:
    expected = host_side(check, subject).table
    seconds = {}
    for device in ("cpu", "cuda"):
        began = time.perf_counter()
        table = calibrate(
            subject.model,
            subject.calibration,
            batch_size=limits.CALIBRATION_BATCH,
            preprocessing=subject.preprocessing,
            device=device,
            progress=False,
        )
        seconds[f"{device} s"] = time.perf_counter() - began
    peaks = compare_amax(table.peaks, expected.peaks)
    figures: dict[str, Figure] = {"tensors": peaks.tensors, "furthest peak, ratio": peaks.worst, **seconds}
    return Finding(figures, abs(peaks.worst - 1) <= _ALLOWED, peaks.worst_tensor)
