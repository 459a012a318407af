"""A transformer of BERT's base size: both routes beside FP16."""

from __future__ import annotations

from gpu_checks.checking import Check
from gpu_checks.large_networks import ENCODER, EXPLICIT, FP16, IMPLICIT, Timed


def run(check: Check) -> None:
    """Runs the stage."""
    measured = Timed(check, ENCODER)
    for kind in (FP16, EXPLICIT, IMPLICIT):
        path = measured.engine(kind)
        if path is None:
            continue
        measured.throughput(kind, path, ENCODER.batches)
        measured.fidelity(kind, path)
        if kind != FP16:
            measured.int8_against_fp16(ENCODER.batches, kind)
