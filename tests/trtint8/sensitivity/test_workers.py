"""Measurement over a local Ray cluster: in every field what one process finds, and not further than that."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import trtint8
from calibrators.data.opening import open_batches, open_data
from calibrators.errors import CalibrationDataError, ModelError, TableError
from tests.calibrators.ray.readers import Dying, around
from tests.trtint8.onnx_models import Shaped
from trtint8 import RayExecutor
from trtint8.cli.main import main
from trtint8.data import DEMO_MODEL, load_digits_split
from trtint8.models.model import load_model, prepare
from trtint8.sensitivity import measure

pytest.importorskip("sklearn", reason="scikit-learn is not installed (pip install 'trtint8[demo]')")

pytest.importorskip("ray", reason="Ray is not installed (pip install 'trtint8[ray]')")

#: Ray Data trips over its own deprecations.
rays_own_warnings = pytest.mark.filterwarnings("ignore::DeprecationWarning")

SPLIT = load_digits_split()
IMAGES, LABELS = SPLIT.heldout_images[:200], SPLIT.heldout_labels[:200]


def _measured(table, data=IMAGES, *, model=DEMO_MODEL, labels=LABELS, **options):
    options = {"batch_size": 10, "threads": 1, "progress": False, **options}
    return trtint8.measure_sensitivity(model, table, data, labels=labels, **options)


@pytest.fixture(scope="module")
def table():
    """Ranges with which the figures below hold."""
    return trtint8.calibrate(DEMO_MODEL, SPLIT.calibration_images, method="entropy", progress=False)


@pytest.fixture(scope="module")
def expected(table):
    """Which stops after 70 of 200 samples."""
    found = _measured(table, tolerance_db=2.2)
    assert (found.samples, found.converged) == (70, True)
    return found


def _bytes(found, folder):
    return found.save(folder / "s.json").read_bytes()


def _check_workers(workers, shard_batches, table, expected, tmp_path):
    how = RayExecutor(workers=workers, shard_batches=shard_batches)
    found = _measured(table, tolerance_db=2.2, executor=how)
    assert found == expected
    assert _bytes(found, tmp_path) == _bytes(expected, tmp_path)


@pytest.mark.parametrize(("workers", "shard_batches"), [(1, 3), (2, 50), (3, 1)])
def test_the_result_is_that_of_one_process(workers, shard_batches, workers_here, table, expected, tmp_path):
    _check_workers(workers, shard_batches, table, expected, tmp_path)


def test_the_result_of_other_processes_is_that_of_one(cluster, table, expected, tmp_path):
    _check_workers(2, 1, table, expected, tmp_path)


@pytest.mark.parametrize("options", [{"labels": None}, {"batch_size": None, "keep_float": ["/stem/*"]}])
def test_other_options(options, workers_here, table):
    assert _measured(table, executor="ray", **options) == _measured(table, **options)


def _two_outputs():
    """Outputs of very different magnitudes, of which none is a row of classes."""
    g = Shaped(quantized=False)
    first = g.op("Conv", ["x", g.weights(4, 4, 3, 3), g.weights(4)], "first", pads=[1] * 4)
    second = g.op("Conv", [g.op("Relu", [first], "relu"), g.weights(4, 4, 3, 3)], "second")
    model = g.model({"x": ["N", 4, 6, 6]}, second)
    model.graph.output.append(helper.make_tensor_value_info(first, TensorProto.FLOAT, ["N", 4, 6, 6]))
    return model


def test_outputs_are_weighed_by_the_first_batch_of_all(workers_here):
    model = _two_outputs()
    data = np.random.default_rng(4).standard_normal((60, 4, 6, 6)).astype(np.float32)
    data[:5] *= 7
    ranges = trtint8.calibrate(model, data, progress=False)
    options = {"model": model, "labels": None, "batch_size": 5, "tolerance_db": 0.0}
    found = _measured(ranges, data, executor=RayExecutor(workers=2, shard_batches=2), **options)
    assert found == _measured(ranges, data, **options)
    assert found.quantized.agreement is None and found.samples == 60


def test_what_lies_beyond_the_end_is_nobodys_business(workers_here, table):
    """Samples that one process never sees may be as they like, and so may what would load them."""
    same = np.repeat(IMAGES[:1], 200, axis=0)
    same[70:] = np.nan

    def feeds():
        for start in range(0, 70, 10):
            yield {"images": same[start : start + 10]}
        raise ConnectionError("the disk is gone")

    for data, batch_size in ((same, 10), (feeds, None)):
        how = RayExecutor(workers=2, shard_batches=1)
        options = {"labels": None, "batch_size": batch_size, "tolerance_db": 4.0}
        alone = _measured(table, data, **options)
        assert (alone.samples, alone.converged) == (70, True)
        assert _measured(table, data, executor=how, **options) == alone
    with pytest.raises(ConnectionError, match="the disk is gone"):
        _measured(table, feeds, labels=None, batch_size=None, tolerance_db=0, limit=None, executor="ray")


def test_a_worker_that_is_killed_leaves_no_trace(cluster, table, expected, tmp_path, monkeypatch):
    def open_dying(data, inputs, options):
        shards = open_data(data, inputs, options)
        return around(shards, Dying, tmp_path, 2)

    monkeypatch.setattr("trtint8.api.accuracy.open_data", open_dying)
    (tmp_path / "one").touch()
    how = RayExecutor(workers=2, shard_batches=4)
    assert _measured(table, tolerance_db=2.2, executor=how) == expected
    assert list(tmp_path.iterdir()) == []  # it did die


@rays_own_warnings
def test_a_ray_dataset_with_labels(ray_data, workers_here, table, expected):
    from ray.data.block import BlockAccessor

    rows = [{"images": IMAGES[i : i + 33], "labels": LABELS[i : i + 33]} for i in range(0, 200, 33)]
    dataset = ray_data.from_blocks([BlockAccessor.batch_to_block(one) for one in rows])
    found = _measured(table, dataset, labels=None, tolerance_db=2.2, executor="ray")
    # It does not say how many samples it has, so each of them shows what the layers cost.
    assert found == _measured(table, (dict(row) for row in rows), labels=None, tolerance_db=2.2)
    assert found.quantized.sqnr_db == pytest.approx(expected.quantized.sqnr_db, abs=1e-4)


def test_the_plan_is_told_before_the_work(workers_here, table):
    plans = []
    found = _measured(table, limit=40, executor="ray", on_plan=plans.append)
    (plan,) = plans
    assert (plan.layers, plan.samples) == (len(found.layers), 40)
    assert 0 < plan.seconds_per_sample < 5


@pytest.mark.parametrize(("first", "then"), [("ray", "ray"), ("ray", "local"), ("local", "ray")])
def test_an_interrupted_measurement_goes_on(first, then, workers_here, table, tmp_path, monkeypatch):
    monkeypatch.setattr("trtint8.sensitivity.results._SECONDS", 0.0)
    checkpoint = tmp_path / "c.json"
    options = {"tolerance_db": 0.0, "limit": 100}
    whole = _measured(table, **options)

    def interrupted():
        for start in range(0, 60, 10):
            yield {"images": IMAGES[start : start + 10]}
        raise ConnectionError

    with pytest.raises(ConnectionError):
        _measured(table, interrupted, labels=None, executor=first, checkpoint=checkpoint, **options)
    assert json.loads(checkpoint.read_bytes().rpartition(b"\nsha256:")[0])["progress"]["samples"] == 60
    how = RayExecutor(workers=2, shard_batches=1) if then == "ray" else then
    rest = _measured(table, labels=None, executor=how, checkpoint=checkpoint, **options)
    assert rest == _measured(table, labels=None, **options) != whole
    assert not checkpoint.exists()


def test_a_checkpoint_of_other_samples_or_labels_is_refused(workers_here, table, tmp_path, monkeypatch):
    monkeypatch.setattr("trtint8.sensitivity.results._SECONDS", 0.0)
    checkpoint = tmp_path / "c.json"
    bad = IMAGES.copy()
    bad[40] = np.nan
    with pytest.raises(CalibrationDataError, match="the first in sample 40"):
        _measured(table, bad, executor=RayExecutor(shard_batches=1), checkpoint=checkpoint)
    assert json.loads(checkpoint.read_bytes().rpartition(b"\nsha256:")[0])["progress"]["samples"] == 40
    for data in (IMAGES[::-1], IMAGES[:30]):
        with pytest.raises(CalibrationDataError, match="made with other samples, or in another order"):
            _measured(table, data, labels=None, executor="ray", checkpoint=checkpoint)
    with pytest.raises(TableError, match="made with another batch size "):
        _measured(table, batch_size=20, executor="ray", checkpoint=checkpoint)
    for labels in (LABELS[::-1], None):
        with pytest.raises(
            CalibrationDataError, match="made with other labels, or without any; give the same"
        ):
            _measured(table, labels=labels, executor="ray", checkpoint=checkpoint)
    assert checkpoint.exists()


NAN = IMAGES.copy()
NAN[33, 0, 2, 2] = np.nan


@pytest.mark.parametrize(
    ("data", "labels"),
    [
        (NAN, LABELS),
        (lambda: iter(()), None),
        ([{"images": IMAGES[:20]}, {"images": IMAGES[20:40]}], LABELS[:30]),
        ([{"images": IMAGES[:20]}, [1]], None),
        (IMAGES[:, :, :4], None),
        (IMAGES, LABELS[:9]),
        ("nowhere.npz", None),
    ],
)
def test_errors_are_those_of_one_process(data, labels, workers_here, table):
    sentences = []
    for executor in ("local", RayExecutor(workers=3, shard_batches=1)):
        with pytest.raises(CalibrationDataError) as caught:
            _measured(table, data, labels=labels, executor=executor)
        sentences.append(str(caught.value))
    assert sentences[0] == sentences[1] and len(sentences[0]) > 20


def test_a_large_model_must_be_seen_by_the_workers(workers_here, table, expected, tmp_path, monkeypatch):
    class OnDisk:
        """As where a model is beyond 2 GiB."""

        def __init__(self, graph_model):
            self._path = tmp_path / "model.onnx"
            if (tmp_path / "shared").exists():
                onnx.save(trtint8.models.serialization.to_proto(graph_model), self._path)

        def __enter__(self):
            return self._path

        def __exit__(self, *_error):
            pass

    monkeypatch.setattr(measure, "runnable", OnDisk)
    with pytest.raises(ModelError, match=r"does not see '.*model.onnx', .*; set TMPDIR"):
        _measured(table, executor="ray")
    (tmp_path / "shared").touch()
    assert _measured(table, tolerance_db=2.2, executor="ray") == expected


def test_the_verb(cluster, table, tmp_path, capsys):
    np.savez(tmp_path / "d.npz", images=IMAGES, labels=LABELS)
    table.save(tmp_path / "t.json")
    arguments = ["sensitivity", str(DEMO_MODEL), str(tmp_path / "t.json"), str(tmp_path / "d.npz"), "-o"]
    options = ["--batch-size", "10", "--tolerance", "2.4", "--threads", "1"]
    assert main([*arguments, str(tmp_path / "alone.json"), *options]) == 0
    assert main([*arguments, str(tmp_path / "shared.json"), *options, "--ray"]) == 0
    assert "10 layers, at most 200 samples: about" in capsys.readouterr().err
    found = [Path(tmp_path / name).read_bytes() for name in ("alone.json", "shared.json")]
    assert found[0] == found[1]
    assert not list(tmp_path.glob("*.partial"))
    assert main([*arguments, str(tmp_path / "s.json"), "--ray", "somewhere"]) == 2
    assert "connected to a Ray cluster already" in capsys.readouterr().err


def test_defaults_of_the_function(workers_here, table):
    prepared = prepare(load_model(DEMO_MODEL))
    shards = open_batches(IMAGES, prepared.inputs, batch_size=10, labels=LABELS, limit=70)
    found = measure.measure(prepared, table, shards, executor=RayExecutor(workers=1), progress=False)
    assert found == _measured(table, limit=70)
