"""TensorRT for RTX: whether an engine that was built where no GPU was seen runs on this one."""

from __future__ import annotations

import sys
from pathlib import Path

from calibrators.cuda import compute_capability
from calibrators.errors import TrtInt8Error
from calibrators.tensorrt import flavor
from gpu_checks.checking import Check, one_line
from gpu_checks.process import environment, run_limited
from gpu_checks.records import Finding
from gpu_checks.stages.host import HostSide, host_side
from gpu_checks.subjects import Subject, judged, lost_at_most, subjects
from trtint8 import Engine, build_int8_engine

_TABLE = "TensorRT for RTX"
_BUILD_SECONDS = 20.0
_ALLOWED_POINTS = 1.0


def run(check: Check) -> None:
    """Runs the stage."""
    try:
        found = flavor.load("rtx")
    except TrtInt8Error as error:
        check.skip(_TABLE, "all", str(error))
        return
    here = compute_capability(0)
    if f"SM{here.replace('.', '')}" not in found.module.ComputeCapability.__members__:
        check.skip(_TABLE, "all", f"{found} has no kernels for this GPU's compute capability {here}")
        return
    for subject in subjects(check, _TABLE, ("demo", "resnet20")):
        _one(check, subject, str(found))


def _one(check: Check, subject: Subject, rtx: str) -> None:
    name, side = subject.name, host_side(check, subject)
    portable = check.settings.scratch / f"{name}-from-cpu.engine"
    here = check.settings.scratch / f"{name}-from-here.engine"
    check.attempt(_TABLE, f"{name}, built without a GPU", lambda: _built(check, subject, portable))
    if portable.is_file():
        check.attempt(_TABLE, f"{name}, built without a GPU, loads", lambda: _loaded(portable))
        check.attempt(_TABLE, f"{name}, built without a GPU, runs", lambda: _judged(subject, side, portable))
    check.attempt(_TABLE, f"{name}, built here by {rtx}", lambda: _here(subject, side, here))
    if here.is_file():
        check.attempt(_TABLE, f"{name}, built here, runs", lambda: _judged(subject, side, here))


def _built(check: Check, subject: Subject, engine: Path) -> Finding:
    table = check.folder("host") / f"{subject.name}.table.json"
    profile = f"{subject.input}={subject.profiles[0][subject.input]}"
    outcome = run_limited(
        [
            *(sys.executable, "-m", "trtint8.cli.main", "build", str(subject.model), str(table)),
            *("-o", str(engine), "--target", "rtx", "--profile", profile),
        ],
        seconds=_BUILD_SECONDS,
        log=check.settings.scratch / f"{subject.name}.log",
        environment={**environment(), "CUDA_VISIBLE_DEVICES": ""},
    )
    lines = outcome.tail.splitlines()
    return Finding({"says": outcome.status}, outcome.done, lines[-1] if lines else "")


def _loaded(engine: Path) -> Finding:
    """With its sidecar, which knows what it was built for; then the plan alone, which TensorRT judges."""
    said = []
    for source in (engine, engine.read_bytes()):
        try:
            Engine.load(source).close()
            said.append("loads")
        except TrtInt8Error as error:
            said.append(one_line(error))
    figures = {"with its sidecar": said[0], "the plan alone": said[1]}
    # A refusal by the sidecar of what TensorRT would load is one too many, and the reverse is worse.
    return Finding(figures, (said[0] == "loads") == (said[1] == "loads"))


def _here(subject: Subject, side: HostSide, engine: Path) -> Finding:
    result = build_int8_engine(
        subject.model, side.table, engine, target="rtx", profiles=subject.profiles, progress=False
    )
    return Finding({"build s": result.seconds, "built for": ", ".join(result.info.compute_capabilities)})


def _judged(subject: Subject, side: HostSide, path: Path) -> Finding:
    figures = judged(path, subject, side.logits)
    return Finding(figures, lost_at_most(figures, _ALLOWED_POINTS))
