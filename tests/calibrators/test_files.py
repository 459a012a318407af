"""Files that are the old one or the new one, never half of either."""

import contextlib
import errno
import hashlib
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from calibrators.errors import OutputError
from calibrators.files import (
    FilesChangedError,
    check_writable,
    exists,
    is_file,
    is_folder,
    new_folder,
    noting_what_is_written,
    open_lock,
    refuse_losing,
    refuse_overwriting,
    remove_litter,
    remove_temporary,
    remove_with_others,
    take_lock,
    temporary_folder,
    write_atomically,
    written_together,
)

ROOT = Path(__file__).parents[2]


def test_bytes_or_pieces_replace_what_was_there(tmp_path):
    path = tmp_path / "f"
    assert write_atomically(path, b"old") == path
    assert write_atomically(str(path), iter([b"ne", b"", b"w"])) == path
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"old")

    def pieces():
        yield b"half"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_atomically(path, pieces())
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_permissions_are_those_of_the_old_file_or_of_a_plain_open(tmp_path):
    old, new, plain = tmp_path / "old", tmp_path / "new", tmp_path / "plain"
    old.touch(mode=0o600)
    old.chmod(0o640)
    plain.open("w").close()
    assert write_atomically(old, b"").stat().st_mode & 0o777 == 0o640
    assert write_atomically(new, b"").stat().st_mode == plain.stat().st_mode


def test_a_private_file_is_private_while_another_takes_its_place(tmp_path):
    path = tmp_path / "f"
    path.touch(mode=0o600)

    def pieces():
        assert sorted(found.stat().st_mode & 0o777 for found in tmp_path.iterdir()) == [0o600, 0o700]
        yield b"secret"

    assert write_atomically(path, pieces()).read_bytes() == b"secret"
    path.chmod(0o666)  # more than the umask leaves of a new file
    assert write_atomically(path, b"").stat().st_mode & 0o777 == 0o666


def test_the_umask_of_the_process_is_not_touched(tmp_path, monkeypatch):
    plain = tmp_path / "plain"
    plain.touch()

    def touched(_mask):
        raise AssertionError("other threads create files as well")

    monkeypatch.setattr(os, "umask", touched)
    with new_folder(tmp_path / "new") as staged:
        (staged / "f").touch()
    with written_together(tmp_path / "main") as place:
        for name in ("main", "beside"):
            write_atomically(place(tmp_path / name), b"")
    for path in (write_atomically(tmp_path / "f", b""), tmp_path / "main", tmp_path / "beside"):
        assert path.stat().st_mode == plain.stat().st_mode


def test_what_cannot_be_written_is_said_before_the_work(tmp_path, monkeypatch):
    assert check_writable(str(tmp_path / "f")) == tmp_path / "f"
    assert list(tmp_path.iterdir()) == []
    missing = tmp_path / "no" / "f"
    for write, path, named in (
        (check_writable, tmp_path, f"'{tmp_path}': it is a folder"),
        (check_writable, missing, f"'{missing.parent}' does not exist"),
        (lambda path: write_atomically(path, b""), missing, f"'{missing}': No such file or directory"),
    ):
        with pytest.raises(OutputError, match=named):
            write(path)

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match="No space left on device"):
        write_atomically(tmp_path / "f", b"data")
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_file_is_not_replaced(tmp_path):
    pipe, link, device, address = tmp_path / "pipe", tmp_path / "link", Path(os.devnull), tmp_path / "socket"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    kinds = {pipe: "named pipe", link: "named pipe", device: "device", address: "socket"}
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(address))
        for path, kind in kinds.items():
            for write in (check_writable, lambda path: write_atomically(path, b"")):
                with pytest.raises(OutputError, match=rf"'{path}': it is a {kind};"):
                    write(path)
    assert pipe.is_fifo() and device.is_char_device() and address.is_socket()


