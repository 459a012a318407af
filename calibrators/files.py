"""Files that are either the old one or the new one, never half of either."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from calibrators.errors import OutputError


def check_writable(path: str | os.PathLike[str]) -> Path:
    """Fails now, rather than after minutes of work, where ``path`` cannot be written.

    Args:
        path: The file that a later step will write.

    Returns:
        ``path`` as a :class:`~pathlib.Path`.

    Raises:
        OutputError: The folder does not exist or is not writable, or ``path`` is a folder.
    """
    path = Path(path)
    if path.is_dir():
        raise OutputError(f"cannot write '{path}': it is a folder; give a file name")
    folder = path.parent
    if not folder.is_dir():
        raise OutputError(f"cannot write '{path}': the folder '{folder}' does not exist; create it first")
    try:
        # A real attempt: permission bits say nothing about root, read-only mounts or full quotas.
        descriptor, probe = tempfile.mkstemp(prefix=f".{path.name}.", dir=folder)
        os.close(descriptor)
        Path(probe).unlink()
    except OSError as error:
        raise OutputError(
            f"cannot write '{path}': {error.strerror or error}; choose another place"
        ) from error
    return path


def write_atomically(path: str | os.PathLike[str], data: bytes | Iterable[bytes]) -> Path:
    """Writes ``data`` under a temporary name in the same folder, then renames it to ``path``.

    A crash at any moment leaves the old file or the new one.

    Args:
        path: Destination; replaced when it exists.
        data: The whole content, or its pieces in order.

    Returns:
        ``path`` as a :class:`~pathlib.Path`.

    Raises:
        OutputError: The folder is missing or not writable, or the disk is full.
    """
    path = Path(path)
    temporary: Path | None = None
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        temporary = Path(name)
        with os.fdopen(descriptor, "wb") as stream:
            for piece in [data] if isinstance(data, bytes) else data:
                stream.write(piece)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(_mode_for(path))
        temporary.replace(path)
    except OSError as error:
        raise OutputError(
            f"cannot write '{path}': {error.strerror or error}; choose another place"
        ) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
    return path


@contextlib.contextmanager
def removed_after_failure(files: Sequence[Path]) -> Iterator[None]:
    """Takes back the files that appeared in a block that failed; those that were there before stay."""
    new = [file for file in files if not file.exists()]
    try:
        yield
    except BaseException:
        for file in new:
            file.unlink(missing_ok=True)
        raise


def _mode_for(path: Path) -> int:
    """The permissions that a plain ``open(path, 'w')`` would leave; mkstemp's are private."""
    if path.exists():
        return path.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
