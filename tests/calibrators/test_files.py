"""Files that are the old one or the new one, never half of either."""

import os

import pytest

from calibrators.errors import OutputError
from calibrators.files import check_writable, removed_after_failure, write_atomically


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


def test_what_cannot_be_written_is_said_before_the_work(tmp_path):
    assert check_writable(str(tmp_path / "f")) == tmp_path / "f"
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OutputError, match=r"^cannot write '.*': it is a folder; give a file name$"):
        check_writable(tmp_path)
    with pytest.raises(OutputError, match=r"the folder '.*no' does not exist; create it first$"):
        check_writable(tmp_path / "no" / "f")
    with pytest.raises(OutputError, match=r"cannot write '.*f': No such file or directory; choose another"):
        write_atomically(tmp_path / "no" / "f", b"")


def test_a_full_disk_is_one_sentence(tmp_path, monkeypatch):
    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match="No space left on device; choose another place"):
        write_atomically(tmp_path / "f", b"data")
    assert list(tmp_path.iterdir()) == []


def test_new_files_of_a_failed_block_are_taken_back_and_old_ones_stay(tmp_path):
    old, new, never = (tmp_path / name for name in ("old", "new", "never"))
    old.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), removed_after_failure([old, new, never]):
        old.write_bytes(b"changed")
        new.touch()
        raise KeyboardInterrupt
    assert sorted(tmp_path.iterdir()) == [old]
    with removed_after_failure([new]):
        new.touch()
    assert new.exists()