def test_of_a_link_the_file_that_it_leads_to_is_replaced(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    target, link = tmp_path / "elsewhere" / "f", tmp_path / "link"
    link.symlink_to(target)
    for data in (b"new", b"newer"):  # the first time there is no such file
        write_atomically(check_writable(link), data)
        assert link.is_symlink() and target.read_bytes() == data
    assert list(target.parent.iterdir()) == [target]


def test_names_as_long_as_the_file_system_allows(tmp_path):
    longest = tmp_path / ("n" * os.pathconf(tmp_path, "PC_NAME_MAX"))
    assert write_atomically(check_writable(longest), b"x").read_bytes() == b"x"
    for write in (check_writable, lambda path: write_atomically(path, b"")):
        with pytest.raises(OutputError, match=r"File name too long; choose another place$"):
            write(tmp_path / f"{longest.name}n")
    assert list(tmp_path.iterdir()) == [longest]


def test_what_is_read_is_not_written(tmp_path):
    model, other = tmp_path / "m", tmp_path / "o"
    model.touch()
    (tmp_path / "link").symlink_to(model)
    refuse_overwriting([other], [model, "random:8", None, b"bytes", 3])
    for source in (str(model), tmp_path / "link"):
        with pytest.raises(OutputError, match=rf"^cannot write '{model}': it is read as well; give another"):
            refuse_overwriting([other, model], [source])


def test_files_of_an_earlier_run_alone_are_replaced(tmp_path):
    output, table, log, other = (tmp_path / name for name in ("o", "o.table", "o.log", "o.float"))
    for there in ([], [output], [output, table, log], [output, table, log, other]):
        for path in there:
            path.touch()
        refuse_losing(output, [table, log], [other])
    for gone in (output, table, log):
        gone.unlink()
        first = log if gone == table else table
        with pytest.raises(OutputError, match=f"'{first}': .*'{output}' .*'{gone}';"):
            refuse_losing(output, [table, log], [other])
        gone.touch()
    for path in (output, table, log):
        path.unlink()
    with pytest.raises(OutputError, match=f"'{other}': "):
        refuse_losing(output, [table, log], [other])


def _killed(code, folder):
    """Runs code that kills its own process."""
    code = f"import itertools, os, signal\nfrom pathlib import Path\n{code}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, check=False, env=environment)
    assert done.returncode == -signal.SIGKILL


KILL = "os.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.slow
def test_the_next_run_removes_what_a_killed_one_left(tmp_path):
    _killed(
        "from calibrators.files import write_atomically\n"
        f"def pieces():\n    yield b'half'\n    {KILL}\n"
        "write_atomically('f', pieces())",
        tmp_path,
    )
    (litter,) = tmp_path.iterdir()
    alive = litter.with_name(litter.name.replace("-", "-0", 1))
    alive.mkdir()
    with open_lock(alive / "lock") as lock:
        assert take_lock(lock)
        other = write_atomically(tmp_path / "other", b"")
        assert set(tmp_path.iterdir()) == {litter, alive, other}
        path = write_atomically(tmp_path / "f", b"new")
        assert set(tmp_path.iterdir()) == {alive, other, path}
    write_atomically(path, b"newer")
    assert set(tmp_path.iterdir()) == {other, path}


class CtrlCAtLine:
    """Ctrl-C at one line of this project's code after another, counted from 1.

    Args:
        at: The line.
    """

    def __init__(self, at):
        self.left = at

    def __enter__(self):
        self.before = sys.gettrace(), signal.getsignal(signal.SIGINT)
        sys.settrace(self.trace)
        return self

    def __exit__(self, *_error):
        tracing, handler = self.before
        sys.settrace(tracing)
        signal.signal(signal.SIGINT, handler)

    def trace(self, frame, event, _argument):
        if "calibrators" not in frame.f_code.co_filename or "tests" in frame.f_code.co_filename:
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                signal.raise_signal(signal.SIGINT)
        return self.trace


def write_one(folder):
    check_writable(folder / "a")
    write_atomically(folder / "a", b"new")


def write_several(folder):
    with written_together(folder / "a") as place:
        for name in "ab":
            write_atomically(place(folder / name), b"new")


def write_folder(folder):
    with new_folder(folder / "c") as inside:
        (inside / "d").write_bytes(b"new")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # files that were just opened
@pytest.mark.parametrize("write", [write_one, write_several, write_folder])
def test_ctrl_c_at_any_line_leaves_the_old_files_or_the_new_ones_and_nothing_else(
    write, tmp_path, monkeypatch
):
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)
    old = {"a": b"old", "b": b"old"}
    for at in itertools.count(1):
        folder = tmp_path / str(at)
        folder.mkdir()
        for name, content in old.items():
            (folder / name).write_bytes(content)
        with CtrlCAtLine(at) as ctrl_c, contextlib.suppress(KeyboardInterrupt), noting_what_is_written():
            try:
                write(folder)
            finally:
                remove_temporary()
        found = {
            str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()
        }
        if ctrl_c.left > 0:
            break
        assert found in (old, new_files(write)), at
    assert found == new_files(write) and at > 20


