"""How work shows itself on a terminal, in a notebook and in a log, and how long it still takes."""

import errno
import io
import sys
import threading
import time
import types

import pytest

from calibrators.progress import (
    duration,
    job,
    lines_without_terminal,
    literal_console,
    progress_bar,
)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def shown(monkeypatch, stream, **options):
    monkeypatch.setattr(sys, "stderr", stream)
    with progress_bar("Counting", 3, **options) as advance:
        advance(1)
        advance(2)
    return stream.getvalue()


def test_a_console_obeys_nothing_in_a_text():
    stream = io.StringIO()
    literal_console(stream, width=80).print("[b]:bug: 'x' 1[/b]")
    assert stream.getvalue() == "[b]:bug: 'x' 1[/b]\n"


def test_it_counts_on_a_terminal(monkeypatch):
    text = shown(monkeypatch, Terminal())
    assert "Counting" in text and "3/3" in text


def test_nothing_where_none_is_wanted_or_standard_error_is_no_terminal(monkeypatch):
    assert shown(monkeypatch, io.StringIO()) == ""
    assert shown(monkeypatch, Terminal(), enabled=False) == ""
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    with progress_bar("Counting", None) as advance:  # a total that is not known
        advance(5)
    assert "5/5" in stream.getvalue()  # it ends at 100 %, whatever the total was


def test_without_a_standard_error_the_work_goes_on(monkeypatch):
    closed = io.StringIO()
    closed.close()
    for stream in (None, closed):
        monkeypatch.setattr(sys, "stderr", stream)
        with progress_bar("Working", 2) as advance:
            advance(1)


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_terminal_that_goes_away_stops_no_work(monkeypatch):
    class Leaving(Terminal):
        gone = False

        def write(self, text):
            if self.gone:
                raise OSError(errno.EIO, "Input/output error")
            return super().write(text)

        def flush(self):
            if self.gone:
                raise OSError(errno.EIO, "Input/output error")

    terminal = Leaving()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress_bar("Working", 2) as advance:
        advance(1)
        terminal.gone = True
        advance(1)
        time.sleep(0.3)  # the bar is drawn by a thread, ten times per second
    assert "Working" in terminal.getvalue()


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now

    def wait(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("calibrators.progress._clock", clock)
    return clock


def test_a_phase_may_end_before_one_that_began_within_it(monkeypatch):
    """As a generator does that is not read to its end."""

    def feeding():
        with progress_bar("Feeding", 2):
            yield from range(2)

    monkeypatch.setattr(sys, "stderr", Terminal())
    feeds = feeding()
    next(feeds)
    with progress_bar("Reading", 2):
        feeds.close()
    assert shown(monkeypatch, Terminal(), enabled=False) == ""


@pytest.mark.parametrize("total", [4, 9, None])
def test_a_bar_ends_at_100_percent_also_where_it_stopped_early(monkeypatch, total):
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    with progress_bar("Counting", total) as advance:
        advance(4)
    assert "4/4" in stream.getvalue()


def test_bars_that_messages_replace_go(monkeypatch):
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    with job(), job(keep=False), progress_bar("Scoring", 3) as advance:
        advance(3)
    assert stream.getvalue().rpartition("Scoring")[2].count("3/3") <= 1
    with pytest.raises(ZeroDivisionError), job(keep=False), progress_bar("Failing", 3) as advance:
        advance(1)
        raise ZeroDivisionError
    assert "1/3" in stream.getvalue()


def said_in_log(monkeypatch, clock, work):
    """What is written where there is no terminal; ``work`` yields where a minute is over."""
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    said, over, worked = [], threading.Semaphore(0), threading.Semaphore(0)

    def wait(seconds):
        worked.release()
        over.acquire()
        clock.wait(seconds)
        return clock.ended

    clock.ended = False
    with lines_without_terminal(said.append, wait):
        worked.acquire()
        for _ in work():
            over.release()
            worked.acquire()
        clock.ended = True
        over.release()
    return said


def test_a_line_a_minute_where_there_is_no_terminal(monkeypatch, clock):
    def working():
        yield
        with job():
            with progress_bar("Calibrating", 10) as advance:
                for _ in range(5):
                    clock.wait(1)
                    advance(1)
                yield
                advance(5)
            yield
        yield

    first, during, between, after = said_in_log(monkeypatch, clock, working)
    assert "60 s" in first and "Calibrating" not in first
    assert "Calibrating 5/10 (50 %)" in during and "2 min" in during and "about 5 s left" in during
    assert "Calibrating" not in between and "Calibrating" not in after and "4 min" in after


@pytest.mark.parametrize(
    ("total", "steps", "said"),
    [(1_281_167, 1_281_100, "1281100/1281167 (99 %)"), (3, 5, "5/5 (100 %)"), (None, 1_234_567, "1234567/?")],
)
def test_steps_are_counted_in_full(monkeypatch, clock, total, steps, said):
    def working():
        with progress_bar("Calibrating", total) as advance:
            advance(steps)
            yield

    assert said in "".join(said_in_log(monkeypatch, clock, working))


def test_no_line_on_a_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    with lines_without_terminal(lambda line: pytest.fail(line), lambda _seconds: pytest.fail("waits")):
        pass


def test_a_terminal_that_cannot_go_back_gets_lines_and_no_bar(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    assert shown(monkeypatch, Terminal()) == ""


class Shell:
    """What IPython says of a notebook's kernel."""

    kernel = object()


@pytest.fixture
def outputs(monkeypatch):
    """The outputs of a cell, each the text that it shows last."""
    outputs = []

    class Handle:
        def __init__(self, number):
            self.number = number

        def update(self, shown):
            bundle = shown._repr_mimebundle_([], [])
            assert "<pre" in bundle["text/html"]
            outputs[self.number] = bundle["text/plain"]

    def display(_shown, display_id):
        outputs.append("")
        return Handle(len(outputs) - 1)

    ipython = types.ModuleType("IPython")
    ipython.get_ipython = Shell
    ipython.display = types.ModuleType("IPython.display")
    ipython.display.display = display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", ipython.display)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    return outputs


def test_a_bar_in_a_notebook(outputs, clock):
    with progress_bar("a < b", 8) as advance:
        assert "0/8" in outputs[0] and "a < b" in outputs[0]
        for _ in range(4):
            clock.wait(2.5)
            advance(1)
        assert "4/8" in outputs[0] and "00:10" in outputs[0]
    assert "4/4" in outputs[0] and "00:10" in outputs[0]
    with progress_bar("Quiet", 4, enabled=False), job(keep=False):
        pass
    assert len(outputs) == 1


def test_bars_that_go_make_room_for_the_next_in_a_notebook(outputs):
    with job(keep=False):
        for number in range(5):
            with progress_bar(f"Scoring {number}", 4), progress_bar(f"Inner {number}", 4):
                (shown,) = outputs
                assert f"Scoring {number}" in shown and f"Inner {number}" in shown
    assert [shown.strip() for shown in outputs] == [""]


def test_no_bar_in_a_shell_of_ipython_without_a_notebook(outputs, monkeypatch):
    monkeypatch.delattr(Shell, "kernel")
    with progress_bar("Working", 4) as advance:
        advance(4)
    assert outputs == []


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "1 s"), (59.5, "60 s"), (100, "2 min"), (3600, "60 min"), (9e3, "2 h 30 min")],
)
def test_durations_in_words(seconds, words):
    assert duration(seconds) == words
