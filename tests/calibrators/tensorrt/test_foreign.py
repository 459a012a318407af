"""Calibrators that others wrote."""

import contextlib

import pytest

from calibrators.tensorrt import foreign
from calibrators.tensorrt.calibrator import Calibrator, ServedBuild
from tests.host_device import HostDevice


def test_ours_stays_and_others_get_its_methods(tmp_path):
    (tmp_path / "m.cache").touch()
    ours = Calibrator(cache=tmp_path / "m.cache", device=HostDevice())
    assert foreign.as_any_calibrator(ours) is ours.implementation is ours
    theirs = object()
    adapted = foreign.as_any_calibrator(theirs)
    assert adapted.implementation is theirs
    for one in (ours, adapted):
        one.raise_failure(None)
        one.close()
    adapted.bind(ServedBuild("model", before_fusion=True))
    assert adapted.was_asked and not ours.was_asked
    assert (adapted.table, adapted.shapes(), adapted.input_sizes()) == (None, None, {})


@pytest.mark.parametrize(("current", "known"), [(None, False), (1, True)])
def test_where_others_allocate(monkeypatch, current, known):
    monkeypatch.setattr(foreign, "current_device", lambda: current)
    adapted = foreign.ForeignCalibrator(object())
    assert adapted.device_index == current
    assert isinstance(adapted.context(), contextlib.nullcontext) is known