def new_files(write):
    written = {write_one: ("a",), write_several: ("a", "b"), write_folder: ("c/d",)}[write]
    return {"a": b"old", "b": b"old", **dict.fromkeys(written, b"new")}


@pytest.mark.slow
def test_litter_of_an_output_is_removed_by_itself(tmp_path):
    for name in ("f", "other"):
        _killed(f"from calibrators.files import *\nwith written_together({name!r}): {KILL}", tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    remove_litter(tmp_path / "f")
    (other,) = tmp_path.iterdir()
    check_writable(tmp_path / "other")
    assert list(tmp_path.iterdir()) == []
    remove_litter(tmp_path / "none" / "f")
    assert not other.exists()


@pytest.mark.slow
def test_a_temporary_folder_goes_and_so_does_that_of_a_killed_process(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code = (
        "import tempfile; from calibrators.files import temporary_folder\n"
        f"tempfile.tempdir = {str(tmp_path)!r}\n"
        f"with temporary_folder('n') as folder: (folder / 'f').touch(); {KILL}"
    )
    _killed(code, tmp_path)
    (left,) = tmp_path.iterdir()
    with temporary_folder("other"):
        assert left.is_dir()
    with pytest.raises(ZeroDivisionError), temporary_folder("n") as folder:
        assert list(tmp_path.iterdir()) == [folder.parent] and folder.parent.stat().st_mode & 0o777 == 0o700
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("harm", ["link", "pipe", "folder", "two names", "owner"])
def test_a_lock_that_somebody_else_made_is_neither_followed_nor_waited_for(harm, tmp_path, monkeypatch):
    lock, mine = tmp_path / "lock", tmp_path / "mine"
    mine.write_text("of the user")
    if harm == "link":
        lock.symlink_to(mine)
    elif harm == "pipe":
        os.mkfifo(lock)
    elif harm == "folder":
        lock.mkdir()
    elif harm == "two names":
        lock.hardlink_to(mine)
    else:
        lock.touch()
        monkeypatch.setattr("os.geteuid", lambda: os.getuid() + 1)
    with pytest.raises(OSError, match="lock"):
        open_lock(lock)
    assert mine.read_text() == "of the user"


class TestWrittenTogether:
    NAMES = ("main", "beside", "other")

    @pytest.fixture
    def old(self, tmp_path):
        for name in self.NAMES[:2]:
            (tmp_path / name).write_text(f"old {name}")
        return tmp_path

    def contents(self, folder):
        return {path.name: path.read_text() for path in folder.iterdir() if path.name in self.NAMES}

    OLD = {"main": "old main", "beside": "old beside"}  # noqa: RUF012
    NEW = {"main": "new main", "beside": "new beside", "other": "new other"}  # noqa: RUF012

    def write(self, folder):
        with written_together(folder / "main") as staged:
            for name in self.NAMES:
                write_atomically(staged(folder / name), f"new {name}".encode())
                assert self.contents(folder) == self.OLD

    def test_all_are_replaced(self, old):
        self.write(old)
        assert self.contents(old) == self.NEW
        assert len(list(old.iterdir())) == 3

    def test_a_failure_leaves_the_old_ones(self, old):
        with pytest.raises(KeyboardInterrupt), written_together(old / "main") as staged:
            write_atomically(staged(old / "beside"), b"new")
            raise KeyboardInterrupt
        assert self.contents(old) == self.OLD
        assert len(list(old.iterdir())) == 2

    def test_one_that_cannot_be_replaced_leaves_the_others_too(self, old):
        (old / "other").mkdir()
        with (
            pytest.raises(OutputError, match=r"other': it is a folder"),
            written_together(old / "main") as staged,
        ):
            for name in self.NAMES:
                write_atomically(staged(old / name), b"new")
        assert (old / "main").read_text() == "old main" and (old / "beside").read_text() == "old beside"

    @pytest.mark.parametrize("by_itself", [True, False])
    def test_an_error_names_the_file_that_was_meant(self, old, monkeypatch, by_itself):
        def full(_descriptor):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr("os.fsync", full)
        name = "beside" if by_itself else "main"
        with pytest.raises(OutputError) as refused, written_together(old / "main") as staged:
            if by_itself:
                write_atomically(staged(old / "beside"), b"new")
            full(0)  # as other libraries fail that write a file
        assert str(refused.value) == (
            f"cannot write '{old / name}': No space left on device; choose another place"
        )
        assert self.contents(old) == self.OLD and len(list(old.iterdir())) == 2

    def test_a_file_is_removed_when_the_others_are_replaced(self, old):
        with pytest.raises(KeyboardInterrupt), written_together(old / "main") as staged:
            remove_with_others(staged(old / "beside"))
            raise KeyboardInterrupt
        assert self.contents(old) == self.OLD
        with written_together(old / "main") as staged:
            remove_with_others(staged(old / "beside"))
            remove_with_others(staged(old / "other"))  # which is not there
            write_atomically(staged(old / "main"), b"new main")
            assert self.contents(old) == self.OLD
        assert self.contents(old) == {"main": "new main"}
        assert list(old.iterdir()) == [old / "main"]

    def test_of_a_link_that_is_removed_the_file_stays(self, old):
        (old / "other").symlink_to(old / "beside")
        with written_together(old / "main") as staged:
            remove_with_others(staged(old / "other"))
        assert self.contents(old) == self.OLD

    def killed(self, renames, folder):
        """Leaves what a process does that is killed before one of its renames."""
        _killed(
            "from calibrators.files import *\n"
            "replace, done = Path.replace, itertools.count()\n"
            "def counting(self, target):\n"
            f"    if next(done) == {renames}: {KILL}\n"
            "    return replace(self, target)\n"
            "Path.replace = counting\n"
            "with written_together('main') as staged:\n"
            f"    for name in {self.NAMES}: write_atomically(staged(Path(name)), f'new {{name}}'.encode())\n"
            f"{KILL}",
            folder,
        )

    @pytest.mark.slow
    @pytest.mark.parametrize("renames", range(8))
    @pytest.mark.parametrize("first", [False, True])
    def test_after_a_kill_between_two_renames_the_next_run_finds_all_the_old_ones_or_all_the_new(
        self, first, renames, tmp_path
    ):
        before = {} if first else self.OLD
        for name, text in before.items():
            (tmp_path / name).write_text(text)
        mine = tmp_path / "mine"
        mine.write_text("of the user")
        self.killed(renames, tmp_path)
        found = self.contents(tmp_path)
        assert found in (before, self.NEW) or "main" not in found
        assert set(found.items()) <= {*self.OLD.items(), *self.NEW.items()}
        refuse_losing(tmp_path / "main", [tmp_path / "beside"], [tmp_path / "other"])
        assert self.contents(tmp_path) == (self.NEW if found == self.NEW else before)
        assert len(list(tmp_path.iterdir())) == 1 + len(self.contents(tmp_path))  # no litter
        self.write_anyway(tmp_path)
        assert self.contents(tmp_path) == self.NEW and mine.read_text() == "of the user"

    @pytest.mark.slow
    def test_what_was_changed_after_a_kill_is_not_replaced(self, old):
        self.killed(5, old)
        assert self.contents(old) == {"beside": "new beside", "other": "new other"}
        (old / "beside").write_text("changed by the user")
        check_writable(old / "main")
        assert self.contents(old) == {"main": "old main", "beside": "changed by the user"}

    @pytest.mark.slow
    @pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no other file system")
    @pytest.mark.parametrize("elsewhere", [None, "/dev/shm"])
    def test_after_a_kill_a_link_leads_to_the_old_file_again(self, elsewhere, old):
        with tempfile.TemporaryDirectory(dir=elsewhere) as folder:
            kept = Path(folder) / "kept"
            shutil.move(old / "main", kept)
            (old / "main").symlink_to(kept)
            self.killed(5, old)
            assert not kept.exists()
            check_writable(old / "main")
            assert self.contents(old) == self.OLD and (old / "main").is_symlink()
            assert len(list(old.iterdir())) == 2 and list(kept.parent.iterdir()) == [kept]

    @pytest.mark.slow
    def test_a_file_that_took_the_place_after_a_kill_stays(self, old):
        self.killed(5, old)
        (old / "main").write_text("of the user")
        check_writable(old / "main")
        assert self.contents(old) == {"main": "of the user", "beside": "new beside", "other": "new other"}
        assert len(list(old.iterdir())) == 3

    @pytest.mark.slow
    @pytest.mark.parametrize("harm", ["link", "owner", "damage", "path", "copy", "lock"])
    def test_what_a_stranger_may_have_left_is_neither_believed_nor_followed(self, harm, old, monkeypatch):
        self.killed(5, old)
        (litter,) = (path for path in old.iterdir() if path.name.startswith("."))
        moving, victim = litter / "moving.json", old / "elsewhere"
        if harm == "link":
            litter.rename(victim)
            litter.symlink_to(victim)
        elif harm == "owner":
            monkeypatch.setattr("os.geteuid", lambda: os.getuid() + 1)
        elif harm == "damage":
            moving.write_text('{"files": {"beside": [[1, 2]]}}')
        elif harm == "path":
            moving.write_text(moving.read_text().replace('"beside"', '"../beside"'))
            (litter / "beside").write_text("of a stranger")
        elif harm == "copy":
            shutil.copytree(litter, victim)
            shutil.rmtree(litter)
            victim.rename(litter)
        else:
            (litter / "lock").unlink()
            (litter / "lock").symlink_to("../moving.json")
        check_writable(old / "main")
        if harm == "path":
            assert self.contents(old)["main"] == "old main" and not (old.parent / "beside").exists()
        else:
            assert self.contents(old) == {"beside": "new beside", "other": "new other"}
        assert os.path.lexists(litter) == (harm in ("link", "owner", "lock"))
        if harm == "link":
            assert victim.is_dir()
        self.write_anyway(old)

    @pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, OSError(errno.EIO, "broken")])
    @pytest.mark.parametrize("renames", range(4))
    def test_an_error_after_a_rename_leaves_all_the_old_ones(self, renames, error, old, monkeypatch):
        replace, done = Path.replace, itertools.count()

        def interrupted(self, target):
            replaced = replace(self, target)
            if next(done) == renames:
                raise error
            return replaced

        def write():
            with written_together(old / "main") as staged:
                for name in self.NAMES:
                    write_atomically(staged(old / name), f"new {name}".encode())
                monkeypatch.setattr(Path, "replace", interrupted)

        raised = OutputError if isinstance(error, OSError) else error
        with pytest.raises(raised):
            write()
        assert self.contents(old) == self.OLD
        assert len(list(old.iterdir())) == 2

    @pytest.mark.slow
    def test_where_the_old_ones_cannot_be_put_back_the_next_run_does(self, old):
        broken = (
            "from calibrators.files import *\n"
            "import itertools\n"
            "replace, done = Path.replace, itertools.count()\n"
            "def failing(self, target):\n"
            "    if next(done) >= 3: raise OSError(5, 'broken')\n"
            "    return replace(self, target)\n"
            "Path.replace = failing\n"
            "with written_together('main') as staged:\n"
            f"    for name in {self.NAMES}: write_atomically(staged(Path(name)), b'new')\n"
        )
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run([sys.executable, "-c", broken], cwd=old, env=environment, check=False)
        assert done.returncode == 1 and "main" not in self.contents(old)
        check_writable(old / "main")
        assert self.contents(old) == self.OLD and len(list(old.iterdir())) == 2

    def test_nothing_is_written_through_a_link_that_the_user_did_not_name(self, old):
        victim = old / "victim"
        victim.write_text("mine")
        (old / "other").symlink_to(victim)
        with pytest.raises(OutputError, match=r"other': it is a symbolic link"):
            self.write_anyway(old)
        assert victim.read_text() == "mine" and (old / "other").is_symlink()
        assert self.contents(old) == {**self.OLD, "other": "mine"}
        with pytest.raises(OutputError, match=r"other': it is a symbolic link"):
            check_writable(old / "other", named=False)

    def test_a_link_that_the_user_named_is_followed(self, old):
        (old / "elsewhere").mkdir()
        kept = old / "elsewhere" / "kept"
        (old / "main").rename(kept)
        (old / "main").symlink_to(kept)
        self.write_anyway(old)
        assert (old / "main").is_symlink() and kept.read_text() == "new main"
        assert list(kept.parent.iterdir()) == [kept]

    def test_nothing_that_lies_beside_is_moved(self, old):
        """A name that earlier versions took for complete files of a killed run."""
        key = hashlib.blake2b(b"main", digest_size=8).hexdigest()
        beside = old / f".{key}.trtint8-new"
        beside.mkdir()
        (beside / "planted").write_text("planted")
        (beside / "keep").mkdir()
        for name in ("planted", "keep"):
            (old / name).write_text("mine")
        self.write_anyway(old)
        assert (old / "planted").read_text() == (old / "keep").read_text() == "mine"
        assert (beside / "planted").read_text() == "planted"

    def test_files_that_others_wrote_meanwhile(self, old):
        """Whoever decides by what is there must decide again."""
        with (
            pytest.raises(FilesChangedError),
            written_together(old / "main", [old / "beside", old / "other"]) as staged,
        ):
            write_atomically(old / "beside", b"of another process")
            write_atomically(staged(old / "main"), b"last")
        assert self.contents(old) == {"main": "old main", "beside": "of another process"}
        with written_together(old / "main", [old / "beside", old / "other"]) as staged:
            write_atomically(staged(old / "main"), b"last")
        assert (old / "main").read_text() == "last"
        assert len(list(old.iterdir())) == 2

    def test_two_threads_do_not_mix_their_files(self, old):
        """One process or thread at a time moves its files, so a set is of one writer."""

        def write(which):
            for _ in range(30):
                with written_together(old / "main") as staged:
                    for name in self.NAMES:
                        write_atomically(staged(old / name), which.encode())

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(write, "abcd"))
        assert len(set(self.contents(old).values())) == 1
        assert len(list(old.iterdir())) == 3

    def test_a_folder_that_stays_locked(self, old, monkeypatch):
        monkeypatch.setattr("calibrators.files._PATIENCE", 0.01)
        descriptor = os.open(old, os.O_RDONLY)
        try:
            assert take_lock(descriptor)
            with pytest.raises(OutputError, match="locked"):
                self.write_anyway(old)
        finally:
            os.close(descriptor)
        assert self.contents(old) == self.OLD

    def write_anyway(self, folder):
        with written_together(folder / "main") as staged:
            for name in self.NAMES:
                write_atomically(staged(folder / name), f"new {name}".encode())


