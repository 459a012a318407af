"""Checks of options."""

import contextlib
import inspect
import re
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from calibrators.checks import (
    check_choice,
    check_ending,
    check_path,
    doubts_among,
    is_number,
    keeping_warnings,
    notes_among,
    positive_integer,
    refuse_empty_path,
    several,
    warn_user,
    with_users_line,
    without_warnings,
)
from calibrators.data.images.preprocessing import Preprocessing
from calibrators.data.opening import open_batches
from calibrators.errors import Argument, CalibrationDataError, OutputError, TableError, UnsupportedError
from tests.calibrators.specs import floats


@pytest.mark.parametrize("value", [1, np.int64(7), np.uint8(255)])
def test_positive_integers(value):
    assert positive_integer("threads", value) == value
    assert type(positive_integer("threads", value)) is int


@pytest.mark.parametrize("value", [0, -1, 1.0, 1.5, "2", True, None, np.float32(2), [1]])
def test_what_is_no_positive_integer(value):
    with pytest.raises(CalibrationDataError, match=r"^threads is "):
        positive_integer("threads", value)


def test_numbers():
    assert all(map(is_number, (0, -1.5, float("nan"), np.float16(2), np.int8(3), 10**400)))
    assert not any(map(is_number, (True, np.bool_(True), "1", None, 1j, [1], (1, 2))))


def test_one_name_is_not_its_letters():
    assert several("conv1") == ["conv1"]
    assert several(Path("a/b")) == [Path("a/b")]
    assert several(("a", "b")) == several(iter(["a", "b"])) == ["a", "b"]
    assert several(()) == []


@pytest.mark.parametrize("value", [None, 5, b"name", np.array(1)])
def test_what_is_no_name_and_holds_none(value):
    with pytest.raises(UnsupportedError, match=f"^{re.escape(repr(value))} "):
        several(value)


def test_what_is_no_path():
    for path in ("a", ".", Path()):
        check_path("the engine", path, TableError)
    for path in (".", Path(), b"", None, np.zeros(0)):
        refuse_empty_path("the engine", path, TableError)
    for path in (None, 5, b"a", ["a"]):
        with pytest.raises(TableError, match=f"^the engine is given as {type(path).__name__};"):
            check_path("the engine", path, TableError)
    for check in (check_path, refuse_empty_path):
        for path, named in (
            ("", "the engine is empty;"),
            *((nul, "the engine, 'a.*b'") for nul in ("a\0b", Path("a\0b"))),
        ):
            with pytest.raises(TableError, match=named):
                check("the engine", path, TableError)


@pytest.mark.parametrize("name", ["a/page.html", "page.HTML", "page.htm", "a.npz.html"])
def test_names_with_an_ending(name):
    for given in (name, Path(name)):
        assert check_ending(given, "a page", (".html", ".htm")) == Path(name)


@pytest.mark.parametrize(
    ("name", "endings", "named"),
    [
        ("a/data.npz", (".html", ".htm"), r"'a/data\.npz' .*\.html or \.htm, .*a page .*\.html$"),
        ("html", (".html", ".htm"), r"'html' .*\.html or \.htm, .*\.html$"),
        ("s.html", (".json",), r"'s\.html' .*\.json$"),
        ("a/.Html", (".html", ".htm"), r"'a/\.Html' is an ending alone"),
        ("", (".html", ".htm"), "is empty"),
    ],
)
def test_other_names_are_refused(name, endings, named):
    with pytest.raises(OutputError, match=named):
        check_ending(name, "a page", endings)


@pytest.mark.parametrize("value", ["blue", None, [], {}, 0, np.zeros(0), np.zeros(2), object()])
def test_another_choice_is_refused(value):
    check_choice("colour", "red", ("red", "green"))
    for arguments, error in (((), UnsupportedError), ((TableError,), TableError)):
        with pytest.raises(error, match=f"^colour is {re.escape(repr(value))}; use one of red, green$"):
            check_choice("colour", value, ("red", "green"), *arguments)


#: What code of the packages uses.
NAMES = {
    "contextlib": contextlib,
    "Thread": Thread,
    "ThreadPoolExecutor": ThreadPoolExecutor,
    "warn_user": warn_user,
    "with_users_line": with_users_line,
}


def in_module(name, source):
    """What a module of this name defines."""
    namespace = {"__name__": name, **NAMES}
    exec(compile(source, f"{name}.py", "exec"), namespace)
    return namespace


