"""What a run found: kept stage by stage, so that stages that ran one by one make one report."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpu_checks.limits import Stage
from gpu_checks.process import Outcome
from gpu_checks.records import Record


@dataclass(frozen=True)
class StageReport:
    """One stage's findings.

    Attributes:
        name: The stage.
        title: What it shows.
        outcome: How its process ended.
        machine: What it ran on.
        records: What it found before it ended.
    """

    name: str
    title: str
    outcome: Outcome
    machine: Mapping[str, str]
    records: tuple[Record, ...]

    @property
    def good(self) -> bool:
        """Whether it ended well, and found nothing that is not as promised."""
        return self.outcome.done and not any(record.passed is False for record in self.records)

    def save(self, out: Path) -> None:
        """Saves the findings for later runs."""
        _path(out, self.name).write_text(json.dumps(asdict(self), indent=1, allow_nan=False))


@dataclass(frozen=True)
class Report:
    """All findings.

    Attributes:
        machine: What the last stages ran on.
        command: The last command.
        limits: What was limited to fit the time.
        stages: The stages, in the order in which they run.
    """

    machine: Mapping[str, str]
    command: str
    limits: Mapping[str, str]
    stages: tuple[StageReport, ...]

    def to_dict(self) -> dict[str, Any]:
        """A form that JSON can hold."""
        return asdict(self)


def read_stages(out: Path, stages: Sequence[Stage]) -> tuple[StageReport, ...]:
    """What this run and those before it left in a folder, in the stages' order."""
    kept = (_path(out, stage.name) for stage in stages)
    return tuple(_from_dict(json.loads(path.read_text())) for path in kept if path.is_file())


def _from_dict(data: Mapping[str, Any]) -> StageReport:
    records = tuple(Record(**record) for record in data["records"])
    return StageReport(**{**data, "outcome": Outcome(**data["outcome"]), "records": records})


def _path(out: Path, name: str) -> Path:
    return out / "stages" / f"{name}.json"
