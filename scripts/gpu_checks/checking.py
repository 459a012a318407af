"""What a stage works with: where things are, how much time is left, and where findings go."""

from __future__ import annotations

import json
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gpu_checks import limits
from gpu_checks.records import Finding, Record, append


@dataclass(frozen=True)
class Settings:
    """What the parent process tells a stage.

    Attributes:
        data: Folder with the CIFAR-10 networks and images; None where there is none.
        out: Folder for results that are kept.
        scratch: Folder for temporary files.
        records: File for the findings.
        seconds: The stage's time limit.
        soak: Length of the endurance run, in seconds.
    """

    data: Path | None
    out: Path
    scratch: Path
    records: Path
    seconds: float
    soak: float

    def to_json(self) -> str:
        """The settings as text, for a command line."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """The inverse of :meth:`to_json`."""
        values = json.loads(text)
        for name in ("data", "out", "scratch", "records"):
            values[name] = Path(values[name]) if values[name] is not None else None
        return cls(**values)


@dataclass
class Check:
    """One stage under way.

    Attributes:
        settings: What the parent process asks for.
        clock: Returns the present time, in seconds.
    """

    settings: Settings
    clock: Callable[[], float] = time.monotonic
    _started: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._started = self.clock()

    @property
    def left(self) -> float:
        """Seconds until nothing new is begun."""
        return self._started + limits.SOFT * self.settings.seconds - self.clock()

    @property
    def timings(self) -> Path:
        """The timing cache that all builds share."""
        return self.settings.out / "timing.cache"

    def folder(self, name: str) -> Path:
        """A folder of results that are kept."""
        path = self.settings.out / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def attempt(self, table: str, case: str, work: Callable[[], Finding]) -> Finding | None:
        """Does one check and records what it shows; an exception is a finding, too.

        Args:
            table: Title of the report's table.
            case: The row.
            work: The check.

        Returns:
            What it showed; None where it failed or was not begun for lack of time.
        """
        if self.left <= 0:
            self.skip(table, case, "the stage's time was up")
            return None
        began = self.clock()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("always")
                found = work()
        except Exception as error:  # noqa: BLE001 the other checks are still made
            traceback.print_exc()
            self._append(Record(table, case, {}, False, one_line(error), self.clock() - began))
            return None
        took = self.clock() - began
        self._append(Record(table, case, found.figures, found.passed, found.note, took))
        return found

    def skip(self, table: str, case: str, reason: str) -> None:
        """Records that a check was not made."""
        self._append(Record(table, case, note=f"not run: {reason}", ran=False))

    def _append(self, record: Record) -> None:
        append(self.settings.records, record)
        verdict = {True: "ok", False: "NOT OK", None: "-"}[record.passed]
        print(
            f"{record.seconds:7.1f} s  {verdict:6}  {record.table}: {record.case} {record.note}", flush=True
        )


def one_line(error: BaseException) -> str:
    """An exception's type and first line."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
