"""Plans for a network of two convolutions, with engines that are built on this machine."""

import dataclasses
from types import SimpleNamespace

import pytest

from calibrators.errors import UnsupportedError
from calibrators.tables.table import CalibrationTable
from tests.trtint8.onnx_models import conv_relu_conv
from trtint8.auditing.estimator import Estimator, EstimatorOptions
from trtint8.auditing.gpus import find_gpu
from trtint8.builder.options import BuildOptions
from trtint8.engine.profiles import ShapeRange
from trtint8.models.model import load_model, prepare
from trtint8.quantization.placement import place
from trtint8.tuning.journal import Journal
from trtint8.tuning.speed_plan import SpeedGoal, SpeedPlanner
from trtint8.tuning.time_limit import TimeLimit

#: A GPU whose INT8 is so fast, and whose memory too, that every product gains.
FAST = dataclasses.replace(find_gpu("A10"), bandwidth_gbs=1e6, fp16_tflops=0.001, int8_tops=1.0)


@pytest.fixture(scope="module")
def prepared():
    return prepare(load_model(conv_relu_conv(quantized=False).SerializeToString()))


@pytest.fixture(scope="module")
def table(prepared):
    return CalibrationTable(dict.fromkeys(place(prepared.graph_model).tensors, 4.0))


def planner(prepared, table, gpu, journal=None, on_trial=lambda _trial: None, **options):
    goal = SpeedGoal(gpu, EstimatorOptions("rtx", progress=False, **options), on_trial)
    return SpeedPlanner(prepared, table, goal, journal or Journal())


def test_layers_that_all_gain(rtx, prepared, table):
    seen = []
    journal = Journal()
    planned = planner(prepared, table, FAST, journal, seen.append)
    plan = planned.plan(TimeLimit())
    assert planned.layers == ("first", "second")
    assert (plan.keep_float, plan.seconds) == ((), plan.int8_seconds)
    assert plan.int8_seconds < plan.fp16_seconds
    assert tuple(seen) == plan.trials and len(journal.estimates) == len(plan.trials)
    assert planned.completed(plan, ()) is plan
    slower = planned.completed(plan, ("first",))
    assert slower.keep_float == ("first",) and slower.seconds > plan.seconds


def test_estimates_of_an_interrupted_search_are_used(rtx, prepared, table, monkeypatch):
    journal = Journal()
    plan = planner(prepared, table, FAST, journal).plan(TimeLimit())
    monkeypatch.setattr(Estimator, "estimate", None)
    assert planner(prepared, table, FAST, journal).plan(TimeLimit()) == plan


@pytest.mark.parametrize(
    ("gpu", "options"),
    [
        (dataclasses.replace(FAST, cache_mb=1), {}),
        (FAST, {"profile": {"images": ShapeRange(*[(2, 3, 16, 16)] * 3)}}),
        (FAST, {"build": BuildOptions(tf32=False)}),
    ],
    ids=["GPU", "shapes", "options"],
)
def test_estimates_for_something_else_are_not_used(rtx, prepared, table, monkeypatch, gpu, options):
    journal = Journal()
    monkeypatch.setattr(Estimator, "estimate", lambda *_, **__: SimpleNamespace(seconds=1.0))
    assert planner(prepared, table, FAST, journal).estimate(()) == 1.0
    monkeypatch.setattr(Estimator, "estimate", lambda *_, **__: SimpleNamespace(seconds=2.0))
    assert planner(prepared, table, FAST, journal).estimate(()) == 1.0
    assert planner(prepared, table, gpu, journal, **options).estimate(()) == 2.0


@pytest.mark.parametrize(("name", "capability", "nearest"), [("T4", "7.5", "8.0"), ("H100", "9.0", "8.9")])
def test_a_gpu_that_tensorrt_does_not_build_for(rtx, prepared, table, name, capability, nearest):
    words = (
        rf"RTX runs no INT8 on {name}, of .* {capability}: times are estimated from its graphs for {nearest},"
    )
    with pytest.warns(UserWarning, match=words):
        planner(prepared, table, find_gpu(name))


def test_no_layer_gains(rtx, prepared, table):
    slow = dataclasses.replace(FAST, int8_tops=0.0001)
    with pytest.raises(
        UnsupportedError, match=r"^no layer is estimated to be faster in INT8 than in FP16 on A10"
    ):
        planner(prepared, table, slow).plan(TimeLimit())


def test_a_time_that_cannot_be_estimated(rtx, prepared, table, monkeypatch):
    original = Estimator.estimate

    def unknown(self, *arguments, **options):
        return dataclasses.replace(original(self, *arguments, **options), seconds=None)

    monkeypatch.setattr(Estimator, "estimate", unknown)
    with pytest.raises(UnsupportedError, match="does not list the shapes and types of all tensors"):
        planner(prepared, table, FAST).plan(TimeLimit())
