"""A progress bar on a terminal, and silence elsewhere."""

import errno
import io
import sys
import time

import pytest

from calibrators.progress import literal_console, progress_bar


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
