"""Q/DQ beside calibrated ranges: the same table both ways, for accuracy, time and what runs in INT8."""

from __future__ import annotations

import shutil
from collections.abc import Callable

from calibrators import records
from calibrators.tensorrt import flavor
from calibrators.tensorrt.messages import shared_logger
from gpu_checks.checking import Check
from gpu_checks.records import Figure, Finding
from gpu_checks.stages.host import HostSide, host_side
from gpu_checks.stages.implicit import build_implicit
from gpu_checks.subjects import Subject, int8_share, judged, lost_at_most, small_options, subjects
from trtint8 import BuildResult, build_int8_engine

_TABLE = "One table, both routes"
_LAYERS = "What runs in which type"
_ALLOWED_POINTS = 1.0

_Build = Callable[[Check, Subject, HostSide], BuildResult]


def run(check: Check) -> None:
    """Runs the stage."""
    for subject in subjects(check, _TABLE):
        for route, build in _ROUTES.items():
            _one(check, subject, f"{subject.name}-{route}", build)


def _one(check: Check, subject: Subject, name: str, build: _Build) -> None:
    side, results = host_side(check, subject), []

    def work() -> Finding:
        results.append(build(check, subject, side))
        return _judged(results[0], subject, side)

    check.attempt(_TABLE, name, work)
    if results:
        check.attempt(_LAYERS, name, lambda: _layers(check, results[0], name))


def _implicit(check: Check, subject: Subject, side: HostSide) -> BuildResult:
    return build_implicit(check, subject, side.table, fp16=True)


def _explicit(check: Check, subject: Subject, side: HostSide) -> BuildResult:
    folder = check.settings.scratch / "explicit"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return build_int8_engine(
        subject.model,
        side.table,
        folder / "model.engine",
        target="tensorrt",
        route="explicit",
        profiles=subject.profiles,
        options=small_options(check, fp16=True),
        progress=False,
    )


_ROUTES: dict[str, _Build] = {"implicit": _implicit, "explicit": _explicit}


def _judged(result: BuildResult, subject: Subject, side: HostSide) -> Finding:
    figures = judged(result.engine, subject, side.logits)
    return Finding({**figures, "build s": result.seconds}, lost_at_most(figures, _ALLOWED_POINTS))


def _layers(check: Check, result: BuildResult, name: str) -> Finding:
    """The layer report; what it was read from is kept in the folder ``layers``."""
    plan = result.engine.read_bytes()
    (check.folder("layers") / f"{name}.inspector.json").write_text(_inspector(plan))
    layers = result.info.layers
    if layers is None:
        return Finding({}, False, "the inspector's answer was not understood; see the folder 'layers'")
    (check.folder("layers") / f"{name}.layers.json").write_bytes(records.render(layers))
    wanted = layers.weighted_summary(result.info.quantized_nodes)
    others = {precision: nodes for precision, nodes in wanted.items() if precision != "INT8"}
    figures: dict[str, Figure] = {
        "layers": len(layers.layers),
        **int8_share(result),
        **{f"layers in {precision}": count for precision, count in sorted(layers.counts().items())},
        "reformats": layers.reformats,
        "plan MB": len(plan) / 1e6,
    }
    note = "; ".join(f"{precision}: {', '.join(nodes[:3])}" for precision, nodes in others.items())
    return Finding(figures, not others, note)


def _inspector(plan: bytes) -> str:
    trt = flavor.load("tensorrt").module
    runtime = trt.Runtime(shared_logger(trt))
    inspector = runtime.deserialize_cuda_engine(plan).create_engine_inspector()
    text: str = inspector.get_engine_information(trt.LayerInformationFormat.JSON)
    return text
