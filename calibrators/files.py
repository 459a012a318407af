"""Files that are either the old ones or the new ones, never half of either."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
import socket
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

from calibrators.checks import check_path
from calibrators.errors import OutputError

#: Ending of the names of files and folders that are being written.
_UNFINISHED = ".trtint8-tmp"

#: Ending of the name of a folder with complete files, which only have to be moved to their places.
_COMPLETE = ".trtint8-new"

#: What is neither a file nor a folder, by the test for it.
_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISDIR, "folder"),
    (stat.S_ISCHR, "device"),
    (stat.S_ISBLK, "device"),
    (stat.S_ISFIFO, "named pipe"),
    (stat.S_ISSOCK, "socket"),
)


def is_file(path: str | os.PathLike[str]) -> bool:
    """Whether there is a file; there is none of a name that no file can have, such as one of 300 letters."""
    return os.path.isfile(path)  # noqa: PTH113  # pathlib raises OSError for such names


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Whether there is a folder; there is none of a name that no folder can have."""
    return os.path.isdir(path)  # noqa: PTH112


def exists(path: str | os.PathLike[str]) -> bool:
    """Whether there is anything of a name; there is nothing of a name that nothing can have."""
    return os.path.exists(path)  # noqa: PTH110


def check_writable(path: str | os.PathLike[str]) -> Path:
    """Fails now, rather than after minutes of work, where ``path`` cannot be written.

    Args:
        path: The file that a later step will write.

    Returns:
        ``path`` as a :class:`~pathlib.Path`.

    Raises:
        OutputError: The folder does not exist or is not writable, the name is empty or too long, ``path`` is
            a folder, a device, a named pipe or a socket, or what is given is no path.
    """
    check_path("a file to write", path, OutputError)
    path = Path(path)
    target = _destination(path)
    folder = target.parent
    if not folder.is_dir():
        shown = folder if path.is_symlink() else path.parent
        raise OutputError(f"cannot write '{path}': the folder '{shown}' does not exist; create it first")
    with _sentence(path):
        # A real attempt: permission bits say nothing about root, read-only mounts or full quotas.
        probe = _temporary(target)
        probe.touch(exist_ok=False)
        probe.unlink()
    return path


def refuse_overwriting(outputs: Iterable[Path], inputs: Iterable[object]) -> None:
    """Refuses to write what is read.

    Args:
        outputs: The files that will be written.
        inputs: What is read; what is no path is left out.

    Raises:
        OutputError: An output is one of the inputs.
    """
    read = [Path(source) for source in inputs if isinstance(source, (str, os.PathLike))]
    for output in outputs:
        for source in read:
            with contextlib.suppress(OSError, ValueError):  # there is none of a name that no file can have
                if output.samefile(source):
                    raise OutputError(f"cannot write '{output}': it is read as well; give another name")


def refuse_losing(output: Path, together: Iterable[Path], sometimes: Iterable[Path] = ()) -> None:
    """Refuses to replace files beside an output that no earlier run has made.

    The user gives the name of the output, and not those of the files beside it.

    Args:
        output: The file that the user names; it may be replaced.
        together: The files that are always written with it.
        sometimes: The files that are written with it at times.

    Raises:
        OutputError: One of them is there, but not all that an earlier run would have left.
    """
    made, others = [output, *together], list(sometimes)
    there = [path for path in (*made[1:], *others) if exists(path)]
    missing = [path for path in made if not exists(path)]
    if there and missing:
        raise OutputError(
            f"cannot write '{there[0]}': no earlier run with the output '{output}' has made it, because then "
            f"there would be '{missing[0]}'; move it away or give the output another name"
        )


