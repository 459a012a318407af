"""The table of architectures: which rows it has, and how a page gets it."""

import json
import sys

import pytest
import zoo

FULL = {
    "name": "bert",
    "exporter": "script",
    "int8": 12,
    "weighted": 16,
    "why": {"MatMul: it is small": 3, "Conv: kept": 1},
    "attention": [1, 2],
    "bytes": 1.154,
    "time": [0.5, 0.75],
    "sqnr_db": 30.06,
    "seconds": 4.4,
    "mib": 749,
}


def row(name, exporter, **change):
    return {**FULL, "name": name, "exporter": exporter, **change}


def test_cells():
    why = "3 MatMul: it is small; 1 Conv: kept"
    assert zoo.cells(FULL) == [
        "bert",
        "script",
        "12 of 16",
        why,
        "1 of 2",
        "1.15",
        "0.50 to 0.75",
        "30.1",
        "4",
        "749",
    ]
    failed = {"name": "bert", "exporter": "dynamo", "failed": "export: no such operator"}
    assert zoo.cells(failed) == ["bert", "dynamo", "export: no such operator", *[""] * 7]


def test_later_rows_replace_earlier_ones_and_exporters_stand_together():
    first = [row("b", "script"), row("a", "dynamo"), row("b", "dynamo", mib=1)]
    found = zoo.merged(first, [row("b", "dynamo", mib=2), row("a", "script")])
    assert [(r["name"], r["exporter"], r["mib"]) for r in found] == [
        ("b", "dynamo", 2),
        ("b", "script", 749),
        ("a", "dynamo", 749),
        ("a", "script", 749),
    ]


def test_a_page(tmp_path, monkeypatch, capsys):
    page, rows, written = tmp_path / "page.md", tmp_path / "rows.json", tmp_path / "all.json"
    mark = "<!-- python scripts/zoo.py --page writes all that follows -->"
    page.write_text(f"# Title\n\n{mark}\n\nold\n")
    rows.write_text(
        json.dumps(
            [
                row("a", "dynamo"),
                row("a", "script", sqnr_db=31.2),
                row("b", "dynamo"),
                row("c", "dynamo", int8=0),
            ]
        )
    )
    monkeypatch.setattr(
        sys, "argv", ["zoo.py", "--rows", str(rows), "--page", str(page), "--json", str(written)]
    )
    zoo.main()
    head, body = page.read_text().split(mark)
    assert head == "# Title\n\n"
    counted, legend, none, table = body.strip().split("\n\n")
    took = "None took more than 4 seconds, nor more than 749 MiB of memory."
    assert counted == f"3 networks: 3 by `dynamo` and 1 by `script`. {took}"
    assert [line.replace("\u00a0", " ").split(" | ") for line in table.splitlines()[1:]] == [
        ["| ---", *["---"] * 3, "--- |"],
        ["| a", "12 of 16", "b, a", "0.50 to 0.75", "30.1 / 31.2 |"],
        ["| b", "12 of 16", "b, a", "0.50 to 0.75", "30.1 |"],
    ]
    assert none == "No layer is in INT8, and the time is that of FP16: c."
    assert legend == "- **a**: kept\n- **b**: it is small"
    assert json.loads(written.read_text()) == json.loads(rows.read_text())
    assert capsys.readouterr().out.splitlines()[1].split()[:5] == ["a", "dynamo", "12", "of", "16"]


def test_a_page_without_a_mark_is_refused():
    with pytest.raises(ValueError, match="has no line"):
        zoo.page_with("# Title\n", [FULL])
