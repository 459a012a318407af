"""A progress bar on a terminal, and silence elsewhere."""

import io
import sys

from calibrators.progress import progress_bar


class Terminal(io.StringIO):
    def isatty(self):
        return True


def shown(monkeypatch, stream, **options):
    monkeypatch.setattr(sys, "stderr", stream)
    with progress_bar("Counting", 3, **options) as advance:
        advance(1)
        advance(2)
    return stream.getvalue()


def test_it_counts_on_a_terminal(monkeypatch):
    text = shown(monkeypatch, Terminal())
    assert "Counting" in text and "3/3" in text


def test_nothing_where_standard_error_is_no_terminal(monkeypatch):
    assert shown(monkeypatch, io.StringIO()) == ""


def test_nothing_where_none_is_wanted(monkeypatch):
    assert shown(monkeypatch, Terminal(), enabled=False) == ""


def test_a_total_that_is_not_known(monkeypatch):
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    with progress_bar("Counting", None) as advance:
        advance(5)
    assert "5/?" in stream.getvalue()
