"""Plans for a network of two convolutions, with engines that are built on this machine."""

import dataclasses
from types import SimpleNamespace

import pytest

from calibrators.errors import UnsupportedError
from tests.trtint8.onnx_models import Shaped
from trtint8.auditing.audit import Estimator, EstimatorOptions, at_shapes
from trtint8.auditing.gpus import find_gpu
from trtint8.builder.config import BuildOptions
from trtint8.engine.profiles import ShapeRange
from trtint8.models.model import load_model, prepare
from trtint8.tuning.journal import Journal, JournalFile, OutOfTimeError, TimeLimit
from trtint8.tuning.speed import SpeedGoal, SpeedPlanner, group_layers, search_speed
from trtint8.tuning.stopwatch import SpeedTrial, Timing

GROUPS = (("a",), ("b", "c"), ("d",))


class Estimates:
    """Times of engines, from what each layer takes in FP16 and in INT8, in seconds.

    Two neighbours in INT8 take less than each alone.
    """

    source, gpu = "estimated", "T4"

    def __init__(self, fp16, int8, together=0.0):
        self.fp16, self.int8, self.together = fp16, int8, together
        self.asked = []

    def time(self, choices):
        self.asked += choices
        return [Timing(*[self.seconds(kept)] * 3) for kept in choices]

    def seconds(self, kept):
        seconds = sum(self.fp16[name] if name in kept else self.int8[name] for name in self.fp16)
        return seconds - (self.together if not {"a", "d"} & kept else 0.0)


def search(estimates, **options):
    return search_speed(GROUPS, estimates, options.pop("limit", TimeLimit()), **options)


def times(**seconds):
    return seconds


def test_each_group_is_where_it_is_faster():
    estimates = Estimates(times(a=4.0, b=1.0, c=1.0, d=4.0), times(a=2.0, b=3.0, c=3.0, d=2.0))
    plan = search(estimates)
    assert (plan.gpu, plan.keep_float, plan.seconds) == ("T4", ("b", "c"), 6.0)
    assert (plan.fp16_seconds, plan.int8_seconds, plan.complete) == (10.0, 10.0, True)
    # The same is never estimated twice.
    assert len(estimates.asked) == len(set(estimates.asked)) == len(plan.trials)
    assert plan.trials[:3] == (
        SpeedTrial("all layers in FP16", 10.0, True, 4),
        SpeedTrial("all layers in INT8", 10.0, False, 0),
        SpeedTrial("'a' in INT8", 8.0, True, 3),
    )
    assert plan.trials[3].what == "'b' and 1 like it in INT8"


def test_the_same_estimates_give_the_same_plan():
    made = [
        search(Estimates(times(a=4.0, b=1.0, c=1.0, d=4.0), times(a=2.0, b=3.0, c=3.0, d=2.0)))
        for _ in range(2)
    ]
    assert made[0] == made[1]


def test_neighbours_that_gain_only_together():
    # Alone, each loses: only the search that begins with INT8 finds them.
    estimates = Estimates(times(a=2.0, b=1.0, c=1.0, d=2.0), times(a=2.5, b=3.0, c=3.0, d=2.5), together=3.0)
    assert search(estimates).keep_float == ("b", "c")


def test_it_is_never_slower_than_fp16():
    estimates = Estimates(times(a=1.0, b=1.0, c=1.0, d=1.0), times(a=2.0, b=2.0, c=2.0, d=2.0))
    plan = search(estimates)
    assert (plan.keep_float, plan.seconds) == (("a", "b", "c", "d"), 4.0)


def test_a_gain_that_is_less_than_estimates_tell():
    fp16 = times(a=1.0, b=1.0, c=1.0, d=1.0)
    int8 = times(b=1.5, c=1.5, d=1.5)
    assert len(search(Estimates(fp16, {"a": 0.999, **int8})).keep_float) == 4
    assert len(search(Estimates(fp16, {"a": 0.9, **int8})).keep_float) == 3


