"""Faults on purpose, one process each: what happens must be what the documentation says."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from pathlib import Path

from gpu_checks import limits
from gpu_checks.checking import Check
from gpu_checks.fault_cases import CASES, TABLE, make_plan
from gpu_checks.process import Outcome, environment, run_limited
from gpu_checks.records import Finding, append, read


def run(check: Check) -> None:
    """Runs the stage."""
    made = _process(check, make_plan.__name__)
    if not made.done:
        check.attempt(TABLE, "the engine for all cases", lambda: _ended(made))
        return
    for case, package in CASES.items():
        name = case.__name__
        title = name.replace("_", " ")
        if package and importlib.util.find_spec(package) is None:
            check.skip(TABLE, title, f"{package} is not installed")
        elif check.left <= 0:
            check.skip(TABLE, title, "the stage's time was up")
        else:
            _one(check, name, title)


def _one(check: Check, name: str, title: str) -> None:
    """Takes the record that the case's process wrote; where it wrote none, what became of the process."""
    outcome = _process(check, name)
    records = read(_records(check, name))
    for record in records:
        append(check.settings.records, record)
    if not records:
        check.attempt(TABLE, title, lambda: _ended(outcome))


def _process(check: Check, name: str) -> Outcome:
    own = dataclasses.replace(check.settings, records=_records(check, name))
    return run_limited(
        [sys.executable, "-X", "faulthandler", "-m", "gpu_checks.fault_cases", name, own.to_json()],
        seconds=limits.FAULT_SECONDS,
        log=check.folder("faults") / f"{name}.log",
        environment=environment(),
    )


def _records(check: Check, name: str) -> Path:
    return check.settings.scratch / f"{name}.jsonl"


def _ended(outcome: Outcome) -> Finding:
    lines = outcome.tail.splitlines()
    before = next((line for line in lines if line.startswith("loading ")), "")
    return Finding({"says": outcome.status}, False, before or (lines[-1] if lines else ""))
