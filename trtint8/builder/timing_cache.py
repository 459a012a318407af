"""Keeps TensorRT's timing cache in a file that several builds may share."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock

from calibrators import records
from calibrators.errors import BuildError
from calibrators.files import write_atomically
from calibrators.tensorrt.messages import NO_REASON, BuildLog, plain_words

#: The largest file that is read, in bytes.
_MOST_BYTES = 1 << 30


def attach_timing_cache(config: Any, path: str | os.PathLike[str], log: BuildLog) -> None:
    """Gives a build the timings of earlier builds.

    Args:
        config: The ``IBuilderConfig`` of the build.
        path: The file; a missing file is an empty cache.
        log: The log that collects TensorRT's messages.

    Raises:
        BuildError: The file is not a timing cache of this TensorRT and GPU, or cannot be locked or read.
    """
    with _locked(path):
        data = _read(path)
    errors, warnings = len(log.errors), len(log.warnings)
    timing_cache = config.create_timing_cache(data)
    # Timings of another GPU would mislead TensorRT, so a mismatch is refused.
    attached = timing_cache is not None and config.set_timing_cache(timing_cache, False)
    if not attached or _lost(config, timing_cache, data):
        reasons = "; ".join(plain_words([*log.errors[errors:], *log.warnings[warnings:]])) or NO_REASON
        raise BuildError(
            f"'{os.fspath(path)}' is not a timing cache of this TensorRT and GPU ({reasons}); give another "
            "file or remove it"
        )
    # What it says of a cache that it takes is no reason why a build fails.
    del log.errors[errors:]


def _lost(config: Any, timing_cache: Any, data: bytes) -> bool:
    """Whether TensorRT took nothing of a file, which it only logs.

    What it logs does not tell: TensorRT 8.6 says of its own cache that it will not be used where the compiler
    of fused parts cannot read its share, and uses the timings of all other layers.
    """
    if not data:
        return False
    empty = bytes(config.create_timing_cache(b"").serialize())
    return data != empty and bytes(timing_cache.serialize()) == empty


def save_timing_cache(config: Any, path: str | os.PathLike[str]) -> None:
    """Writes the timings after a build, together with those that other builds have written since it began.

    Args:
        config: The ``IBuilderConfig`` of the build.
        path: The file.

    Raises:
        BuildError: The file cannot be locked or read.
        OutputError: It cannot be written.
    """
    timing_cache = config.get_timing_cache()
    with _locked(path):
        data = _read(path)
        others = config.create_timing_cache(data) if data else None
        if others is not None:
            # Combined with a second object, because TensorRT never returns from combining a cache with
            # itself.
            timing_cache.combine(others, False)
        write_atomically(path, bytes(timing_cache.serialize()))


@contextlib.contextmanager
def _locked(path: str | os.PathLike[str]) -> Iterator[None]:
    lock = FileLock(f"{os.fspath(path)}.lock")
    if Path(lock.lock_file).is_symlink():  # to lock it empties the file that it leads to
        raise BuildError(
            f"the timing cache '{os.fspath(path)}' cannot be locked with '{lock.lock_file}': it is a "
            "symbolic link; remove it"
        )
    try:
        lock.acquire()
    except OSError as error:
        raise BuildError(
            f"the timing cache '{os.fspath(path)}' cannot be locked with '{lock.lock_file}': "
            f"{error.strerror or error}; give a file in a folder that can be written"
        ) from error
    try:
        yield
    finally:
        lock.release()


def _read(path: str | os.PathLike[str]) -> bytes:
    try:
        return records.read_bytes(path, _MOST_BYTES)
    except FileNotFoundError:
        return b""
    except (OSError, records.RecordError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise BuildError(f"the timing cache '{os.fspath(path)}' cannot be read: {reason}") from error
