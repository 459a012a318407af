"""Tuning by the public call."""

import pytest

import trtint8
from calibrators.errors import BuildError, CalibrationDataError, UnsupportedError
from trtint8.api import tuning
from trtint8.data import DEMO_MODEL


def test_a_gpu_that_no_table_has_is_refused_before_the_search(split, held_out):
    with pytest.raises(UnsupportedError, match="'RTX 9999'"):
        trtint8.tune(DEMO_MODEL, split.calibration_images, held_out, speed="RTX 9999", progress=False)


def test_a_profile_is_refused_where_no_times_are_estimated(split, held_out):
    with pytest.raises(BuildError, match=r"^profile=... gives the shapes that .*; add speed=GPU$"):
        trtint8.tune(DEMO_MODEL, split.calibration_images, held_out, profile={"images": ((1, 1, 8, 8),) * 3})


def test_the_search_ends_where_the_budget_is_kept_from_the_start(split, held_out):
    trials = []
    tuned = trtint8.tune(
        DEMO_MODEL,
        split.calibration_images[:64],
        held_out,
        minimum=0.5,
        metric="top1",
        on_trial=trials.append,
        progress=False,
    )
    assert tuned.fits and not tuned.candidate.keep_float
    assert list(tuned.trials) == trials


def test_a_target_that_tuning_does_not_know_is_refused(split, held_out):
    with pytest.raises(
        UnsupportedError, match=r"^target is 'tensorrt-8\.6'; use one of auto, rtx, tensorrt$"
    ):
        trtint8.tune(DEMO_MODEL, split.calibration_images, held_out, target="tensorrt-8.6", progress=False)


def test_nothing_is_resumed_without_a_checkpoint(split, held_out):
    with pytest.raises(
        CalibrationDataError, match=r"^resume continues from a checkpoint, .*; add checkpoint"
    ):
        trtint8.tune(DEMO_MODEL, split.calibration_images, held_out, resume=True, progress=False)


def test_nobody_has_to_be_told(split, held_out, monkeypatch):
    calls = []
    monkeypatch.setattr(tuning, "tune_from_sources", lambda *_, **keywords: calls.append(keywords))
    none = {"on_goal": None, "on_trial": None, "on_speed_trial": None}
    trtint8.tune(DEMO_MODEL, split.calibration_images, held_out, speed="RTX 4090", **none)
    (given,) = calls
    callbacks = (given["on_goal"], given["on_trial"], given["speed"].on_trial)
    assert [callback("something") for callback in callbacks] == [None] * 3