def write_atomically(path: str | os.PathLike[str], data: bytes | Iterable[bytes | memoryview]) -> Path:
    """Writes ``data`` under a temporary name in the same folder, then renames it to ``path``.

    A crash at any moment leaves the old file or the new one. What earlier runs that were killed have left
    behind of the same file is removed.

    Args:
        path: Destination; replaced when it exists. Of a symbolic link the file that it leads to is replaced.
        data: The whole content, or its pieces in order.

    Returns:
        ``path`` as a :class:`~pathlib.Path`.

    Raises:
        OutputError: The folder is missing or not writable, the disk is full, or ``path`` is a folder, a
            device, a named pipe or a socket.
    """
    check_path("a file to write", path, OutputError)
    path = Path(path)
    target = _destination(path)
    temporary: Path | None = None
    try:
        with _sentence(path):
            _remove_litter(target)
            name, opener = _temporary(target), partial(os.open, mode=_mode_for(target))
            with open(name, "xb", opener=opener) as stream:  # pathlib takes no opener
                temporary = name
                for piece in [data] if isinstance(data, bytes) else data:
                    stream.write(piece)
                stream.flush()
                os.fsync(stream.fileno())
            _keep_permissions(temporary, target)
            temporary.replace(target)
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
    return path


@contextlib.contextmanager
def written_together(main: str | os.PathLike[str]) -> Iterator[Callable[[Path], Path]]:
    """Writes several files of one folder so that after a crash either all are the old ones or all the new.

    They are written into a folder of their own. Once all are complete this folder gets another name, in one
    step, and from then on the new files count: :func:`finish_writing` moves them to their places, ``main``
    last, if a crash keeps this process from it.

    Args:
        main: The file that the others belong to.

    Yields:
        A function of a file's place to where the block is to write it.

    Raises:
        OutputError: A file cannot be written, or cannot be put in its place.
    """
    main = Path(main)
    finish_writing(main)
    folder = main.parent
    with _sentence(main):
        _remove_litter(main)
        staging = _temporary(main)
        staging.mkdir(0o700)
    places: dict[Path, Path] = {}

    def staged(path: Path) -> Path:
        places[staging / path.name] = path
        return staging / path.name

    try:
        with _as_of(places), _sentence(main):
            yield staged
        for path in staging.iterdir():
            _destination(folder / path.name)  # refuses what cannot be replaced, before anything is
        with _sentence(main):
            _put_in_place(staging, main)
    except (KeyboardInterrupt, SystemExit):
        finish_writing(main)  # if all files were complete, what is left to do takes no time
        raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)