def place_of(call):
    """The file and the line of the only warning of a call."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    (warning,) = caught
    return warning.filename, warning.lineno


def test_the_line_of_the_caller_however_deep():
    inner = in_module("calibrators.a.b", "def run(call): call()")["run"]
    outer = in_module("trtint8.c", "def run(inner, call): inner(call)")["run"]
    warn = in_module("trtint8", "def run(): warn_user('x')")["run"]
    line = inspect.currentframe().f_lineno + 1
    assert place_of(lambda: outer(inner, warn)) == (__file__, line)


def test_code_of_the_users_that_the_packages_call_comes_first():
    packages = in_module("trtint8", "def call(function): function()\ndef warn(): warn_user('x')")
    loader = in_module("loader", "def load(): warn()")
    loader["warn"] = packages["warn"]
    assert place_of(lambda: packages["call"](loader["load"])) == ("loader.py", 1)


def test_names_that_only_begin_alike_are_not_of_the_packages():
    own = in_module("trtint8_plugins", "def warn(): warn_user('x')")
    assert place_of(own["warn"]) == ("trtint8_plugins.py", 1)


def test_what_runs_context_managers_is_passed_over():
    source = "@contextlib.contextmanager\ndef opened():\n    warn_user('x')\n    yield"
    opened = in_module("calibrators.a", source)["opened"]

    def enter():
        with opened():
            pass

    assert place_of(enter)[0] == __file__


def test_the_init_of_a_data_class_is_passed_over():
    assert place_of(lambda: Preprocessing(mean=(0.485,), std=(0.229,), scale=1.0))[0] == __file__


def test_a_warning_that_is_found_deep_in_the_packages(tmp_path):
    images = pytest.importorskip("PIL.Image")
    images.new("RGB", (2, 2)).save(tmp_path / "a.png")
    (tmp_path / "b.png").symlink_to(tmp_path / "nowhere.png")
    inputs = [floats("x", 1, 3, 2, 2)]
    options = {"preprocessing": Preprocessing()}
    assert place_of(lambda: open_batches(tmp_path, inputs, **options))[0] == __file__


#: What a module of the packages does to call a function in another thread.
IN_A_THREAD = """
def call(function):
    thread = Thread(target=with_users_line(function))
    thread.start()
    thread.join()
"""
IN_A_POOL = """
def call(function):
    with ThreadPoolExecutor(1) as pool:
        pool.submit(with_users_line(function)).result()
"""


@pytest.mark.parametrize("source", [IN_A_THREAD, IN_A_POOL])
def test_a_thread_of_the_packages_names_the_line_that_led_to_it(source):
    call = in_module("calibrators.a", source)["call"]
    warn = in_module("trtint8", "def run(): warn_user('x')")["run"]
    load = in_module("loader", "def load(call, warn): call(warn)")["load"]
    assert place_of(lambda: load(call, warn)) == ("loader.py", 1)
    # Code of the user's that runs in the thread comes first.
    read = in_module("reader", "def read(warn): warn()")["read"]
    assert place_of(lambda: load(call, lambda: read(warn))) == ("reader.py", 1)


def test_the_class_of_the_warning():
    with pytest.warns(DeprecationWarning, match="^x$"):
        warn_user("x", DeprecationWarning)
    with pytest.warns(UserWarning, match="^x$"):
        warn_user("x")


def test_a_warning_that_names_an_argument_is_shown_as_any_other():
    with pytest.warns(UserWarning) as caught:
        warn_user(f"give {Argument('limit', '3')}")
    (shown,) = caught
    assert warnings.formatwarning(shown.message, shown.category, "f.py", 1, "").split(": ")[1:] == [
        "UserWarning",
        "give limit=3\n",
    ]


def test_what_makes_no_figure_doubtful_is_told_from_doubts_where_it_is_kept(recwarn):
    with keeping_warnings(["of a table", "note: of an engine"]) as said:
        warn_user("doubt")
        warn_user("fact", note=True)
        warn_user("neither", kept=False)
    assert [str(one.message) for one in recwarn] == ["doubt", "fact", "neither"]
    assert doubts_among(said) == ("of a table", "doubt")
    assert notes_among(said) == ("of an engine", "fact")


def test_what_is_only_tried_warns_of_nothing(recwarn):
    with keeping_warnings() as said:
        with without_warnings():
            warn_user("tried")
        warn_user("taken")
    assert said == [str(one.message) for one in recwarn] == ["taken"]
