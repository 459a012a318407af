"""Progress of a long run on disk, so that what was interrupted need not begin again."""

from __future__ import annotations

import time
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from calibrators.errors import TableError
from calibrators.files import write_atomically

#: Seconds between two writes.
SECONDS = 30.0

Progress = TypeVar("Progress")


class Format(Protocol[Progress]):
    """How progress of one kind stands in a file."""

    def encode(self, identity: Mapping[str, object], progress: Progress) -> bytes:
        """The content of a file."""
        ...

    def decode(self, content: bytes) -> tuple[Mapping[str, object], Progress]:
        """Identity and progress of a file.

        Raises:
            ValueError: The content is something else; or another error that :data:`UNREADABLE` lists.
        """
        ...


@dataclass(frozen=True)
class Checkpoint(Generic[Progress]):
    """Where progress is kept, and how often.

    Attributes:
        path: The file. It is replaced atomically, and removed once the result is safe.
        identity: What progress depends on besides the data, by name; a file of another identity is refused.
        format: How progress stands in the file.
        resume: Continue from the file where there is one; else it is overwritten.
        seconds: The least time between two writes, in seconds.
    """

    path: Path
    identity: Mapping[str, object]
    format: Format[Progress]
    resume: bool = False
    seconds: float = SECONDS

    def load(self) -> Progress | None:
        """The progress to continue from; None where there is none or it is not wanted.

        Raises:
            TableError: The file is damaged, or of another identity.
        """
        if not (self.resume and self.path.exists()):
            return None
        try:
            identity, progress = self.format.decode(self.path.read_bytes())
        except UNREADABLE as error:
            raise TableError(
                f"cannot read the checkpoint '{self.path}' ({error}); remove it to begin anew"
            ) from error
        for key in dict.fromkeys([*self.identity, *identity]):
            then, now = identity.get(key), self.identity.get(key)
            if then != now:
                name = key.replace("_", " ")
                raise TableError(
                    f"the checkpoint '{self.path}' was made with another {name} ({then} then, {now} now), so "
                    "continuing would mix two runs; restore that, or remove the checkpoint to begin anew"
                )
        return progress

    def save(self, progress: Progress) -> None:
        """Replaces the file.

        Raises:
            OutputError: The file cannot be written.
        """
        write_atomically(self.path, self.format.encode(self.identity, progress))

    def remove(self) -> None:
        """Deletes the file where there is one: what it held is in a safe place now."""
        self.path.unlink(missing_ok=True)


#: What reading a file of another kind may raise.
UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, EOFError, zipfile.BadZipFile)


class Timer:
    """Says when the next write is due."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._last = time.monotonic()

    def due(self) -> bool:
        """Whether the time is over; then it begins anew."""
        now = time.monotonic()
        if now - self._last < self._seconds:
            return False
        self._last = now
        return True
