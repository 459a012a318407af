"""`trtint8 table edit`, with small programs in the editor's place."""

import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

from calibrators.tables.table import CalibrationTable
from tests.calibrators.histograms.kernels import whole
from tests.trtint8.cli.calls import succeeds


@pytest.fixture
def table(tmp_path):
    histogram = whole(np.float32([1.0, 2.0]))
    made = CalibrationTable(
        {"a::b: c": 2.0, "dead": 0.0, "other": 4.0}, "minmax", histograms={"other": histogram}
    )
    return made.save(tmp_path / "t.json")


@pytest.fixture
def editor(monkeypatch):
    """Sets an editor that runs a line of Python, with the file's path in ``path`` and content in ``text``."""

    def use(program):
        lines = ["import sys", "path = sys.argv[1]", "text = open(path).read()", program]
        monkeypatch.delenv("VISUAL", raising=False)
        monkeypatch.setenv("EDITOR", shlex.join([sys.executable, "-c", "; ".join(lines)]))

    return use


def test_changed_added_and_deleted_lines(table, editor, tmp_path, capsys):
    program = "open(path, 'w').write(text.replace('other: 4.0\\n', 'new: 1.5\\n').replace('2.0', '2.5'))"
    editor(program)
    succeeds("table edit", table, "-o", tmp_path / "e.json")
    edited = CalibrationTable.load(tmp_path / "e.json")
    assert edited.amax == {"a::b: c": 2.5, "dead": 0.0, "new": 1.5}
    assert edited.overridden == {"a::b: c", "new"}
    assert edited.method == "minmax" and not edited.histograms
    assert "3 ranges changed" in capsys.readouterr().out
    assert CalibrationTable.load(table).amax["other"] == 4.0


def test_a_table_left_as_it_is_is_not_written(table, editor, tmp_path, capsys):
    editor("open(path, 'a').write('# a remark\\n')")
    succeeds("table edit", table, "-o", tmp_path / "e.json")
    assert not (tmp_path / "e.json").exists()
    assert "nothing was changed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("sys.exit(3)", "failed with status 3; your text is in '"),
        ("open(path, 'w').write('other 4')", "is not 'tensor: range': 'other 4'; nothing was changed"),
        ("open(path, 'w').write('other: -4')", "nothing was changed, and your text is in '"),
        ("open(path, 'w').write('')", "holds no ranges"),
    ],
)
def test_text_that_cannot_be_used_is_kept(table, editor, tmp_path, refused, program, message):
    editor(program)
    before = table.read_bytes()
    error = refused("table edit", table, "-o", table)
    assert message in error
    kept = error.rpartition("your text is in '")[2].partition("'")[0]
    Path(kept).unlink()  # it was kept
    assert table.read_bytes() == before


def test_an_editor_that_does_not_exist(table, monkeypatch, refused):
    monkeypatch.setenv("VISUAL", "no-such-editor-here")
    assert "'no-such-editor-here'" in refused("table edit", table, "-o", table)
    monkeypatch.setenv("VISUAL", " ")  # which names none
    monkeypatch.setenv("EDITOR", '"')
    error = refused("table edit", table, "-o", table)
    assert error.startswith("trtint8 table: the editor '\"'") and error.endswith("EDITOR")
