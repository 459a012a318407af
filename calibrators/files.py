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
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeAlias

from calibrators import records
from calibrators.checks import check_path
from calibrators.errors import OutputError
from calibrators.interruption import deferred_interrupt

if sys.platform != "win32":
    import fcntl

#: Ending of the names of files and folders that are being written.
_UNFINISHED = ".trtint8-tmp"

#: Name of the file that says which files a process is about to move; it stands in the folder that they are
#: written into.
_MOVING = "moving.json"

#: Name of the folder in it with the files.
_NEW = "new"

#: Seconds to wait while another process moves its files into the same folder, which takes milliseconds.
_PATIENCE = 30.0


@dataclass(frozen=True)
class _Noted:
    """What is written while :func:`noting_what_is_written` runs.

    Attributes:
        written: The outputs that are put in their places, in order, to the number in the file system of what
            is put there.
        temporary: The names of temporary files and folders.
    """

    written: dict[Path, int] = field(default_factory=dict)
    temporary: list[Path] = field(default_factory=list)


_noted: ContextVar[_Noted | None] = ContextVar("noted", default=None)

#: What tells a file from every other one, and from itself before a change: its number in the file system, its
#: size, and when it was written, in nanoseconds. Moving a file within its folder keeps all three.
Identity: TypeAlias = tuple[int, int, int]


@contextlib.contextmanager
def noting_what_is_written() -> Iterator[Callable[[], list[Path]]]:
    """Notes which files and folders are written while the block runs.

    Yields:
        A function that returns those of them that are there, in the order in which they were written first.
    """
    noted = _Noted()
    token = _noted.set(noted)
    try:
        yield lambda: [path for path, number in noted.written.items() if _number(path) == number]
    finally:
        _noted.reset(token)


def remove_temporary() -> None:
    """Removes the temporary files that were noted and are there: Ctrl-C came as they were made or removed.

    To be called at the end of the work for which :func:`noting_what_is_written` runs.
    """
    if (noted := _noted.get()) is not None:
        with deferred_interrupt():
            for path in noted.temporary:
                with contextlib.suppress(OSError):
                    _remove(path)


def _note(path: Path, new: Path) -> None:
    """Notes what is about to be put in its place: afterwards would be too late where Ctrl-C comes between."""
    if (noted := _noted.get()) is not None and (number := _number(new)) is not None:
        noted.written[path] = number


def _number(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


@dataclass(frozen=True)
class _Moving:
    """The files that a process was about to move.

    Attributes:
        files: The name of each file to the files that may stand there: the old one and the new one.
    """

    files: Mapping[str, tuple[Identity, ...]]


class FilesChangedError(OutputError):
    """Another process has written the same files since it was decided what to do with them."""


#: What is neither a file nor a folder, by the test for it.
_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISDIR, "folder"),
    (stat.S_ISCHR, "device"),
    (stat.S_ISBLK, "device"),
    (stat.S_ISFIFO, "named pipe"),
    (stat.S_ISSOCK, "socket"),
)


#: Endings of files to what these hold.
_HELD = {
    ".onnx": "model",
    **dict.fromkeys((".npz", ".npy"), "arrays"),
    **dict.fromkeys((".engine", ".plan"), "engine"),
    **dict.fromkeys((".json", ".cache", ".txt", ".csv"), "table"),
    **dict.fromkeys((".pt", ".pth"), "PyTorch"),
    **dict.fromkeys((".tflite", ".pb", ".h5", ".keras"), "TensorFlow"),
    **dict.fromkeys((".zip", ".tar", ".gz", ".tgz"), "archive"),
}


def kind_by_ending(path: str | os.PathLike[str]) -> str:
    """Returns what a file probably holds, for a message about a file in the place of another one.

    Args:
        path: The file.

    Returns:
        ``model``, ``arrays``, ``engine``, ``table``, ``archive``, or whose network it is: ``PyTorch`` or
        ``TensorFlow``. An empty text where the ending does not say it.
    """
    return _HELD.get(Path(path).suffix.lower(), "")