@contextlib.contextmanager
def new_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Writes a folder so that after a failure it is either complete or as it was before.

    Args:
        path: The folder; it must not exist, or be empty. An empty one stays the same folder, with its
            permissions: it may be the current one, or one where a file system is mounted.

    Yields:
        Where the block is to write what the folder will hold.

    Raises:
        OutputError: There is something of that name that is no empty folder, or it cannot be written.
    """
    check_path("a folder to write", path, OutputError)
    path = Path(path)
    with _sentence(path):
        target = Path(os.path.realpath(path))
        existed = target.is_dir()
        beside = target / target.name if existed else target
        if existed:
            _remove_litter(beside)
            if any(target.iterdir()):
                raise OutputError(f"cannot write '{path}': the folder is not empty; give a new one")
        elif path.exists() or path.is_symlink():
            raise OutputError(f"cannot write '{path}': it is no folder; give a new one")
        elif not target.parent.is_dir():
            raise OutputError(
                f"cannot write '{path}': the folder '{path.parent}' does not exist; create it first"
            )
        else:
            _remove_litter(beside)
        staging = _temporary(beside)
        staging.mkdir(0o700 if existed else 0o777)
    moved: list[Path] = []
    try:
        with _sentence(path):
            yield staging
            if existed:
                for found in list(staging.iterdir()):
                    moved.append(target / found.name)
                    found.replace(moved[-1])
            else:
                staging.replace(target)
    except BaseException:
        for found in moved:
            _remove(found)
        raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def remove_with_others(staged: Path) -> None:
    """Has :func:`written_together` remove a file in the step that puts the others in their places.

    Args:
        staged: Where the file would be written.
    """
    staged.mkdir()  # no file that is written is a folder


def finish_writing(main: str | os.PathLike[str]) -> None:
    """Moves files to their places that were complete when the process which wrote them ended.

    Args:
        main: The file that the others belong to; see :func:`written_together`.
    """
    main = Path(main)
    if main.name:  # "." has none
        # In a folder that cannot be written, and for a name that no file can have, there is nothing to do.
        with contextlib.suppress(OSError, ValueError):
            _move_out(main)


def _put_in_place(staging: Path, main: Path) -> None:
    """Makes a folder of complete files count, and moves them out of it."""
    while True:
        try:
            staging.replace(_complete(main))
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            _move_out(main)  # the files of another process that writes the same ones
        else:
            _move_out(main)
            return


def _move_out(main: Path) -> None:
    """Moves complete files to their places; other processes may be doing the same at the same time."""
    folder = _complete(main)
    try:
        paths = sorted(folder.iterdir(), key=lambda path: path.name == main.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    for path in paths:
        target = _destination(main.parent / path.name)
        with contextlib.suppress(FileNotFoundError):  # another process was quicker
            if path.is_dir():
                path.rmdir()  # first, because another process may be writing the file anew
                (main.parent / path.name).unlink()
                continue
            _keep_permissions(path, target)
            try:
                path.replace(target)
            except OSError:  # a symbolic link leads to another file system
                write_atomically(target, path.read_bytes())
                path.unlink()
    with contextlib.suppress(OSError):  # another process has removed it, or put the next files there
        folder.rmdir()


def _complete(main: Path) -> Path:
    return main.with_name(f".{_key(main)}{_COMPLETE}")


@contextlib.contextmanager
def _sentence(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"cannot write '{path}': {error.strerror or error}; choose another place"
        ) from error
    except UnicodeEncodeError as error:
        raise OutputError(f"cannot write '{path}': no file can have that name; choose another") from error


@contextlib.contextmanager
def _as_of(places: Mapping[Path, Path]) -> Iterator[None]:
    """Has errors name the places of files, not where these are written for the time being."""
    try:
        yield
    except OutputError as error:
        message = str(error)
        for temporary, path in places.items():
            message = message.replace(f"'{temporary}'", f"'{path}'")
        raise OutputError(message) from error


def _destination(path: Path) -> Path:
    """The file that a path leads to, through symbolic links; it need not exist.

    Raises:
        OutputError: There is something that is no file.
    """
    with _sentence(path):
        target = Path(os.path.realpath(path))
        try:
            mode = target.stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            return target
    if not stat.S_ISREG(mode):
        kind = next((kind for test, kind in _KINDS if test(mode)), "special file")
        raise OutputError(f"cannot write '{path}': it is a {kind}; give a file name")
    return target


def _key(path: Path) -> str:
    """A file's name in the names of its temporary files, which may be no longer than other names."""
    return hashlib.blake2b(os.fsencode(path.name), digest_size=8).hexdigest()


def _temporary(path: Path) -> Path:
    """A name that nothing has, beside a file that is to be written."""
    return path.parent / f"{_host_prefix(path)}{os.getpid()}-{secrets.token_hex(8)}{_UNFINISHED}"


def _host_prefix(path: Path) -> str:
    """Process numbers mean something on one machine only."""
    host = hashlib.blake2b(socket.gethostname().encode(), digest_size=4).hexdigest()
    return f".{_key(path)}-{host}-"


def remove_litter(path: str | os.PathLike[str]) -> None:
    """Removes what processes that have ended have left of a file that they were writing."""
    _remove_litter(Path(path))


def _remove_litter(path: Path) -> None:
    """Removes temporary files of the same output whose processes have ended."""
    prefix = _host_prefix(path)
    for found in path.parent.glob(f"{prefix}*{_UNFINISHED}"):
        process = found.name.removeprefix(prefix).partition("-")[0]
        if process.isdecimal() and not _is_alive(int(process)):
            _remove(found)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    if sys.platform == "win32":
        return True  # not known: there the signal 0 is that of Ctrl+C, and it would be sent
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def _mode_for(path: Path) -> int:
    """The permissions to write a file with that will be at ``path``, before the system applies the umask."""
    try:
        return path.stat().st_mode & 0o777
    except FileNotFoundError:
        return 0o666


def _keep_permissions(path: Path, target: Path) -> None:
    """Gives a file the permissions of the one that it will replace, if there is one."""
    with contextlib.suppress(FileNotFoundError):
        path.chmod(target.stat().st_mode & 0o777)
