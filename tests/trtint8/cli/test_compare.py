"""`trtint8 compare` as a user meets it."""

import shutil

import pytest

from tests.trtint8.report.samples import write_all
from trtint8.cli.compare import print_rows, runs_per_table
from trtint8.report.comparison import ComparedRow


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


def test_the_terminal_names_what_differs(runs, prints, as_json):
    lines = prints("compare", *runs).splitlines()
    (method,) = [line for line in lines if "│" in line and "calibration method" in line]
    cells = [cell.strip() for cell in method.split("│")[1:-1]]
    assert cells == ["calibration method", "entropy", "mse", "differs"]
    assert lines[-1] == "Different: calibration method"
    printed = as_json("compare", *runs)
    assert printed["runs"] == ["net", "other"] and printed["differences"] == ["calibration method"]
    assert printed["rows"][0] == {
        "name": "calibration method",
        "values": ["entropy", "mse"],
        "significant": None,
        "margin": None,
        "module": "",
    }


def row(name, *values):
    return ComparedRow(name, values)


EIGHT = tuple(f"run{number}" for number in range(8))


@pytest.mark.parametrize(
    ("runs", "rows", "width", "count"),
    [
        # 80 - 1 - (7 + 3) - (7 + 3) = 59 characters, and 11 + 3 per run.
        (EIGHT, [row("kernels", *["12,345,678"] * 7, "123,456,789"), row("same", *"11111112")], 80, 4),
        (EIGHT, [row("kernels", *"12345678")], 80, 8),
        (EIGHT, [row("kernels", *"12345678")], 76, 7),
        # Names longer than 24 characters and values longer than 11 are folded: 80 - 1 - 27 - 10 = 42.
        (EIGHT, [row("n" * 60, *["v" * 90] * 7, "w")], 80, 3),
        (EIGHT, [row("n" * 60, *["v" * 90] * 7, "w")], 160, 8),
        (("a", "b"), [], 10, 1),
    ],
)
def test_as_many_runs_stand_in_one_table_as_fit(runs, rows, width, count):
    assert runs_per_table(runs, rows, width) == count


def titles(lines):
    return [line.strip().partition(", ")[2] for line in lines if line.strip().startswith("Side by side")]


def test_eight_runs_fit_80_columns(tmp_path, capsys, prints, monkeypatch):
    methods = ("entropy", "mse", "minmax", "percentile") * 2
    (tmp_path / "net").mkdir()
    write_all(tmp_path / "net")
    text = (tmp_path / "net/net.table.json").read_text()
    files = [tmp_path / f"a-run-with-a-name-{number}.table.json" for number in range(8)]
    for file, method in zip(files, methods, strict=True):
        file.write_text(text.replace('"entropy"', f'"{method}"'))
    monkeypatch.setattr("trtint8.cli.output._PIPE_WIDTH", 80)
    lines = prints("compare", *map(str, files)).splitlines()
    assert max(map(len, lines)) <= 80
    assert titles(lines) == ["runs 1 to 3 of 8", "runs 4 to 6 of 8", "runs 7 to 8 of 8"]
    table = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if line.startswith("│")]
    rows = [cells[1:] for cells in table if cells[0].startswith("calibration") and cells[1] in methods]
    assert rows == [[*methods[first : first + 3], "differs"] for first in range(0, 8, 3)]
    assert lines[-1] == "Different: calibration method"
    # The last table may have one run.
    print_rows("Side by side", EIGHT[:4], [row("n" * 30, *["v" * 20] * 4)])
    assert titles(capsys.readouterr().out.splitlines()) == ["runs 1 to 3 of 4", "run 4 of 4"]


def test_a_page(runs, tmp_path, prints):
    pytest.importorskip("jinja2", reason="jinja2 is not installed (pip install 'trtint8[report]')")
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (pip install 'trtint8[report]')")
    assert prints("compare", *runs, "-o", tmp_path / "c.html").endswith(
        f"written to '{tmp_path / 'c.html'}'\n"
    )
    assert "Different: calibration method." in (tmp_path / "c.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["net.engine", "net.engine.json", "net.accuracy.json"])
def test_what_is_compared_is_not_overwritten(runs, tmp_path, refused, name):
    path, page = tmp_path / "net" / name, tmp_path / "page.html"
    before = path.read_bytes()
    page.symlink_to(path)
    said = refused("compare", *runs, "-o", page)
    assert f"cannot write '{page}': it is read as well; give another name" in said
    assert path.read_bytes() == before


def test_a_page_is_written_under_the_name_of_a_page(tmp_path, refused):
    """Before anything is read."""
    data = tmp_path / "heldout.npz"
    data.write_bytes(b"samples")
    for output, words in (
        (data, f"'{data}' does not end in .html"),
        (tmp_path / "no" / "c.html", "does not exist"),
    ):
        assert words in refused("compare nowhere elsewhere -o", output)
    assert data.read_bytes() == b"samples"


@pytest.mark.parametrize(("others", "words"), [([], "at least two runs"), (["nowhere"], "'nowhere'")])
def test_mistakes(runs, others, words, refused):
    assert words in refused("compare", runs[0], *others)
