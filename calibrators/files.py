"""Files that are either the old ones or the new ones, never half of either.

What is written stands in a folder of its own beside the output until it is complete. A lock in that folder is
held as long as its process lives, so that the next run knows the folders of killed ones.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, TypeAlias

from calibrators import records
from calibrators.checks import PATH_TYPES, FilePath, check_path
from calibrators.errors import OutputError
from calibrators.interruption import deferred_interrupt

if sys.platform != "win32":
    import fcntl

#: Ending of the names of folders with what is being written.
_UNFINISHED = ".trtint8-tmp"

#: What such a folder holds: the file that its process locks, and the one that says what is moved.
_LOCK, _MOVING = "lock", "moving.json"

#: The folders in it: for new files, for empty files with the names of those that only go, and for old files.
_NEW, _GONE, _OLD = "new", "gone", "old"

#: Seconds to wait while another process moves its files into the same folder, which takes milliseconds.
_PATIENCE = 30.0


@dataclass(frozen=True)
class _Noted:
    """What is written while :func:`noting_what_is_written` runs.

    Attributes:
        written: The outputs that are put in their places, in order, to the number in the file system of what
            is put there.
        temporary: The folders that files are written into.
    """

    written: dict[Path, int] = field(default_factory=dict)
    temporary: list[Path] = field(default_factory=list)


_noted: ContextVar[_Noted | None] = ContextVar("noted", default=None)

#: Folders with new files of this process. What is written there needs no other such folder.
_open: set[Path] = set()

#: What tells a file from every other one, and from itself before a change: its number in the file system, its
#: size, and when it was written, in nanoseconds. Moving a file within its file system keeps all three.
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
            for staging in noted.temporary:
                _settle(staging)


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
        number: The number in the file system of the folder that this stands in; a copy has another one.
        main: The name of the file that is moved last.
        files: The name of each file to the new one; None where it only goes.
    """

    number: int
    main: str
    files: Mapping[str, Identity | None]


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


def kind_by_ending(path: FilePath) -> str:
    """Returns what a file probably holds, for a message about a file in the place of another one.

    Args:
        path: The file.

    Returns:
        ``model``, ``arrays``, ``engine``, ``table``, ``archive``, or whose network it is: ``PyTorch`` or
        ``TensorFlow``. An empty text where the ending does not say it.
    """
    return _HELD.get(Path(path).suffix.lower(), "")


def is_file(path: FilePath) -> bool:
    """Whether there is a file; there is none of a name that no file can have, such as one of 300 letters."""
    return os.path.isfile(path)  # noqa: PTH113  # pathlib raises OSError for such names


def is_folder(path: FilePath) -> bool:
    """Whether there is a folder; there is none of a name that no folder can have."""
    return os.path.isdir(path)  # noqa: PTH112


def exists(path: FilePath) -> bool:
    """Whether there is anything of a name; there is nothing of a name that nothing can have."""
    return os.path.exists(path)  # noqa: PTH110


def identity_of(path: Path) -> Identity | None:
    """Returns what tells a file from all others and from itself before a change; None where there is none.

    Raises:
        OutputError: It cannot be found out.
    """
    with _sentence(path):
        try:
            found = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def is_link(path: FilePath) -> bool:
    """Returns whether there is a symbolic link; there is none of a name that nothing can have."""
    return os.path.islink(path)  # noqa: PTH114


def check_writable(path: FilePath, *, named: bool = True) -> Path:
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
    with _sentence(path):
        if not target.parent.is_dir():
            shown = target.parent if path.is_symlink() else path.parent
            raise OutputError(f"cannot write '{path}': the folder '{shown}' does not exist; create it first")
        if is_link(path):  # files that belong together are written beside the link
            remove_litter(path)
        # A real attempt: permission bits say nothing about root, read-only mounts or full quotas.
        with _staging(target):
            return path


