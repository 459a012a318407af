"""Random values to take the time with."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators.errors import CalibrationDataError
from tests.trtint8.onnx_models import conv_relu_conv
from tests.trtint8.runtime.timed import REPORT, EngineContext, Engines, Timeline, flat
from trtint8.engine.file import TensorSpec
from trtint8.engine.profiles import ShapeRange
from trtint8.runtime import bench as benchmark_bench
from trtint8.runtime.bench import BenchOptions, Summary, bench_contexts, random_feed, summarize
from trtint8.runtime.bindings import LoadingOptions


def test_statistics_of_one_to_a_hundred():
    shuffled = np.random.default_rng(0).permutation(np.arange(1.0, 101.0))
    assert summarize(shuffled) == Summary(1.0, 100.0, 50.5, 50.5, 90.0, 95.0, 99.0)


def test_percentiles_are_measured_values():
    # A tenth of 5 values, rounded down, is none: the largest stays.
    assert summarize([5, 1, 4, 2, 3]) == Summary(1.0, 5.0, 3.0, 3.0, 5.0, 5.0, 5.0)
    assert summarize(np.arange(20)).p90 == 17.0
    assert summarize([7.5]) == flat(7.5)


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=300))
def test_statistics_are_ordered(values):
    s = summarize(values)
    assert s.min <= s.median <= s.p90 <= s.p95 <= s.p99 <= s.max
    assert {s.p90, s.p95, s.p99} <= set(values)


def test_throughput():
    assert REPORT.throughput == 200
    assert REPORT.samples_per_second == 1600
    assert REPORT.warnings == ()


def test_a_host_that_is_too_slow():
    (warning,) = replace(REPORT, phases={**REPORT.phases, "enqueue": flat(3.5)}).warnings
    assert warning == (
        "int8: the host needs 3.500 ms to enqueue what the GPU computes in 3.000 ms, so it limits the "
        "throughput; use a CUDA graph or a larger batch"
    )


def test_transfers_that_are_too_slow():
    (warning,) = replace(REPORT, phases={**REPORT.phases, "h2d": flat(3.5)}).warnings
    assert warning.startswith(
        "int8: the upload takes 3.500 ms and the computation 3.000 ms; keep the data on"
    )


@pytest.mark.parametrize("transfers", [True, False])
def test_the_loop(transfers):
    timeline = Timeline()
    report = bench_contexts(
        timeline,
        {},
        name="x",
        batch_size=4,
        seconds=1.0,
        warm_up=0.1,
        transfers=transfers,
        clock=timeline.clock,
        cpu_clock=lambda: timeline.calls.count("enqueue") * 0.002,
    )
    step = ["upload", "enqueue", "download"] if transfers else ["enqueue"]
    assert timeline.calls[:2] == ["bind", "upload"]
    assert timeline.calls[2:] == step * (len(timeline.calls[2:]) // len(step))
    # The GPU is the bottleneck: 13 ms an inference with transfers, 10 without.
    busy = 13.0 if transfers else 10.0
    assert report.throughput == pytest.approx(1e3 / busy, rel=0.05)
    assert report.cpu_ms == pytest.approx(2.0)
    assert report.phases["compute"] == flat(10.0)
    assert report.phases["enqueue"].mean == pytest.approx(1.0)
    assert report.phases["latency"].max == pytest.approx(busy)
    if transfers:
        assert (report.phases["h2d"].max, report.phases["d2h"].max) == pytest.approx((2.0, 1.0))
    assert timeline.most_waiting == 3
    assert timeline.waiting == 0


def overlapping(count, **options):
    engines = Engines()
    first, *beside = (EngineContext(engines) for _ in range(count))
    options = {"name": "x", "batch_size": 4, "seconds": 1.0, "warm_up": 0.1, **options}
    return engines, beside, lambda: bench_contexts(first, {}, beside=beside, clock=engines.clock, **options)


def test_copies_overlap_with_the_computation_of_other_inferences():
    engines, _, run = overlapping(3)
    report = run()
    assert report.overlapped
    # 10 ms of computation hide 2 ms of upload and 1 ms of download.
    assert report.throughput == pytest.approx(100, rel=0.05)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(engines.computed))
    assert report.phases["compute"].max == pytest.approx(10.0)
    assert (report.phases["h2d"].median, report.phases["d2h"].max) == pytest.approx((2.0, 1.0))
    assert report.phases["latency"].median == pytest.approx(13.0)


def test_one_context_does_one_thing_after_another():
    _, _, run = overlapping(1)
    report = run()
    assert not report.overlapped
    assert report.throughput == pytest.approx(1e3 / 13, rel=0.05)


def test_without_transfers_there_is_nothing_to_overlap():
    _, _, run = overlapping(3, transfers=False)
    assert not run().overlapped


def test_where_there_is_no_room_for_more_contexts():
    _, beside, run = overlapping(3)
    beside[1].works = False
    report = run()
    assert not report.overlapped
    assert report.throughput == pytest.approx(1e3 / 13, rel=0.05)


IMAGES = TensorSpec("images", "float32", (None, 3, None, None))


IDS = TensorSpec("ids", "int64", (None, 16))


FIXED = TensorSpec("fixed", "float16", (4, 3))


PROFILE = {
    "images": ShapeRange((1, 3, 8, 8), (2, 3, 16, 16), (4, 3, 32, 32)),
    "ids": ShapeRange((1, 16), (2, 16), (4, 16)),
}


def test_random_values_have_the_shapes_of_the_profile():
    feed = random_feed((IMAGES, IDS, FIXED), (PROFILE,), None)
    assert {name: (array.shape, array.dtype.name) for name, array in feed.items()} == {
        "images": ((2, 3, 16, 16), "float32"),
        "ids": ((2, 16), "int64"),
        "fixed": ((4, 3), "float16"),
    }
    assert feed["images"].std() == pytest.approx(1, abs=0.1)
    assert not feed["ids"].any()


def test_random_values_of_types_that_numpy_lacks():
    values = random_feed((TensorSpec("x", "bfloat16", (64, 64)),), (), None)["x"]
    assert values.dtype.name == "bfloat16"
    assert values.astype(np.float32).std() == pytest.approx(1, abs=0.1)


def test_a_batch_size_replaces_dynamic_first_dimensions_only():
    feed = random_feed((IMAGES, FIXED), (PROFILE,), 3)
    assert (feed["images"].shape, feed["fixed"].shape) == ((3, 3, 16, 16), (4, 3))
    assert random_feed((FIXED,), (), 4)["fixed"].shape == (4, 3)


@pytest.mark.parametrize(
    ("inputs", "batch_size", "message"),
    [
        ((FIXED,), 8, "batch_size is 8 but the engine has a fixed batch of 4; leave it out"),
        ((IMAGES,), 0, "batch_size is 0; give a positive integer"),
        (
            (TensorSpec("more", "int32", (None,)),),
            None,
            "no profile says a shape for input 'more'; give data=...",
        ),
    ],
)
def test_shapes_that_no_random_values_can_have(inputs, batch_size, message):
    with pytest.raises(CalibrationDataError) as caught:
        random_feed(inputs, (PROFILE,), batch_size)
    assert str(caught.value) == message


@pytest.mark.parametrize("strongly_typed", [False, True])
def test_a_baseline_is_built_and_loaded_with_the_plugins(monkeypatch, strongly_typed):
    loaded, built = [], []

    def load(source, device, plugins, allow_host_code=False):
        loaded.append((source, device, list(plugins), allow_host_code))
        return SimpleNamespace(profiles=(), flavor=SimpleNamespace(strongly_typed_only=strongly_typed))

    class Noted:
        def __init__(self, _flavor, _inputs, _profiles, *, options):
            built.append(options)

        def run(self, _model):
            return SimpleNamespace(plan=b"plan")

    monkeypatch.setattr(benchmark_bench.Engine, "load", load)
    monkeypatch.setattr(benchmark_bench, "Build", Noted)
    options = BenchOptions(device=1, loading=LoadingOptions(allow_host_code=True, plugins=["p.so"]))
    engines = benchmark_bench._engines(["x.engine"], conv_relu_conv(False), options)
    assert [name for name, _ in engines] == ["x.engine", "FP32", "FP16"]
    assert loaded == [("x.engine", 1, ["p.so"], True), *[(b"plan", 1, ["p.so"], False)] * 2]
    assert [(one.plugins, one.device) for one in built] == [(("p.so",), 1)] * 2
    assert [one.fp16 for one in built] == [False, True]
