"""What the verbs print."""

import ast
import dataclasses
import functools
import io
import json
import math
import pkgutil
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.cells import cell_len

import trtint8
import trtint8.cli
from calibrators.errors import CalibrationDataError, TableError, UnsupportedError
from calibrators.files import write_atomically, written_together
from calibrators.tables.table import CalibrationTable
from trtint8.cli.main import main
from trtint8.cli.output import (
    FIRST,
    named_values,
    print_json,
    print_line,
    print_table,
    replace_unprintable,
    say,
    say_method_in_cache,
)
from trtint8.data import DEMO_MODEL
from trtint8.tuning.stopwatch import SpeedTrial
from trtint8.validation.significance import Share


def test_messages_and_results_go_to_different_places(capsys):
    say("a message")
    print_line("a result")
    assert capsys.readouterr() == ("a result\n", "a message\n")


@dataclasses.dataclass(frozen=True)
class Pair:
    first: float
    second: object


def test_anything_becomes_json(capsys):
    print_json({"pair": Pair(math.inf, Path("a/b")), 3: (1, frozenset({2})), "ä": [None, True, math.nan]})
    printed = capsys.readouterr().out
    assert json.loads(printed) == {
        "pair": {"first": None, "second": "a/b"},
        "3": [1, [2]],
        "ä": [None, True, None],
        "warnings": [],
    }
    assert "ä" in printed


def test_a_share_comes_with_its_interval(capsys):
    print_json(Share(8, 10))
    found = json.loads(capsys.readouterr().out)
    assert (found["value"], found["count"], found["total"]) == (0.8, 8, 10)
    assert found["interval"] == [*Share(8, 10).interval]
    print_json({"a": ["\x9b2J", "\u202e", "plain"] * 2})
    printed = capsys.readouterr().out
    assert json.loads(printed) == {"a": ["\x9b2J", "\u202e", "plain"] * 2, "warnings": []}
    assert printed.replace("\n", "").isprintable()  # what a terminal obeys is escaped


def test_a_table_has_its_title_and_every_cell(capsys):
    long = "tensor/" * 12
    print_table("Title", ("name", "size"), [(long, "1"), ("[b]", "22")], [None, "red"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].strip() == "Title"
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if line.startswith("│")]
    # Names that look like markup are left as they are, and long ones stand on one line.
    assert cells == [[long, "1"], ["[b]", "22"]]


@pytest.mark.parametrize("name", [":bug:", ":+1: [b]x[/b]", "[link=http://x]y[/link]", "a:0", "[/]"])
@pytest.mark.parametrize("terminal", [True, False])
def test_names_are_shown_as_they_are(monkeypatch, name, terminal):
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: terminal)
    monkeypatch.setattr("sys.stdout", stream)
    print_table(f"T {name}", (f"C {name}", "size"), [(name, name)])
    print_line(f"L {name}")
    assert stream.getvalue().count(name) == 5


def test_control_characters_never_reach_the_terminal(capsys):
    name = "a\x1b]0;title\x07\x9b31m\u202eb\u2028c\ud800\r"
    say(name)
    print_line(name)
    print_table(name, (name, "b"), [(name, "1")])
    printed = capsys.readouterr()
    escaped = "a\\x1b]0;title\\x07\\x9b31m\\u202eb\\u2028c\\ud800\\r"
    assert printed.err == f"{escaped}\n"
    assert printed.out.count(escaped) == 4
    print_json({"name": name})
    document = capsys.readouterr().out
    assert json.loads(document) == {"name": name, "warnings": []}
    printed_json = document.replace("\n", "")
    assert not set("\x1b\x07\x9b\u202e\u2028\ud800\r") & set(printed_json)
    assert not set("\x1b\x07\x9b\u202e\u2028\ud800\r") & set(printed.out)


def test_a_message_is_one_line_below_500_characters(capsys):
    say("first\nsecond" + "x" * 1000)
    error = capsys.readouterr().err
    assert error.startswith("first secondxxx") and error.endswith("x…\n")
    assert len(error) == 500 and error.count("\n") == 1


