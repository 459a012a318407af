"""What is recorded: a name, which is that of the file with what is expected, and what makes its lines."""

import importlib
import json
from pathlib import Path

from tests.behaviour.calls import call_lines, option_lines, surface_lines
from tests.behaviour.command_line import run
from tests.behaviour.models import CASES, CIFAR10, TRAINED
from tests.behaviour.networks import network_lines, target_lines
from tests.behaviour.verbs import SCENARIOS, scenario_lines

EXPECTED = Path(__file__).parent / "expected"

#: Records that engines are built for, or reports written, and what that takes.
_WITH_EXTRAS = ("verbs/engines", "verbs/refused_engines", "verbs/without_gpu")
_EXTRAS = ("tensorrt_rtx", "jinja2", "matplotlib", "PIL")

_NETWORKS = {**CASES, **TRAINED}

#: Name of a record to the function that makes its lines in an empty folder.
RECORDS = {
    "surface": lambda _folder: surface_lines(),
    "options": lambda _folder: option_lines(),
    "calls": call_lines,
    **{f"verbs/{name}": lambda folder, name=name: scenario_lines(name, folder) for name in SCENARIOS},
    **{
        f"networks/{name}": lambda folder, case=case: network_lines(case, folder)
        for name, case in _NETWORKS.items()
    },
    **{
        f"targets/{name}": lambda folder, case=case: target_lines(case, folder)
        for name, case in _NETWORKS.items()
        if "quantized" not in case.kinds
    },
}

#: Records of which an ordinary run takes a sample.
MANY = [name for name in RECORDS if name.startswith("targets/")]


def expected_file(name):
    """The file with the lines of a record."""
    return EXPECTED / f"{name}.txt"


def missing(name):
    """What this machine lacks for a record, or has too much of; empty where it has what is needed."""
    if name.rpartition("/")[2] in TRAINED and not CIFAR10:
        return "TRTINT8_CIFAR10 names no folder with networks"
    if name not in _WITH_EXTRAS:
        return ""
    if lacking := [package for package in _EXTRAS if not _is_installed(package)]:
        return f"{', '.join(lacking)} is not installed"
    has_gpu = name == "verbs/without_gpu" and not json.loads(run("doctor --json")[1])["GPU"].startswith(
        "none"
    )
    return "this machine has a GPU" if has_gpu else ""


def _is_installed(package):
    try:
        importlib.import_module(package)
    except ImportError:
        return False
    return True