def test_the_time_is_over():
    seen = []

    class Limit:
        def check(self):
            if len(seen) == 3:
                raise OutOfTimeError

    estimates = Estimates(times(a=4.0, b=1.0, c=1.0, d=4.0), times(a=2.0, b=3.0, c=3.0, d=2.0))
    plan = search(estimates, limit=Limit(), on_trial=seen.append)
    assert (plan.complete, plan.keep_float, plan.seconds) == (False, ("b", "c", "d"), 8.0)
    assert tuple(seen) == plan.trials


def test_a_proposal_is_a_start_as_well():
    class Limit:
        def check(self):
            raise OutOfTimeError

    estimates = Estimates(times(a=4.0, b=1.0, c=1.0, d=4.0), times(a=2.0, b=3.0, c=3.0, d=2.0))
    plan = search(estimates, proposed=("b", "c", "x"), limit=Limit())
    # There was no time for anything but the starts.
    assert (plan.complete, plan.keep_float, plan.seconds) == (False, ("b", "c"), 6.0)
    assert plan.trials[2] == SpeedTrial("layers in FP16 by the cost of kernels", 6.0, True, 2)


def test_a_proposal_that_is_a_start_already_is_none():
    estimates = Estimates(times(a=1.0, b=1.0, c=1.0, d=1.0), times(a=2.0, b=2.0, c=2.0, d=2.0))
    plan = search(estimates, proposed=("a", "b", "c", "d"))
    assert [trial.what for trial in plan.trials[:2]] == ["all layers in FP16", "all layers in INT8"]


def test_a_proposal_may_divide_what_is_alike():
    estimates = Estimates(times(a=4.0, b=1.0, c=1.0, d=4.0), times(a=2.0, b=3.0, c=0.5, d=2.0))
    plan = search(estimates, proposed=("b",))
    assert (plan.complete, plan.keep_float, plan.seconds) == (True, ("b",), 5.5)


def test_layers_that_are_alike():
    g = Shaped(quantized=False)
    x = "x"
    for index in range(2):
        x = g.op("Conv", [x, g.weights(8, 8, 3, 3)], f"wide{index}", pads=[1] * 4)
        x = g.op("Conv", [x, g.weights(8, 8, 1, 1)], f"narrow{index}")
    x = g.op("Conv", [x, g.weights(8, 8, 3, 3)], "strided", strides=[2, 2], pads=[1] * 4)
    transposed = g.op("Transpose", [x], "transposed", perm=[0, 1, 3, 2])
    scores = g.op("MatMul", [x, transposed], "scores")
    model = g.model({"x": ["N", 8, 8, 8]}, g.op("MatMul", [scores, x], "mixed"))
    fixed = at_shapes(prepare(load_model(model.SerializeToString())), {"x": (2, 8, 8, 8)})
    names = ("mixed", "wide0", "wide1", "narrow0", "narrow1", "strided", "scores")
    assert group_layers(fixed.graph_model, names) == (
        ("wide0", "wide1"),
        ("narrow0", "narrow1"),
        ("strided",),
        ("scores", "mixed"),
    )
    assert group_layers(fixed.graph_model, ["wide1"]) == (("wide1",),)


#: A GPU whose INT8 is so fast, and whose memory too, that every product gains.
FAST = dataclasses.replace(find_gpu("A10"), bandwidth_gbs=1e6, fp16_tflops=0.001, int8_tops=1.0)


def planner(prepared, ranges, gpu, journal=None, on_trial=lambda _trial: None, **options):
    goal = SpeedGoal(gpu, EstimatorOptions("rtx", progress=False, **options), on_trial)
    return SpeedPlanner(prepared, ranges, goal, journal or Journal())


