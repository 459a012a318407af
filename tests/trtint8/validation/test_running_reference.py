"""The reference runs on the first batches before they are asked for."""

import threading

import numpy as np
import pytest

from calibrators.errors import CalibrationDataError, ModelError
from tests.trtint8.validation.small_models import scaled
from trtint8.models.model import load_model
from trtint8.models.session import ModelSession, StoppableRuns, open_model
from trtint8.validation import running_reference
from trtint8.validation.running_reference import RunningReference

FEEDS = [{"x": np.full((2, 4), value, np.float32)} for value in (1, 2, 3)]


class Recorded:
    """A session that records what it is fed, by the value of the feed, and in which thread."""

    def __init__(self):
        self.opened = open_model(load_model(scaled(2.0)))
        self.runs = []

    def run(self, names, feed, options=None):
        self.runs.append((float(feed["x"].flat[0]), threading.current_thread() is threading.main_thread()))
        return self.opened.session.run(names, feed, options)


def wait_for(running):
    running._ahead.result(60)


@pytest.fixture
def session():
    return Recorded()


@pytest.fixture
def running(session):
    with RunningReference(lambda: ModelSession(session)) as running:
        yield running


def test_batches_run_once_whether_ahead_or_not(session, running):
    running.run_ahead(FEEDS[:2])
    wait_for(running)
    assert session.runs == [(1.0, False), (2.0, False)]
    for feed in FEEDS:
        np.testing.assert_array_equal(running.run(feed)[0], 2 * feed["x"])
    assert session.runs == [(1.0, False), (2.0, False), (3.0, True)]


def test_nothing_runs_ahead_once_a_batch_was_asked_for(session, running, monkeypatch):
    gate, run = threading.Event(), session.run

    def slow(*args):
        gate.wait(60)
        return run(*args)

    monkeypatch.setattr(session, "run", slow)
    running.run_ahead(FEEDS)
    asked = threading.Thread(target=running.run, args=(FEEDS[0],))
    asked.start()
    while not running._is_asked:
        pass
    gate.set()
    asked.join(60)
    assert session.runs == [(1.0, False)]


def test_few_bytes_of_outputs_are_made_ahead(session, running, monkeypatch):
    monkeypatch.setattr(running_reference, "_KEPT", 0)
    running.run_ahead(FEEDS)
    wait_for(running)
    assert session.runs == [(1.0, False)]


def test_a_batch_that_does_not_fit_is_refused_when_it_is_asked_for(session, running):
    bad = {"x": np.zeros((1, 5), np.float32)}
    running.run_ahead([bad, FEEDS[0]])
    wait_for(running)
    with pytest.raises(CalibrationDataError, match="the model fails on a batch"):
        running.run(bad)
    np.testing.assert_array_equal(running.run(FEEDS[0])[0], 2 * FEEDS[0]["x"])
    assert len(session.runs) == 3


def test_the_run_under_way_is_stopped_where_the_comparison_fails(session):
    """It may take long, and the process does not end before it."""
    gate, ends = threading.Event(), []

    def run(_names, _feed, options):
        gate.wait(60)
        ends.append(options.terminate)
        raise RuntimeError("terminated")

    session.run = run
    with pytest.raises(ModelError), RunningReference(lambda: ModelSession(session)) as running:
        running.run_ahead(FEEDS)
        while running._runs is None:
            pass
        raise ModelError("the other model is invalid")
    gate.set()
    wait_for(running)
    assert ends == [True]


def test_a_run_that_is_stopped_fails():
    runs = StoppableRuns()
    opened = open_model(load_model(scaled(2.0)))
    np.testing.assert_array_equal(opened.run(FEEDS[0], stoppable=runs)[0], 2 * FEEDS[0]["x"])
    runs.stop()
    with pytest.raises(CalibrationDataError, match="terminate"):
        opened.run(FEEDS[0], stoppable=runs)


def test_a_model_that_cannot_be_opened_is_refused():
    def refuse():
        raise ModelError("no kernel")

    with RunningReference(refuse) as running:
        running.run_ahead(FEEDS)
        with pytest.raises(ModelError, match="no kernel"):
            running.session()