def refuse_overwriting(outputs: Iterable[Path], inputs: Iterable[object]) -> None:
    """Refuses to write what is read.

    Args:
        outputs: The files that will be written.
        inputs: What is read; what is no path is left out.

    Raises:
        OutputError: An output is one of the inputs.
    """
    read = [Path(source) for source in inputs if isinstance(source, PATH_TYPES)]
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
    remove_litter(output)
    made = [output, *together]
    there = [path for path in (*made[1:], *sometimes) if exists(path)]
    missing = [path for path in made if not exists(path)]
    if there and missing:
        raise OutputError(
            f"cannot write '{there[0]}': no earlier run with the output '{output}' has made it, because then "
            f"there would be '{missing[0]}'; move it away or give the output another name"
        )


def write_atomically(
    path: FilePath, data: bytes | Iterable[bytes | memoryview], *, named: bool = True
) -> Path:
    """Writes ``data`` into a folder beside ``path``, then moves it to ``path`` in one step.

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
    place = target if is_link(path) else path
    with written_together(place) as staged:
        _write(staged(place), [data] if isinstance(data, bytes) else data)
    return path


@contextlib.contextmanager
def written_together(main: FilePath, unless_changed: Iterable[Path] = ()) -> Iterator[Callable[[Path], Path]]:
    """Writes several files of one folder, all of them or none.

    They are written into a folder of their own. Then they are moved to their places one by one, ``main``
    last. Until then there is no ``main``: a reader meets the old files, the new ones, or none of that name.
    After an error the old files are put back. After a kill in these milliseconds ``main`` is missing, and the
    next run puts them back; see :func:`remove_litter`.

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
    if not _open.isdisjoint(main.parents):
        with _sentence(main):
            yield lambda path: main.with_name(path.name)  # they are moved with the others of that folder
        return
    places: dict[Path, Path] = {}
    with _sentence(main), _staging(main) as staging:
        for kind in (_NEW, _GONE, _OLD):
            (staging / kind).mkdir()

        def staged(path: Path) -> Path:
            place = staging / _NEW / path.name
            places[place] = path
            return place

        seen = {path: identity_of(path) for path in unless_changed}
        with _as_of(places), _sentence(main):
            yield staged
        for place in sorted(places, key=lambda place: place.name != main.name):
            _note(places[place], place)
        _put_in_place(staging, main, seen)


def remove_litter(path: FilePath) -> None:
    """Removes the temporary files of an output that processes left which have ended.

    Where one of them was moving files to their places, the old ones are put back first. A file that was
    changed since stays as it is.

    Args:
        path: The output.

    Raises:
        OutputError: The folder of the output cannot be read, or another process keeps it locked.
    """
    output = Path(path)
    with _sentence(output):
        if stagings := _stagings_of(output):
            with _alone_in(output.parent):
                _settle_ended(stagings)


@contextlib.contextmanager
def new_folder(path: FilePath) -> Iterator[Path]:
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
        for output in (target, beside):  # of a run that was killed before it was there, or in it
            remove_litter(output)
        if existed and any(target.iterdir()):
            raise OutputError(f"cannot write '{path}': the folder is not empty; give a new one")
        if not existed and (path.exists() or path.is_symlink()):
            raise OutputError(f"cannot write '{path}': it is no folder; give a new one")
        if not beside.parent.is_dir():
            raise OutputError(
                f"cannot write '{path}': the folder '{path.parent}' does not exist; create it first"
            )
        with _staging(beside) as staging:
            new = staging / _NEW
            for folder in (new, staging / _GONE, staging / _OLD):
                folder.mkdir()
            yield new
            _note(path, target if existed else new)
            if not existed:
                new.replace(target)
            elif found := sorted(new.iterdir()):
                _put_in_place(staging, target / found[-1].name, {})


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
    with contextlib.ExitStack() as until_the_end:
        with _sentence(beside):
            new = until_the_end.enter_context(_staging(beside)) / _NEW
            new.mkdir()
        yield new


def remove_with_others(staged: Path) -> None:
    """Has :func:`written_together` remove a file when it moves the others to their places.

    Args:
        staged: Where the file would be written.
    """
    (staged.parent.with_name(_GONE) / staged.name).touch()