def test_layers_that_all_gain(rtx, prepared, ranges):
    seen = []
    journal = Journal()
    planned = planner(prepared, ranges, FAST, journal, seen.append)
    plan = planned.plan(TimeLimit())
    assert planned.layers == ("first", "second")
    assert (plan.keep_float, plan.seconds) == ((), plan.int8_seconds)
    assert plan.int8_seconds < plan.fp16_seconds
    assert tuple(seen) == plan.trials and len(journal.timings) == len(plan.trials)
    assert planned.completed(plan, ()) is plan
    slower = planned.completed(plan, ("first",))
    assert slower.keep_float == ("first",) and slower.seconds > plan.seconds


def test_estimates_of_an_interrupted_search_are_used(rtx, prepared, ranges, monkeypatch):
    journal = Journal()
    plan = planner(prepared, ranges, FAST, journal).plan(TimeLimit())
    monkeypatch.setattr(Estimator, "estimate", None)
    assert planner(prepared, ranges, FAST, journal).plan(TimeLimit()) == plan


@pytest.mark.parametrize(
    ("gpu", "options"),
    [
        (dataclasses.replace(FAST, cache_mb=1), {}),
        (FAST, {"profile": {"images": ShapeRange(*[(2, 3, 16, 16)] * 3)}}),
        (FAST, {"build": BuildOptions(tf32=False)}),
    ],
    ids=["GPU", "shapes", "options"],
)
def test_estimates_for_something_else_are_not_used(rtx, prepared, ranges, monkeypatch, gpu, options):
    journal = Journal()
    monkeypatch.setattr(Estimator, "estimate", lambda *_, **__: SimpleNamespace(ends=(1.0, 1.0)))
    assert planner(prepared, ranges, FAST, journal).search(TimeLimit()).seconds == 1.0
    monkeypatch.setattr(Estimator, "estimate", lambda *_, **__: SimpleNamespace(ends=(2.5, 1.5)))
    assert planner(prepared, ranges, FAST, journal).search(TimeLimit()).seconds == 1.0
    assert planner(prepared, ranges, gpu, journal, **options).search(TimeLimit()).seconds == 2.0


@pytest.mark.parametrize(("name", "capability", "nearest"), [("T4", "7.5", "8.0"), ("H100", "9.0", "8.9")])
def test_a_gpu_that_tensorrt_does_not_build_for(rtx, prepared, ranges, name, capability, nearest):
    words = rf"RTX has no INT8 for .* {capability} of {name}, .* {nearest};"
    with pytest.warns(UserWarning, match=words):
        planner(prepared, ranges, find_gpu(name))


def test_no_layer_gains(rtx, prepared, ranges):
    slow = dataclasses.replace(FAST, int8_tops=0.0001)
    with pytest.raises(
        UnsupportedError, match=r"^no layer is estimated to be faster in INT8 than in FP16 on A10"
    ):
        planner(prepared, ranges, slow).plan(TimeLimit())


@pytest.mark.parametrize(("minutes", "left"), [(None, False), (1e-9, True)])
def test_a_search_that_would_end_so_again_leaves_no_checkpoint(
    rtx, prepared, ranges, tmp_path, minutes, left
):
    slow, path = dataclasses.replace(FAST, int8_tops=0.0001), tmp_path / "search.checkpoint"
    journal = JournalFile(path).open({})
    with pytest.raises(UnsupportedError, match="no layer is estimated"):
        planner(prepared, ranges, slow, journal=journal).plan(TimeLimit(minutes))
    assert path.exists() is left


def test_a_time_that_cannot_be_estimated(rtx, prepared, ranges, monkeypatch):
    original = Estimator.estimate

    def unknown(self, *arguments, **options):
        return dataclasses.replace(original(self, *arguments, **options), seconds=None)

    monkeypatch.setattr(Estimator, "estimate", unknown)
    with pytest.raises(UnsupportedError, match="does not list the shapes and types of all tensors"):
        planner(prepared, ranges, FAST).plan(TimeLimit())
