"""Calibration over Ray that is interrupted and continued, there or in one process."""

import itertools
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest

import trtint8
from calibrators.data.opening import open_batches
from calibrators.errors import CalibrationDataError, TableError
from calibrators.host import observer
from calibrators.host.checkpoint import CALIBRATION, Checkpoint
from calibrators.ray.cluster import RayExecutor
from calibrators.ray.distributed import RayObserver
from tests.calibrators.host.checkpoint_files import document_of
from tests.calibrators.killing import AFTER, BEFORE, kill_at_write
from tests.calibrators.networks import network
from tests.calibrators.specs import floats, normal
from trtint8.cli.main import main
from trtint8.data import DEMO_MODEL, load_digits_split

pytest.importorskip("sklearn", reason="scikit-learn is not installed (pip install 'trtint8[demo]')")

ray = pytest.importorskip("ray", reason="Ray is not installed (pip install 'trtint8[ray]')")

INPUTS = (floats("x", "n", 3),)
TENSORS = ("x", "y", "z")
DATA = normal(5, 60, 3)
IDENTITY = {"model": "abc", "onnxruntime": "1.2"}


def _model():
    """A product; the checkpoint has what its transposition holds only once."""
    weight = normal(6, 3, 4)
    text = "(float[n,3] x) => (float[4,n] z) { y = MatMul(x, w) z = Transpose(y) }"
    return network(text, w=weight).SerializeToString()


def _feeds(data, size, stop=None):
    for start in range(0, len(data), size):
        if stop is not None and start >= stop:
            raise ConnectionError("the disk is gone")
        yield {"x": data[start : start + size]}


def _checkpoint(path):
    return Checkpoint(path, IDENTITY, CALIBRATION, resume=True, seconds=0) if path else None


def _alone(path, feeds):
    batches = open_batches(lambda: feeds, INPUTS)
    alone = observer.Observer(_model(), INPUTS, TENSORS)
    return alone.observe(batches, checkpoint=_checkpoint(path))


def _observer(tensors, **how):
    model = _model()
    executor = RayExecutor(**how)
    return RayObserver(
        nullcontext(model), nullcontext(model), INPUTS, tensors, None, executor, "cpu", None, divides=False
    )


def _over_ray(path, feeds, **how):
    observer = _observer(TENSORS, **how)
    return observer.observe(open_batches(lambda: feeds, INPUTS), checkpoint=_checkpoint(path))


def _samples(path):
    return document_of(path)["progress"]["samples"]


def _same(first, second):
    assert first.histograms == second.histograms
    assert (first.samples, first.data_fingerprint) == (second.samples, second.data_fingerprint)
    assert first.warnings() == second.warnings()


@pytest.fixture(scope="module")
def whole():
    return _alone(None, _feeds(DATA, 8))


@pytest.mark.parametrize("size", [4, 7, 60])
@pytest.mark.parametrize("how", [{"workers": 1, "shard_batches": 3}, {"workers": 3, "shard_batches": 1}])
def test_what_one_process_began_is_continued_over_ray(how, size, whole, workers_here, tmp_path):
    with pytest.raises(ConnectionError):
        _alone(tmp_path / "c", _feeds(DATA, 4, stop=24))
    assert _samples(tmp_path / "c") == 20  # within a batch, and within a shard
    _same(_over_ray(tmp_path / "c", _feeds(DATA, size), **how), whole)


@pytest.mark.parametrize("size", [3, 60])
@pytest.mark.parametrize("continued", [_alone, _over_ray])
def test_what_was_begun_over_ray_is_continued_anywhere(continued, size, whole, workers_here, tmp_path):
    with pytest.raises(ConnectionError):
        _over_ray(tmp_path / "c", _feeds(DATA, 2, stop=50), workers=2, shard_batches=2)
    # The first shards have come back for certain, the last may still have been under way.
    assert 4 <= _samples(tmp_path / "c") <= 48
    _same(continued(tmp_path / "c", _feeds(DATA, size)), whole)


#: A shard is made when the one before is done, so that data which ends early has been counted till then.
ONE = {"workers": 1, "shard_batches": 1}


