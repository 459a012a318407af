"""How work shows itself on a terminal, in a notebook and in a log, and how long it still takes."""

import errno
import io
import itertools
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
    time_left,
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


def work(clock, what, steps, seconds, total="known", work=1.0):
    """Does a phase; yields after each step what is said of the time left, and how long it really takes."""
    with progress_bar(what, steps if total == "known" else None, work=work) as advance:
        for done in range(1, steps + 1):
            clock.wait(seconds)
            advance(1)
            yield (steps - done) * seconds, time_left()


def test_the_time_left_covers_the_phases_to_come(clock):
    with job({"a": 10.0, "b": 30.0}):
        for left, said in list(work(clock, "a", 10, 2.0))[3:]:
            assert said.seconds == pytest.approx(left + 30 * 2) and not said.at_least
        # The second phase takes twice as long as planned; its own steps tell.
        *_, (left, said) = itertools.islice(work(clock, "b", 30, 4.0), 10)
        assert said.seconds == pytest.approx(left)


def test_the_steps_of_phases_have_their_own_work(clock):
    with job({"a": 20.0, "b": 50.0}):
        *_, (_, said) = work(clock, "a", 10, 4.0, work=2.0)  # 2 s for a unit
        assert said.seconds == pytest.approx(100.0)


def test_a_part_of_a_job_says_its_phases_in_place_of_the_one_that_was_planned(clock):
    with job({"whole": None, "after": 10.0}) as plan:
        assert time_left() is None
        with job({"a": 10.0, "b": 10.0}, part_of="whole"):
            *_, (_, said) = work(clock, "a", 10, 1.0)
            assert (said.seconds, said.at_least) == (pytest.approx(20.0), False)
        assert "whole" not in plan.to_come
        assert time_left().seconds == pytest.approx(10.0)  # b was left out


def test_a_part_counts_as_it_was_planned(clock):
    with job({"a": 10.0, "part": 20.0, "b": 10.0}):
        list(work(clock, "a", 10, 1.0))
        with job({}, part_of="part"):
            *_, (_, said) = work(clock, "own", 5, 1.0, total="unknown")
            assert (said.seconds, said.at_least) == (pytest.approx(15 + 10), False)
        assert time_left().seconds == pytest.approx(10 * 15 / 30)


def test_what_is_planned_after_a_part_that_planned_as_much_counts(clock):
    with job({}) as plan:
        with job({}):
            pass
        plan.to_come["second"] = 10
        with progress_bar("first", 10) as advance:
            clock.now += 10
            advance(10)
        assert time_left().seconds == pytest.approx(10)


def test_steps_of_unlike_sizes_count_when_all_of_them_are_done(clock):
    engines = {"FP32": 1.0, "FP16": 1.0, "INT8": 1.0}
    with job(engines):
        for number, name in enumerate(engines):
            with job({}, part_of=name):
                for done, (_, said) in enumerate(work(clock, "own", 8, 1.0, total="unknown", work=0.0), 1):
                    left = 8.0 * (2 - number) + 8.0 - done
                    if number == 0:
                        assert said is None  # nothing has been done yet
                    elif left:
                        assert (said.seconds, said.at_least) == (pytest.approx(left), False)


def test_what_is_not_known_makes_it_the_least_time(clock):
    with job({"a": 10.0, "b": 10.0, "c": None}):
        *_, (_, said) = work(clock, "a", 10, 1.0)
        assert (said.seconds, said.at_least) == (pytest.approx(10.0), True)
    with job({"b": 10.0}):  # a phase without a known number of steps
        *_, (_, said) = work(clock, "a", 5, 1.0, total="unknown")
        assert said.at_least


def test_no_time_is_said_before_enough_was_done_and_at_the_end(clock):
    with job({"a": 100.0}):
        said = [said for _, said in work(clock, "a", 100, 1.0)]
    assert said[3] is None and said[10] is not None and said[-1] is None
    assert time_left() is None