def is_file(path: str | os.PathLike[str]) -> bool:
    """Whether there is a file; there is none of a name that no file can have, such as one of 300 letters."""
    return os.path.isfile(path)  # noqa: PTH113  # pathlib raises OSError for such names


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Whether there is a folder; there is none of a name that no folder can have."""
    return os.path.isdir(path)  # noqa: PTH112


def exists(path: str | os.PathLike[str]) -> bool:
    """Whether there is anything of a name; there is nothing of a name that nothing can have."""
    return os.path.exists(path)  # noqa: PTH110


def identity_of(path: Path) -> Identity | None:
    """Returns what tells a file from all others and from itself before a change; None where there is none."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def is_link(path: str | os.PathLike[str]) -> bool:
    """Returns whether there is a symbolic link; there is none of a name that nothing can have."""
    return os.path.islink(path)  # noqa: PTH114


def check_writable(path: str | os.PathLike[str], *, named: bool = True) -> Path:
    """Fails now, rather than after minutes of work, where ``path`` cannot be written.

    Args:
        path: The file that a later step will write.
        named: Whether the user gave this name. A symbolic link that the user did not name is not followed.

    Returns:
        ``path`` as a :class:`~pathlib.Path`.

    Raises:
        OutputError: The folder does not exist or is not writable, the name is empty or too long, ``path`` is
            a folder, a device, a named pipe, a socket or a link that the user did not name, or what is given
            is no path.
    """
    check_path("a file to write", path, OutputError)
    path = Path(path)
    target = _destination(path, named=named)
    folder = target.parent
    if not folder.is_dir():
        shown = folder if path.is_symlink() else path.parent
        raise OutputError(f"cannot write '{path}': the folder '{shown}' does not exist; create it first")
    with _sentence(path):
        _remove_litter(target, but_unfinished=True)
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
        OutputError: One of them is there, but not all that an earlier run would have left. What a run was
            moving when it was killed may be replaced.
    """
    made, others, unfinished = [output, *together], list(sometimes), left_by_killed_runs(output)
    there = [path for path in (*made[1:], *others) if exists(path) and path not in unfinished]
    missing = [path for path in made if not exists(path)]
    if there and missing:
        raise OutputError(
            f"cannot write '{there[0]}': no earlier run with the output '{output}' has made it, because then "
            f"there would be '{missing[0]}'; move it away or give the output another name"
        )


def write_atomically(
    path: str | os.PathLike[str], data: bytes | Iterable[bytes | memoryview], *, named: bool = True
) -> Path:
    """Writes ``data`` under a temporary name in the same folder, then renames it to ``path``.

    A crash at any moment leaves the old file or the new one. What earlier runs that were killed have left
    behind of the same file is removed.

    Args:
        path: Destination; replaced when it exists. Of a symbolic link the file that it leads to is replaced.
        data: The whole content, or its pieces in order.
        named: Whether the user gave this name. A symbolic link that the user did not name is not followed.

    Returns:
        ``path`` as a :class:`~pathlib.Path`.

    Raises:
        OutputError: The folder is missing or not writable, the disk is full, or ``path`` is a folder, a
            device, a named pipe, a socket or a link that the user did not name.
    """
    check_path("a file to write", path, OutputError)
    path = Path(path)
    target = _destination(path, named=named)
    temporary: Path | None = None
    try:
        with _sentence(path):
            _remove_litter(target, but_unfinished=True)
            name, opener = _temporary(target), partial(os.open, mode=_mode_for(target))
            with open(name, "xb", opener=opener) as stream:  # pathlib takes no opener
                temporary = name
                for piece in [data] if isinstance(data, bytes) else data:
                    stream.write(piece)
                stream.flush()
                os.fsync(stream.fileno())
            _keep_permissions(temporary, target)
            _note(path, temporary)
            temporary.replace(target)
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
    return path


@contextlib.contextmanager
def written_together(
    main: str | os.PathLike[str], unless_changed: Iterable[Path] = ()
) -> Iterator[Callable[[Path], Path]]:
    """Writes several files of one folder, all of them or none.

    They are written into a folder of their own. Then they are moved to their places one by one, ``main``
    last. Until then there is no ``main``: a reader meets the old files, the new ones, or none of that name.
    After an error the old files are put back. After a kill in these milliseconds ``main`` is missing, and the
    next run replaces what is there; see :func:`left_by_killed_runs`.

    Args:
        main: The file that the others belong to. The user named it, so a symbolic link is followed. No link
            with the name of another file is.
        unless_changed: Files that decide what the block does.

    Yields:
        A function of a file's place to where the block is to write it.

    Raises:
        OutputError: A file cannot be written, or cannot be put in its place.
        FilesChangedError: Another process wrote a file of ``unless_changed`` meanwhile. Nothing was written;
            begin again.
    """
    main = Path(main)
    with _sentence(main):
        seen = {path: identity_of(path) for path in unless_changed}
        _remove_litter(main, but_unfinished=True)
        staging = _temporary(main)
        staging.mkdir(0o700)
        (staging / _NEW).mkdir()
    places: dict[Path, Path] = {}

    def staged(path: Path) -> Path:
        place = staging / _NEW / path.name
        places[place] = path
        return place

    try:
        with _as_of(places), _sentence(main):
            yield staged
        with _sentence(main):
            for place in sorted(places, key=lambda place: place.name != main.name):
                _note(places[place], place)
            _put_in_place(staging, main, seen)
            _remove_litter(main, *places.values())
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def left_by_killed_runs(main: str | os.PathLike[str]) -> frozenset[Path]:
    """Returns the files beside an output that a run was moving when it was killed.

    They are recognized by their numbers in the file system, so none of them was changed since.

    Args:
        main: The output; see :func:`written_together`.
    """
    main = Path(main)
    found: set[Path] = set()
    for folder in _litter(main):
        with contextlib.suppress(OSError, ValueError):  # another process has removed it, or it is damaged
            moving = records.to_record(records.read(folder / _MOVING), _Moving)
            places = {main.with_name(name): identities for name, identities in moving.files.items()}
            found |= {path for path, identities in places.items() if identity_of(path) in identities}
    return frozenset(found)


def remove_litter(path: str | os.PathLike[str]) -> None:
    """Removes the temporary files of an output that processes left which have ended.

    Args:
        path: The output.
    """
    _remove_litter(Path(path), but_unfinished=True)


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
            _note(path, target if existed else staging)
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


@contextlib.contextmanager
def temporary_folder(name: str) -> Iterator[Path]:
    """Makes a folder among the system's temporary files, which is removed after the block.

    What killed processes have left under the same name is removed first.

    Args:
        name: What the folder is for.

    Yields:
        The folder, which only this user can read.

    Raises:
        OutputError: It cannot be made.
    """
    beside = Path(tempfile.gettempdir()) / name
    with _sentence(beside):
        _remove_litter(beside)
        folder = _temporary(beside)
        folder.mkdir(0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_with_others(staged: Path) -> None:
    """Has :func:`written_together` remove a file when it moves the others to their places.

    Args:
        staged: Where the file would be written.
    """
    staged.mkdir()  # no file that is written is a folder


@dataclass
class _Move:
    """One step of :func:`written_together`.

    Attributes:
        new: The file that was written, or a folder where the old file is only removed.
        place: Where it goes.
        kept: Where the old file is kept until all files are in their places.
    """

    new: Path
    place: Path
    kept: Path = field(init=False)

    def __post_init__(self) -> None:
        self.kept = _temporary(self.place)

    def keep_old(self) -> None:
        """Moves the old file out of the way, where there is one."""
        with contextlib.suppress(FileNotFoundError):
            self.place.replace(self.kept)

    def put(self) -> None:
        """Moves the new file to its place."""
        if self.new.is_dir():
            return
        _keep_permissions(self.new, self.kept)
        try:
            self.new.replace(self.place)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            write_atomically(self.place, self.new.read_bytes())  # a link leads to another file system
            self.new.unlink()

    def undo(self) -> None:
        """Brings back the old file, or removes the new one where there was none."""
        if os.path.lexists(self.kept):
            self.kept.replace(self.place)
        elif not os.path.lexists(self.new):
            self.place.unlink(missing_ok=True)


def _put_in_place(staging: Path, main: Path, seen: Mapping[Path, Identity | None]) -> None:
    """Moves complete files to their places, unless others were written meanwhile."""
    found = sorted((staging / _NEW).iterdir(), key=lambda new: (new.name == main.name, not new.is_dir()))
    moves = [_Move(new, _place(new, main)) for new in found]
    with _alone_in(main.parent), deferred_interrupt():
        for path, identity in seen.items():
            if identity_of(path) != identity:
                raise FilesChangedError(
                    f"cannot write '{main}': another process keeps writing '{path}'; give another name"
                )
        if len(moves) == 1 and not moves[0].new.is_dir():  # it is replaced in one step
            moves[0].kept = moves[0].place
            moves[0].put()
            return
        _say_what_moves(staging, moves)
        try:
            moves[-1].keep_old()
            for move in moves[:-1]:
                move.keep_old()
                move.put()
            moves[-1].put()
        except BaseException:
            for move in reversed(moves):
                move.undo()
            raise
        for move in moves:
            move.kept.unlink(missing_ok=True)


def _place(new: Path, main: Path) -> Path:
    """Where a file goes; refuses what cannot be replaced, before anything is."""
    place = main.parent / new.name
    return place if new.is_dir() else _destination(place, named=new.name == main.name)


def _say_what_moves(staging: Path, moves: Sequence[_Move]) -> None:
    """Writes down what :func:`left_by_killed_runs` will recognize."""
    files = {move.new.name: (identity_of(move.place), identity_of(move.new)) for move in moves}
    known = {name: tuple(filter(None, identities)) for name, identities in files.items()}
    (staging / _MOVING).write_bytes(records.render(_Moving(known)))


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Keeps other processes from moving their files into a folder at the same time.

    The folder itself is locked, so that no file is left behind. Where a system has no such locks, as Windows,
    nothing is locked.
    """
    if sys.platform == "win32":
        yield
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:  # files can be written there, and not listed
        yield
        return
    try:
        end = time.monotonic() + _PATIENCE
        while not _is_locked(descriptor):
            if time.monotonic() > end:
                raise OutputError(
                    f"cannot write into '{folder}': another process has locked the folder for "
                    f"{_PATIENCE:.0f} seconds; end it, or choose another folder"
                )
            time.sleep(0.005)
        yield
    finally:
        os.close(descriptor)  # which ends the lock