def _put_in_place(staging: Path, main: Path, seen: Mapping[Path, Identity | None]) -> None:
    """Moves complete files to their places, ``main`` last, unless others were written meanwhile."""
    new, gone = ({path.name for path in (staging / kind).iterdir()} for kind in (_NEW, _GONE))
    names = sorted(new | gone, key=lambda name: name == main.name)
    # What cannot be replaced is refused before anything is moved.
    places = {name: _destination(main.with_name(name), named=name == main.name) for name in new}
    if set(names) == new == {main.name} and not seen:
        _keep_permissions(staging / _NEW / main.name, places[main.name])
        _move(staging / _NEW / main.name, places[main.name])
        return
    with _alone_in(main.parent), deferred_interrupt():
        _settle_ended(_stagings_of(main))
        for path, identity in seen.items():
            if identity_of(path) != identity:
                raise FilesChangedError(
                    f"cannot write '{main}': another process keeps writing '{path}'; give another name"
                )
        moving = {name: identity_of(staging / _NEW / name) for name in names}
        record = _Moving(staging.stat().st_ino, main.name, moving)
        _write(staging / _MOVING, [records.render(record)])
        try:
            for name in reversed(names):
                with contextlib.suppress(FileNotFoundError):
                    _move(places.get(name, main.with_name(name)), staging / _OLD / name)
            for name in (name for name in names if name in new):
                _keep_permissions(staging / _NEW / name, staging / _OLD / name)
                _move(staging / _NEW / name, places[name])
        except BaseException:
            _settle(staging)
            raise


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Keeps other processes from moving their files into a folder at the same time.

    The folder itself is locked, so that no file is left behind.
    """
    with contextlib.ExitStack() as until_the_end:
        with contextlib.suppress(OSError):  # it cannot be listed, or no folder can be locked there
            descriptor, end = os.open(folder, os.O_RDONLY), time.monotonic() + _PATIENCE
            until_the_end.callback(os.close, descriptor)  # which ends the lock
            while not take_lock(descriptor):
                if time.monotonic() > end:
                    raise OutputError(
                        f"cannot write into '{folder}': another process has locked the folder for "
                        f"{_PATIENCE:.0f} seconds; end it, or choose another folder"
                    )
                time.sleep(0.005)
        yield


def _put_back(staging: Path) -> None:
    """Puts the old files back, unless all new ones are in their places or none was moved."""
    try:
        moving = records.to_record(records.read(staging / _MOVING), _Moving)
    except (FileNotFoundError, records.RecordError):  # nothing is moved before it is complete
        return
    main = Path(os.path.realpath(staging.parent / moving.main))
    all_are_there = not (staging / _NEW / moving.main).exists()
    if moving.number != staging.lstat().st_ino or all_are_there or main.exists():
        return
    for name, new in moving.files.items():
        place = main if name == moving.main else staging.parent / Path(name).name
        old = staging / _OLD / Path(name).name
        if identity_of(place) in (None, new):  # else it was changed since
            if os.path.lexists(old):
                _move(old, place)
            elif place.is_dir():
                shutil.rmtree(place)
            else:
                place.unlink(missing_ok=True)


def _settle(staging: Path) -> None:
    """Removes a folder with what was being written, after what was being moved is back in its place.

    Where the disk refuses that, the next run tries it again.
    """
    with contextlib.suppress(OSError, OutputError):
        _put_back(staging)
        shutil.rmtree(staging)


def _stagings_of(output: Path) -> list[Path]:
    """The folders that runs of this user write an output into, or have left; a link is none."""
    found = []
    for path in output.parent.glob(f"{_prefix(output)}*{_UNFINISHED}"):
        with contextlib.suppress(FileNotFoundError):  # another run was quicker
            status = path.lstat()
            if stat.S_ISDIR(status.st_mode) and status.st_uid == _user():
                found.append(path)
    return found


def _settle_ended(stagings: Iterable[Path]) -> None:
    """Settles those folders whose processes have ended: nobody has locked them."""
    for staging in stagings:
        # What has no lock of this user's, or cannot be locked, is left alone.
        with contextlib.suppress(OSError), open_lock(staging / _LOCK) as lock:
            if take_lock(lock):
                _settle(staging)


@contextlib.contextmanager
def _staging(output: Path) -> Iterator[Path]:
    """Makes a folder beside an output to write into, which only this user can read, and then removes it."""
    remove_litter(output)
    folder, held = Path(os.path.realpath(output.parent)), False
    with contextlib.ExitStack() as at_the_end:
        while not held:
            staging = folder / f"{_prefix(output)}{secrets.token_hex(8)}{_UNFINISHED}"
            if (noted := _noted.get()) is not None:
                noted.temporary.append(staging)
            at_the_end.callback(_settle, staging)
            staging.mkdir(0o700)
            held = _is_held(staging, at_the_end)
        at_the_end.callback(_open.discard, staging / _NEW)
        _open.add(staging / _NEW)
        yield staging


def _is_held(staging: Path, at_the_end: contextlib.ExitStack) -> bool:
    """Locks a new folder; False where another process has just taken it for that of a killed one."""
    try:
        lock = at_the_end.enter_context(open_lock(staging / _LOCK))
    except FileNotFoundError:
        return False
    except PermissionError:  # a file system whose files are another user's, who alone removes them
        return True
    try:
        return take_lock(lock) and exists(staging / _LOCK)
    except OSError:  # a file system without locks, where nothing is removed either
        return True


def open_lock(path: FilePath) -> BinaryIO:
    """Opens a file to lock it, and makes it where there is none.

    Others may foresee its name: no link is followed, nothing is waited for, and what somebody else has put
    there is refused.

    Args:
        path: The file.

    Raises:
        OSError: It cannot be opened, or is no file of this user alone.
    """
    flags = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_NOCTTY"))
    if is_link(path):
        raise OSError(errno.ELOOP, "it is a symbolic link; remove it", os.fspath(path))
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o600)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != _user() or found.st_nlink > 1:
        os.close(descriptor)
        raise PermissionError(errno.EPERM, "it is no file of this user alone", os.fspath(path))
    return os.fdopen(descriptor, "r+b", buffering=0)


def take_lock(lock: BinaryIO | int, *, wait: bool = False) -> bool:
    """Locks a file until it is closed, or its process has ended.

    Args:
        lock: From :func:`open_lock`, or the descriptor of a folder.
        wait: Whether to wait for the process or thread that has locked it.

    Returns:
        Whether it is locked now.

    Raises:
        OSError: Files cannot be locked there.
    """
    if sys.platform == "win32":
        raise OSError(errno.ENOLCK, "no locks of files are known on this system")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def free_lock(lock: BinaryIO) -> None:
    """Unlocks a file and closes it, also where a process that began meanwhile has it open.

    Args:
        lock: What :func:`take_lock` has locked.
    """
    with lock:
        if sys.platform != "win32":
            fcntl.flock(lock, fcntl.LOCK_UN)


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


def _prefix(output: Path) -> str:
    """How the names of folders begin that an output is written into; the output's own may be too long."""
    return f".{hashlib.blake2b(os.fsencode(output.name), digest_size=8).hexdigest()}-"


def _write(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    with path.open("wb") as stream:
        for piece in pieces:
            stream.write(piece)
        stream.flush()
        os.fsync(stream.fileno())


def _move(source: Path, place: Path) -> None:
    """Moves a file in one step, also to another file system, which a link may lead to."""
    try:
        source.replace(place)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        with _staging(place) as staging:
            shutil.copy2(source, staging / _NEW)
            (staging / _NEW).replace(place)
        source.unlink()


def _user() -> int:
    """Returns the number of the user that this process makes files for; 0 on Windows, as of every file."""
    return os.geteuid() if sys.platform != "win32" else 0


def _keep_permissions(path: Path, target: Path) -> None:
    """Gives a file the permissions of the one that it will replace, if there is one."""
    with contextlib.suppress(FileNotFoundError):
        path.chmod(target.stat().st_mode & 0o777)