def test_a_planned_phase_of_unknown_steps_counts_as_planned(clock):
    with job({"a": 10.0, "b": 10.0}):
        *_, (_, said) = work(clock, "a", 5, 1.0, total="unknown")
        assert said.seconds == pytest.approx(10.0, rel=1.5)
        assert time_left().seconds == pytest.approx(5.0)


def test_the_first_steps_that_open_the_network_do_not_count_for_the_others(clock):
    with progress_bar("a", 13) as advance:
        clock.wait(20)
        for _ in range(3):
            advance(1)
            assert time_left() is None
            clock.wait(1)
        advance(1)
        assert time_left().seconds == pytest.approx(9.0)
        clock.wait(4)
        assert time_left().seconds == pytest.approx(5.0)


def test_the_later_half_of_the_steps_tells_how_long_others_take(clock):
    with progress_bar("a", 100) as advance:
        for step in range(50):
            clock.wait(5 if step < 24 else 1)
            advance(1)
        assert time_left().seconds == pytest.approx(50.0)


def test_what_was_done_under_the_same_name_tells_how_long_it_takes(clock):
    with job({"a": 10.0, "trial": 30.0, "b": 10.0}):
        list(work(clock, "a", 10, 1.0))
        for trials, of_b in (6 + 20, 10), (4 + 8, 10 * 18 / 20), (4, 10 * 26 / 30):
            with job({}, part_of="trial", work=10.0):
                clock.wait(4)
                assert time_left().seconds == pytest.approx(trials + of_b)
                clock.wait(4)
        assert time_left().seconds == pytest.approx(10 * 34 / 40)


@pytest.mark.parametrize("total", [4, 9, None])
def test_a_bar_ends_at_100_percent_also_where_it_stopped_early(monkeypatch, total):
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    with progress_bar("Counting", total) as advance:
        advance(4)
    assert "4/4" in stream.getvalue()


def test_bars_that_messages_replace_go(monkeypatch):
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    with job({}), job({}, keep=False), progress_bar("Scoring", 3) as advance:
        advance(3)
    assert stream.getvalue().rpartition("Scoring")[2].count("3/3") <= 1
    with pytest.raises(ZeroDivisionError), job({}, keep=False), progress_bar("Failing", 3) as advance:
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
        with job({"Calibrating": 10.0, "Choosing": 30.0}):
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
    assert "Calibrating 5/10 (50 %)" in during and "2 min" in during and " left" in during
    assert "Calibrating" not in between and "Calibrating" not in after and "4 min" in after


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
    """The outputs of a cell, each the HTML that it shows last."""
    outputs = []

    class Handle:
        def __init__(self, number):
            self.number = number

        def update(self, shown):
            outputs[self.number] = shown

    def display(shown, display_id):
        outputs.append(shown)
        return Handle(len(outputs) - 1)

    ipython = types.ModuleType("IPython")
    ipython.get_ipython = Shell
    ipython.display = types.ModuleType("IPython.display")
    ipython.display.HTML, ipython.display.display = str, display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", ipython.display)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    return outputs


def test_a_bar_in_a_notebook(outputs, clock):
    with progress_bar("a < b", 8) as advance:
        assert "value=0 max=8" in outputs[0] and "a &lt; b" in outputs[0]
        for _ in range(4):
            clock.wait(2.5)
            advance(1)
        assert "value=4 max=8" in outputs[0] and "10 s left" in outputs[0]
    assert "value=4 max=4" in outputs[0] and "10 s" in outputs[0] and "left" not in outputs[0]
    with progress_bar("Quiet", 4, enabled=False), job({}, keep=False):
        pass
    with job({}, keep=False), progress_bar("Scoring", 4):
        pass
    assert len(outputs) == 2 and outputs[1] == ""


def test_bars_that_go_make_room_for_the_next_in_a_notebook(outputs):
    with job({}, keep=False):
        for number in range(5):
            with progress_bar(f"Scoring {number}", 4), progress_bar(f"Inner {number}", 4):
                shown = "".join(outputs)
                assert f"Scoring {number}" in shown and f"Inner {number}" in shown
    assert outputs == ["", ""]  # as many as were drawn at once


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
