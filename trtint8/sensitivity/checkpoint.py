"""The sums of an unfinished measurement, kept in a file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from calibrators.errors import TableError
from calibrators.files import write_atomically
from calibrators.host.checkpoint import Timer
from calibrators.tables.table import CalibrationTable
from trtint8.models.model import Model

#: Between two checkpoints.
_SECONDS = 5.0


class Checkpoint:
    """A file that outlives a measurement that is cut off.

    Args:
        path: The file; None keeps nothing.
        identity: What the measurement is of.
    """

    def __init__(self, path: Path | None, identity: Mapping[str, Any]) -> None:
        self._path, self._identity = path, dict(identity)
        self._timer = Timer(_SECONDS)

    def load(self) -> dict[str, Any] | None:
        """What was saved last; None where nothing was.

        Raises:
            TableError: The file is of another measurement, or is something else.
        """
        if self._path is None or not self._path.exists():
            return None
        try:
            document = json.loads(self._path.read_bytes())
            identity, state = document["identity"], document["state"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TableError(f"'{self._path}' is no checkpoint of a measurement; remove it") from error
        other = [name for name, value in self._identity.items() if identity.get(name) != value]
        if other:
            what = other[0].replace("_", " ")
            raise TableError(
                f"the checkpoint '{self._path}' is of another {what}; measure as before, or remove it to "
                "begin anew"
            )
        found: dict[str, Any] = state
        return found

    def save_now_and_then(self, state: Callable[[], dict[str, Any]]) -> None:
        """Saves, atomically, if the last time is some seconds ago."""
        if self._path is None or not self._timer.due():
            return
        document = {"identity": self._identity, "state": state()}
        write_atomically(self._path, json.dumps(document).encode())

    def remove(self) -> None:
        """Removes the file, if there is one."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def checkpoint_of(
    path: str | os.PathLike[str] | None,
    prepared: Model,
    table: CalibrationTable,
    keep_float: Sequence[str],
    batch_size: int | None,
) -> Checkpoint:
    """Where a measurement keeps its sums, and what these depend on besides the data."""
    identity = {
        "model": prepared.fingerprint,
        "table": table.fingerprint,
        "keep_float": list(keep_float),
        "batch_size": batch_size,
    }
    return Checkpoint(None if path is None else Path(path), identity)
