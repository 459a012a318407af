"""Command lines that are run one after another, and what they do."""

from pathlib import Path

from tests.behaviour.command_line import command_lines, inside
from tests.behaviour.files import prepare

#: Name to command lines, which are in files.
SCENARIOS = {
    path.stem: path.read_text().splitlines()
    for path in sorted(Path(__file__).parent.joinpath("scenarios").glob("*.txt"))
}

#: Scenarios to fields of JSON of which only types are kept: what a version of TensorRT makes of a network.
_MASKED = {
    "engines": (
        "compute_capabilities",
        "differences",
        "engines",
        "kernels",
        "layers",
        "uncounted",
        "values",
        "verdict",
    ),
}


def scenario_lines(name, folder):
    """What the command lines of a scenario do, one after another in one folder."""
    lines = []
    with inside(folder):
        for command in SCENARIOS[name]:
            prepare(folder, command.replace("=", " ").split())
            lines += command_lines(command, _MASKED.get(name, ()))
    return lines