def test_how_standard_output_was_told_to_encode_is_left(monkeypatch):
    for errors, expected in (("strict", b"a?b"), ("backslashreplace", b"a\\u2588b")):
        stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors=errors)
        monkeypatch.setattr("sys.stdout", stream)
        replace_unprintable()
        print_line("a█b")
        assert stream.buffer.getvalue() == expected + b"\n"
    monkeypatch.setattr("sys.stdout", None)
    replace_unprintable()


def test_a_table_of_many_rows_has_all_of_them_and_is_written_without_lines(capsys, monkeypatch):
    rows = [(f"t{index}", "1") for index in range(5000)] + [("層\x1b[2J:cat:", "22")]
    monkeypatch.setitem(sys.modules, "rich.table", None)  # whose layout of many rows takes minutes
    print_table("Title", ("name", "size"), rows, ["red"] * len(rows))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + len(rows)
    assert lines[:3] == ["Title", f"{'name':14}  size", f"{'t0':14}     1"]
    assert lines[-2:] == [f"{'t4999':14}     1", "層\\x1b[2J:cat:    22"]


LONG = "/model/stage4/unit12/branch2/conv_with_a_long_name/Conv_quantized"


@pytest.mark.parametrize("name", [LONG, LONG * 3, "層" * 60, "n" * 30])
def test_a_table_in_a_pipe_is_100_columns_wide_and_has_its_figures_whole(capsys, name):
    figures = ["75.0 %", "39.1 ± 3.3 dB", "1,234,567,890", "97.25 % (96.1-98.1)"]
    print_table(
        "Title", ("layer", "share of the noise", "alone", "bytes", "the same class"), [(name, *figures)]
    )
    lines = capsys.readouterr().out.splitlines()
    assert max(map(cell_len, lines)) <= 100
    (row,) = [line.strip("│").split("│") for line in lines if line.startswith("│")]
    shown, *others = (cell.strip() for cell in row)
    assert others == figures
    first, sign, last = shown.partition("…")
    assert name.startswith(first) and name.endswith(last) and (sign == "…") == (shown != name)


@pytest.mark.parametrize("count", [2, 12])
def test_sentences_in_a_table_are_whole(capsys, count):
    words = " ".join(f"word{index}" for index in range(40))
    print_table("Title", ("node", "why"), [(f"{LONG}{index}", words) for index in range(count)])
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 100
    assert all(printed.count(word) >= count for word in words.split())


def test_many_rows_without_lines_have_short_names_too(capsys):
    print_table("Title", ("name", "size"), [(f"{LONG * 2}{index}", "1") for index in range(2000)])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 100


def test_no_verb_prints_a_table_with_an_empty_heading():
    calls = [
        call
        for file in Path(trtint8.cli.__file__).parent.glob("*.py")
        for call in ast.walk(ast.parse(file.read_text()))
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") in ("print_table", "html_table")
    ]
    headings = [
        text.value for call in calls for text in ast.walk(call.args[1]) if isinstance(text, ast.Constant)
    ]
    assert len(calls) > 20 and "found" in headings and "" not in headings


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("data.npy", np.zeros((4, 1, 8, 8), np.float32))


@pytest.mark.parametrize(
    ("work", "arguments", "kept", "resumes"),
    [
        ("calibrate.calibrate", ["a b.npy", "-o", "t.json"], "t.json.checkpoint", True),
        (
            "sensitivity.measure_sensitivity",
            ["table.json", "data.npy", "-o", "s.json"],
            "s.json.partial",
            False,
        ),
        ("tune.tune", ["data.npy", "data.npy", "-o", "q.onnx"], "q.onnx.checkpoint", True),
    ],
)
@pytest.mark.parametrize("begun", [True, False])
def test_a_run_that_can_be_continued(work, arguments, kept, resumes, begun, monkeypatch, capsys):
    verb, _, call = work.partition(".")

    @functools.wraps(pkgutil.resolve_name(f"trtint8.cli.{verb}:{call}"))
    def interrupted(*_args, **_options):
        if begun:
            Path(kept).touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(f"trtint8.cli.{work}", interrupted)
    assert main([verb, str(DEMO_MODEL), *arguments]) == 130
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("interrupted: ")
    command = ["trtint8", verb, *(["--resume"] if resumes else []), str(DEMO_MODEL), *arguments]
    assert (f"'{kept}'" in line, line.endswith(shlex.join(command))) == (begun, begun)