def _is_locked(descriptor: int) -> bool:
    """Locks a folder; False where another process has locked it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # this file system has no locks of folders
    return True


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


def _destination(path: Path, *, named: bool = True) -> Path:
    """Returns the file that a path leads to, through symbolic links; it need not exist.

    Args:
        path: The path.
        named: Whether the user gave it. In a folder of somebody else's, a link that the user did not name may
            lead to any file.

    Raises:
        OutputError: There is something that is no file, or a link that the user did not name.
    """
    if not named and is_link(path):
        raise OutputError(
            f"cannot write '{path}': it is a symbolic link, which may lead to any file and is not followed "
            "here; remove it"
        )
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
    name = path.parent / f"{_host_prefix(path)}{os.getpid()}-{secrets.token_hex(8)}{_UNFINISHED}"
    if (noted := _noted.get()) is not None:
        noted.temporary.append(name)
    return name


def _host_prefix(path: Path) -> str:
    """Process numbers mean something on one machine only."""
    host = hashlib.blake2b(socket.gethostname().encode(), digest_size=4).hexdigest()
    return f".{_key(path)}-{host}-"


def _remove_litter(*paths: Path, but_unfinished: bool = False) -> None:
    """Removes temporary files of outputs in one folder whose processes have ended.

    Args:
        paths: The outputs.
        but_unfinished: Whether to leave what :func:`left_by_killed_runs` needs.
    """
    for found in _litter(*paths):
        if not (but_unfinished and is_file(found / _MOVING)):
            _remove(found)


def _litter(*paths: Path) -> Iterator[Path]:
    """Yields the temporary files of outputs in one folder whose processes have ended.

    What belongs to another user, and a link, is not ours.
    """
    prefixes = [_host_prefix(path) for path in paths]
    names: list[str] = []
    with contextlib.suppress(OSError), os.scandir(paths[0].parent) as entries:  # or it cannot be read
        names += [entry.name for entry in entries if entry.name.endswith(_UNFINISHED)]
    for name in names:
        prefix = next(filter(name.startswith, prefixes), None)
        process = name.removeprefix(prefix).partition("-")[0] if prefix else ""
        if process.isdecimal() and not _is_alive(int(process)):
            found = paths[0].parent / name
            with contextlib.suppress(FileNotFoundError):  # another process was quicker
                status = found.lstat()
                if not stat.S_ISLNK(status.st_mode) and status.st_uid == _user():
                    yield found


def _user() -> int:
    """Returns the number of the user that this process makes files for; 0 on Windows, as of every file."""
    return os.geteuid() if sys.platform != "win32" else 0


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
