"""Engines that are timed on this GPU, and the search that goes by them."""

import pytest

import trtint8
from calibrators.tables.table import CalibrationTable
from tests.gpu.conftest import OPTIONS
from trtint8 import BuildOptions
from trtint8.auditing.audit import EstimatorOptions
from trtint8.data import DEMO_MODEL
from trtint8.engine.profiles import ShapeRange
from trtint8.models.model import load_model, prepare
from trtint8.quantization.placement import place
from trtint8.tuning.journal import Journal, TimeLimit
from trtint8.tuning.speed import SpeedGoal, SpeedPlanner


@pytest.fixture(scope="module")
def planner(device):  # skips without a GPU
    prepared = prepare(load_model(DEMO_MODEL))
    table = CalibrationTable(dict.fromkeys(place(prepared.graph_model).tensors, 4.0))
    (name, shape) = (prepared.inputs[0].name, prepared.inputs[0].shape[1:])
    profile = {name: ShapeRange(*[(64, *shape)] * 3)}
    building = BuildOptions(
        tactic_sources=OPTIONS.tactic_sources,
        optimization_level=OPTIONS.optimization_level,
        timing_cache=OPTIONS.timing_cache,
    )
    goal = SpeedGoal(None, EstimatorOptions("tensorrt", profile, building, progress=False))
    return SpeedPlanner(prepared, table, goal, Journal())


@pytest.mark.filterwarnings("ignore")
def test_engines_are_timed_layer_by_layer(planner):
    with planner._opened_stopwatch() as stopwatch:
        half, int8 = stopwatch.time([frozenset(planner.layers), frozenset()])
    for timing in (half, int8):
        assert 0 < timing.least <= timing.seconds <= timing.most
        assert timing.layers and {*timing.layers} <= {*planner.layers}
        assert sum(timing.layers.values()) < 20 * timing.seconds


@pytest.mark.filterwarnings("ignore")
def test_what_is_found_is_not_slower_than_fp16(planner):
    found = planner.search(TimeLimit(5))
    assert found.source == "measured here" and len(found.trials) <= 12
    assert found.seconds <= found.fp16_seconds
    assert {*found.keep_float} <= {*planner.layers}


@pytest.mark.filterwarnings("ignore")
def test_what_to_expect_of_a_build_is_measured(device, tmp_path):
    del device
    prepared = prepare(load_model(DEMO_MODEL))
    table = CalibrationTable(dict.fromkeys(place(prepared.graph_model).tensors, 4.0))
    options = BuildOptions(
        tactic_sources=OPTIONS.tactic_sources,
        optimization_level=OPTIONS.optimization_level,
        timing_cache=OPTIONS.timing_cache,
    )
    built = trtint8.build_int8_engine(
        DEMO_MODEL, table, tmp_path / "m.engine", options=options, route="explicit", progress=False
    )
    expected = built.expected
    assert expected.source == "measured here" and 0 < expected.seconds[0] <= expected.seconds[1] < 0.1
    assert list(expected.shapes) == [prepared.inputs[0].name]