def test_a_measurement_that_keeps_nothing(monkeypatch, capsys):
    @functools.wraps(trtint8.measure_sensitivity)
    def interrupted(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("trtint8.cli.sensitivity.measure_sensitivity", interrupted)
    assert main(["sensitivity", str(DEMO_MODEL), "table.json", "data.npy"]) == 130
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("interrupted: nothing was written")


def test_what_was_written_before_ctrl_c_is_named(monkeypatch, capsys):
    def interrupted(_options):
        write_atomically("first.onnx", b"1")
        write_atomically("gone.onnx", b"1")
        Path("gone.onnx").unlink()
        with written_together("second.engine") as staged:
            write_atomically(staged(Path("second.engine.json")), b"2")
            write_atomically(staged(Path("second.engine")), b"2")
        with pytest.raises(ZeroDivisionError), written_together("third.engine") as staged:
            write_atomically(staged(Path("third.engine")), b"2")
            raise ZeroDivisionError
        raise KeyboardInterrupt

    monkeypatch.setattr("trtint8.cli.table.run", interrupted)
    assert main(["table", "show", "x"]) == 130
    (line,) = capsys.readouterr().err.splitlines()
    assert [name in line for name in ("'first.onnx'", "'second.engine'", "'second.engine.json'")] == [
        True
    ] * 3
    assert "gone" not in line and "third" not in line and "tmp" not in line


@pytest.mark.parametrize(
    ("error", "tried", "kept", "continues"),
    [
        (CalibrationDataError, True, True, True),
        (CalibrationDataError, True, False, False),
        (CalibrationDataError, False, True, False),  # what an earlier run has left
        (TableError, True, True, False),  # the checkpoint may be what is wrong
    ],
)
def test_an_error_in_the_data_after_a_long_search(error, tried, kept, continues, monkeypatch, capsys):
    @functools.wraps(trtint8.tune)
    def fails(*_args, on_speed_trial, **_options):
        if kept:
            Path("q.onnx.checkpoint").touch()
        if tried:
            on_speed_trial(SpeedTrial("all layers in INT8", 0.001, True, 0))
        raise error("label 10 is none")

    monkeypatch.setattr("trtint8.cli.tune.tune", fails)
    assert main(["tune", str(DEMO_MODEL), "data.npy", "data.npy", "-o", "q.onnx"]) == 2
    said = ["+ all layers in INT8: estimated 1.0000 ms"] if tried else []
    *before, last = capsys.readouterr().err.splitlines()
    assert last == "trtint8 tune: label 10 is none" and before[: len(said)] == said
    rest = before[len(said) :]
    assert len(rest) == continues and all(
        "'q.onnx.checkpoint'" in line and "--resume" in line for line in rest
    )


@pytest.mark.parametrize(
    ("method", "name", "said"),
    [
        ("auto", "t.cache", True),
        ("mse", "t.CACHE", True),
        ("entropy", "t.cache", False),
        ("auto", "t.json", False),
    ],
)
def test_what_is_said(method, name, said, capsys):
    say_method_in_cache(CalibrationTable({"x": 1.0}, method), Path(name))
    error = capsys.readouterr().err
    assert error.count("\n") == said
    assert all((part in error) == said for part in (f"'{name}'", f"'{method}'", "'entropy'"))


def test_values_by_name():
    read = functools.partial(named_values, "--size", form="NAME=N", read=int)
    assert read(["a=b=1", "b=2"]) == {"a=b": 1, "b": 2}
    assert named_values("--as", ["a=b=1"], "NAME=VALUE", pattern=FIRST, read=str) == {"a": "b=1"}
    for wrong in ("a", "=1", "a=", "a=x"):
        with pytest.raises(UnsupportedError, match=f"--size: '{wrong}' is not NAME=N; give"):
            read([wrong])
    with pytest.raises(UnsupportedError, match=r"--size.*'a' twice"):
        read(["a=1", "b=2", "a=1"])
