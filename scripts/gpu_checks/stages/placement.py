"""Which layers stay in FP16 because INT8 is slower: searched with engines that are timed on this GPU."""

from __future__ import annotations

import functools

from gpu_checks import limits
from gpu_checks.checking import Check
from gpu_checks.large_networks import ENCODER, RESNET50, LargeNetwork
from gpu_checks.records import Finding
from gpu_checks.subjects import small_options
from trtint8 import ShapeRange, calibrate
from trtint8.auditing.audit import EstimatorOptions
from trtint8.models.model import load_model, prepare
from trtint8.tuning.journal import Journal, TimeLimit
from trtint8.tuning.speed import SpeedGoal, SpeedPlanner
from trtint8.tuning.stopwatch import SpeedPlan

_TABLE = "Placement by timed engines: milliseconds"
_CALIBRATION_SAMPLES = 4

#: The share of a case's time for the search; the rest is for calibrating and for timing the result again.
_SEARCHING = 0.7


def run(check: Check) -> None:
    """Runs the stage."""
    cases = [(network, batch) for batch in limits.PLACEMENT_BATCHES for network in (RESNET50, ENCODER)]
    for number, (network, batch) in enumerate(cases):
        minutes = max(1.0, _SEARCHING * check.left / (len(cases) - number)) / 60
        case = f"{network.title}, batch {batch}"
        check.attempt(_TABLE, case, functools.partial(_searched, check, network, batch, minutes))


def _searched(check: Check, network: LargeNetwork, batch: int, minutes: float) -> Finding:
    model = network.make()
    samples = network.samples(_CALIBRATION_SAMPLES)
    table = calibrate(model, samples, batch_size=len(samples), progress=False)
    profile = {network.input: ShapeRange(*[(batch, *network.shape)] * 3)}
    building = EstimatorOptions("tensorrt", profile, small_options(check), progress=False)
    planner = SpeedPlanner(prepare(load_model(model)), table, SpeedGoal(None, building), Journal())
    found = planner.search(TimeLimit(minutes))
    some_int8 = len(found.keep_float) < len(planner.layers)
    again = planner.completed(found, found.keep_float) if some_int8 else found
    return judged_placement(found, again, len(planner.layers))


def judged_placement(found: SpeedPlan, again: SpeedPlan, layers: int) -> Finding:
    """What a search found, as a row of the report.

    Args:
        found: What the search found.
        again: The same with its engine and that of FP16 timed once more.
        layers: The number of layers that can be in INT8.

    Returns:
        The times. It is as promised where few engines were built, and the one that was found is not slower
        than FP16.
    """
    chosen = next((one for one in found.trials if one.seconds == found.seconds), None)
    figures = {
        "FP16": 1e3 * found.fp16_seconds,
        "INT8": 1e3 * found.int8_seconds,
        "tuned": 1e3 * found.seconds,
        "tuned, least": None if chosen is None or chosen.least is None else 1e3 * chosen.least,
        "tuned, most": None if chosen is None or chosen.most is None else 1e3 * chosen.most,
        "FP16, again": 1e3 * again.fp16_seconds,
        "tuned, again": 1e3 * again.seconds,
        "FP16 over tuned": again.fp16_seconds / again.seconds,
        "layers in FP16": f"{len(found.keep_float)} of {layers}",
        "engines": len(found.trials),
    }
    passed = (
        len(found.trials) <= limits.PLACEMENT_ENGINES
        and again.seconds <= (1 + limits.PLACEMENT_NOISE) * again.fp16_seconds
    )
    return Finding(figures, passed, "" if found.complete else "the time was over before the search ended")
