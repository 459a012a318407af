"""The figure that counts most, before anything else can take the time: INT8 beside FP16 at batch 64 and 1."""

from __future__ import annotations

from gpu_checks import limits
from gpu_checks.checking import Check
from gpu_checks.large_networks import FIRST_KINDS, RESNET50, Timed


def run(check: Check) -> None:
    """Runs the stage."""
    measured = Timed(check, RESNET50)
    engines = {kind: measured.engine(kind) for kind in FIRST_KINDS}
    for batch in limits.FIRST_BATCHES:
        for kind, path in engines.items():
            if path is not None:
                measured.throughput(kind, path, (batch,))
        measured.int8_against_fp16((batch,), FIRST_KINDS[0])