def test_names_that_nothing_can_have(tmp_path):
    (tmp_path / "f").touch()
    for name in ("a" * 300, "a\0b"):
        path = tmp_path / name
        assert (is_file(path), is_folder(path), exists(path)) == (False, False, False)
    assert (is_file(tmp_path / "f"), is_folder(tmp_path), exists(tmp_path / "f")) == (True, True, True)


class TestNewFolders:
    """Folders that are complete or not there."""

    def test_it_is_there_at_the_end_only(self, tmp_path):
        folder = tmp_path / "new"
        with new_folder(folder) as staged:
            (staged / "a").mkdir()
            (staged / "a" / "f").write_text("1")
            assert not folder.exists()
        assert (folder / "a" / "f").read_text() == "1"
        assert list(tmp_path.iterdir()) == [folder]
        assert folder.stat().st_mode & 0o777 == (tmp_path / "new" / "a").stat().st_mode & 0o777

    def test_an_empty_folder_is_filled(self, tmp_path):
        with new_folder(tmp_path) as staged:
            (staged / "f").write_text("1")
        assert [path.name for path in tmp_path.iterdir()] == ["f"]

    def test_an_empty_folder_stays_the_same(self, tmp_path, monkeypatch):
        """It may be the current one, or one where a file system is mounted, which cannot be replaced."""
        folder = tmp_path / "empty"
        folder.mkdir(mode=0o700)
        before = folder.stat()
        monkeypatch.chdir(folder)
        with new_folder(".") as staged:
            (staged / "a").mkdir()
            (staged / "a" / "f").write_text("1")
            (staged / "b").write_text("2")
        assert Path("a/f").read_text() == "1" and Path("b").read_text() == "2"
        assert (folder.stat().st_ino, folder.stat().st_mode) == (before.st_ino, before.st_mode)
        assert sorted(path.name for path in folder.iterdir()) == ["a", "b"]
        assert list(tmp_path.iterdir()) == [folder]

    @pytest.mark.parametrize("moves", [0, 2])
    def test_an_empty_folder_stays_empty_where_writing_fails(self, moves, tmp_path, monkeypatch):
        replace, done = Path.replace, itertools.count()

        def interrupted(self, target):
            replaced = replace(self, target)
            if next(done) == moves:
                raise KeyboardInterrupt
            return replaced

        monkeypatch.setattr(Path, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt), new_folder(tmp_path) as staged:
            (staged / "a").mkdir()
            for name in ("a/f", "b"):
                (staged / name).touch()
            if moves == 2:
                raise KeyboardInterrupt
        assert list(tmp_path.iterdir()) == []

    def test_what_is_there_is_refused(self, tmp_path):
        (tmp_path / "f").touch()
        for path, reason in (
            (tmp_path, "the folder is not empty"),
            (tmp_path / "f", "it is no folder"),
            (tmp_path / "none" / "new", "the folder '.*none' does not exist"),
            (tmp_path / ("a" * 300), "File name too long"),
        ):
            with pytest.raises(OutputError, match=f"cannot write '.*': {reason}"), new_folder(path):
                raise AssertionError("the block does not begin")

    def test_nothing_is_left_of_what_fails(self, tmp_path):
        with pytest.raises(ValueError, match="no"), new_folder(tmp_path / "new") as staged:
            (staged / "f").touch()
            raise ValueError("no")
        with pytest.raises(OutputError, match="No space left"), new_folder(tmp_path / "new") as staged:
            raise OSError(28, "No space left on device")
        assert list(tmp_path.iterdir()) == []

    def test_what_a_kill_left_of_a_folder_goes_although_the_folder_is_there(self, tmp_path):
        code = "from calibrators.files import *\nos.rmdir = lambda *_, **__: os.kill(os.getpid(), 9)\n"
        _killed(f"{code}with new_folder('new') as staged: (staged / 'f').touch()", tmp_path)
        assert len(list(tmp_path.iterdir())) == 2
        with pytest.raises(OutputError, match="not empty"), new_folder(tmp_path / "new"):
            pass
        assert list(tmp_path.rglob("*")) == [tmp_path / "new", tmp_path / "new" / "f"]

    @pytest.mark.parametrize("existed", [False, True])
    def test_a_kill_leaves_nothing_that_stays(self, existed, tmp_path):
        folder = tmp_path / "new"
        if existed:
            folder.mkdir()
        code = (
            "import os, signal; from calibrators.files import new_folder\n"
            f"with new_folder({str(folder)!r}) as staged:\n"
            "    (staged / 'f').touch(); os.kill(os.getpid(), signal.SIGKILL)"
        )
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False)
        assert folder.exists() == existed
        assert len(list((folder if existed else tmp_path).iterdir())) == 1
        with new_folder(folder) as staged:
            (staged / "f").touch()
        assert list(tmp_path.iterdir()) == [folder]
        assert list(folder.iterdir()) == [folder / "f"]


def test_a_name_that_no_file_can_have_or_none_at_all(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, named in (("", "is empty"), ("a\ud800", "name")):
        for write in (check_writable, lambda path: write_atomically(path, b"data")):
            with pytest.raises(OutputError, match=named):
                write(name)
    with pytest.raises(OutputError, match="is empty"), new_folder(""):
        pass
    refuse_overwriting([Path("a")], ["a\ud800"])
    assert not list(tmp_path.iterdir())
