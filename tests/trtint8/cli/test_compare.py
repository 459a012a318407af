"""`trtint8 compare` as a user meets it."""

import json
import shutil
import sys

import pytest

from tests.trtint8.report.samples import write_all
from trtint8.cli.main import main


@pytest.fixture
def runs(tmp_path):
    folder = tmp_path / "net"
    folder.mkdir()
    write_all(folder)
    other = tmp_path / "other.table.json"
    text = (folder / "net.table.json").read_text()
    assert '"entropy"' in text
    shutil.copy(folder / "net.table.json", other)
    other.write_text(text.replace('"entropy"', '"mse"'))
    return [str(folder), str(other)]


def test_the_terminal_names_what_differs(runs, capsys):
    assert main(["compare", *runs]) == 0
    lines = capsys.readouterr().out.splitlines()
    (method,) = [line for line in lines if "│" in line and "calibration method" in line]
    assert [cell.strip() for cell in method.split("│")[1:-1]] == [
        "calibration method", "entropy", "mse", "differs",
    ]  # fmt: skip
    assert lines[-1] == "Different: calibration method"


def test_json(runs, capsys):
    assert main(["compare", *runs, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["runs"] == ["net", "other"] and printed["differences"] == ["calibration method"]
    assert printed["rows"][0] == {"name": "calibration method", "values": ["entropy", "mse"]}


def test_a_page(runs, tmp_path):
    pytest.importorskip("jinja2", reason="jinja2 is not installed (pip install 'trtint8[report]')")
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (pip install 'trtint8[report]')")
    assert main(["compare", *runs, "-o", str(tmp_path / "c.html")]) == 0
    assert "Different: calibration method." in (tmp_path / "c.html").read_text(encoding="utf-8")


def test_without_the_extra_there_is_no_page(runs, tmp_path, capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "trtint8.report.comparison_page", raising=False)
    monkeypatch.delitem(sys.modules, "trtint8.report.page", raising=False)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert main(["compare", *runs, "-o", str(tmp_path / "c.html")]) == 2
    assert "a report needs 'jinja2', which is not installed" in capsys.readouterr().err
    assert main(["compare", *runs]) == 0


def test_mistakes(runs, capsys):
    assert main(["compare", runs[0]]) == 2
    assert "a comparison needs at least two runs" in capsys.readouterr().err
    assert main(["compare", runs[0], "nowhere"]) == 2
    assert "there is no 'nowhere'" in capsys.readouterr().err