def test_interrupted_again_and_again_in_turn(whole, workers_here, tmp_path):
    reached = []
    for stop, run in zip((8, 20, 36, 44), itertools.cycle((_alone, partial(_over_ray, **ONE)))):
        with pytest.raises(ConnectionError):
            run(tmp_path / "c", _feeds(DATA, 2, stop))
        reached.append(_samples(tmp_path / "c"))
    assert reached == sorted(reached)
    _same(_over_ray(tmp_path / "c", _feeds(DATA, 4)), whole)


def test_a_finished_checkpoint_counts_nothing_again(whole, workers_here, tmp_path):
    _same(_over_ray(tmp_path / "c", _feeds(DATA, 4)), whole)
    assert _samples(tmp_path / "c") == 60
    before = (tmp_path / "c").read_bytes()
    _same(_over_ray(tmp_path / "c", _feeds(DATA, 5)), whole)
    assert (tmp_path / "c").read_bytes() == before


@pytest.mark.parametrize(
    "data", [DATA + 1, DATA[::-1], DATA[:10], DATA[5:]], ids=["other", "order", "fewer", "moved"]
)
def test_other_data_is_refused(data, workers_here, tmp_path):
    with pytest.raises(ConnectionError):
        _alone(tmp_path / "c", _feeds(DATA, 4, stop=24))
    before = (tmp_path / "c").read_bytes()
    with pytest.raises(CalibrationDataError, match=r"^the first 20 samples of the data are not those that"):
        _over_ray(tmp_path / "c", _feeds(data, 4), shard_batches=1)
    assert (tmp_path / "c").read_bytes() == before


def test_another_set_of_tensors_is_refused(workers_here, tmp_path):
    with pytest.raises(ConnectionError):
        _alone(tmp_path / "c", _feeds(DATA, 4, stop=24))
    observer = _observer(["x"])
    with pytest.raises(TableError, match="is of another set of tensors"):
        observer.observe(open_batches(DATA, INPUTS), checkpoint=_checkpoint(tmp_path / "c"))


def test_through_the_api_and_on_the_command_line(cluster, tmp_path, capsys):
    images = load_digits_split().calibration_images[:40]
    np.save(tmp_path / "d.npy", images)
    output, path = tmp_path / "t.json", tmp_path / "t.json.checkpoint"
    command = ["calibrate", str(DEMO_MODEL), str(tmp_path / "d.npy"), "-o", str(output)]
    assert main(command) == 0
    expected = output.read_bytes()
    name = trtint8.model_inputs(DEMO_MODEL)[0].name

    def feeds():
        yield from ({name: images[start : start + 4]} for start in range(0, 32, 4))
        raise ConnectionError("gone")

    options = {"checkpoint": path, "checkpoint_seconds": 0}
    here = RayExecutor(**ONE)
    with pytest.raises(ConnectionError):
        trtint8.calibrate(DEMO_MODEL, feeds, executor=here, **options)
    assert path.exists()
    capsys.readouterr()
    assert main([*command, "--resume", "--ray"]) == 0
    assert "beginning anew" not in capsys.readouterr().err
    assert output.read_bytes() == expected
    assert not path.exists()

    with pytest.raises(ConnectionError):
        trtint8.calibrate(DEMO_MODEL, feeds, **options)
    found = trtint8.calibrate(DEMO_MODEL, images, executor="ray", resume=True, **options)
    found.save(output)
    assert output.read_bytes() == expected
    assert not path.exists()


def test_a_driver_that_is_killed_while_it_writes_ends_with_the_same_table(cluster, tmp_path):
    model, data = tmp_path / "m.onnx", tmp_path / "d.npy"
    model.write_bytes(_model())
    np.save(data, normal(1, 1000, 3))
    command = ["calibrate", str(model), str(data), "--batch-size", "1", "-o"]
    assert main([*command, str(tmp_path / "whole.json")]) == 0

    output, checkpoint = tmp_path / "killed.json", tmp_path / "killed.json.checkpoint"
    address = ray.get_runtime_context().gcs_address
    often = [output, "--resume", "--checkpoint-seconds", "0"]
    kill_at_write(AFTER, 2, [*command, *often, "--ray", address])
    reached = [_samples(checkpoint)]
    kill_at_write(BEFORE, 3, [*command, *often])
    reached.append(_samples(checkpoint))
    assert 0 < reached[0] < reached[1] < 1000
    assert not output.exists()
    assert main([*command, str(output), "--resume", "--ray"]) == 0
    assert output.read_bytes() == (tmp_path / "whole.json").read_bytes()
    assert not checkpoint.exists()
