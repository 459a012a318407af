"""What the four calibrators have in common, without TensorRT; tests/bindings has the real bindings."""

import contextlib

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from calibrators.data.inputs import InputSpec
from calibrators.data.samples import SampleSizes
from calibrators.errors import CalibrationDataError, OutputError, TableError, UnsupportedError
from calibrators.tensorrt import calibrator
from calibrators.tensorrt.calibrator import Calibrator, ServedBuild, State
from tests.host_device import HostDevice, read
from tests.trtint8.onnx_models import normal

INPUTS = (InputSpec("x", np.dtype(np.float32), ("n", 3)),)
DATA = normal(8, 3)
CACHE = b"TRT-8601-EntropyCalibration2\nx: 3c010204\n"


class Entropy(Calibrator):
    algorithm = "EntropyCalibration2"
    tensorrt_version = "8.6.1"


def make(data=DATA, inputs=INPUTS, device=None, **options):
    options = {"batch_size": 4, **options}
    return Entropy(data, inputs, device=device or HostDevice(), **options)


def calibrate(calibrator, cache=CACHE):
    """What TensorRT does; returns the batches."""
    if calibrator.read_calibration_cache() is not None:
        return []
    seen = []
    while (addresses := calibrator.get_batch(["x"])) is not None:
        seen.append(read(addresses[0], np.float32, (4, 3)))
    calibrator.write_calibration_cache(memoryview(cache))
    return seen


def test_batches_arrive_and_the_result_is_a_table():
    device = HostDevice()
    calibrator = make(device=device)
    assert calibrator.get_batch_size() == 4
    assert_array_equal(np.concatenate(calibrate(calibrator)), DATA)
    calibrator.raise_failure()
    assert calibrator.batches == 2
    assert calibrator.table.scale("x") == np.frombuffer(bytes.fromhex("0402013c"), "<f4")[0]
    assert calibrator.table.provenance.samples == 8
    assert not device.live


def test_the_table_keeps_the_sizes_that_the_model_leaves_open(tmp_path):
    inputs = (InputSpec("x", np.dtype(np.float32), ("n", "width")),)
    calibrator = make(inputs=inputs, cache=tmp_path / "c.cache")
    assert calibrator.input_sizes() == {"x": SampleSizes((3,), (3,))}
    calibrate(calibrator)
    again = make(inputs=inputs, cache=tmp_path / "c.cache")
    assert calibrate(again) == []
    for one in (calibrator, again):
        assert one.table.provenance.input_sizes == {"x": SampleSizes((3,), (3,))}
    without_data = make(None, (), cache=tmp_path / "c.cache")
    assert without_data.input_sizes() == make().input_sizes() == {}


def test_what_is_found_in_the_thread_that_reads_names_the_line_of_the_user():
    calibrator = make(DATA[:6])
    with pytest.warns(UserWarning, match="left out the last 2 samples") as caught:
        calibrate(calibrator)
    (warning,) = caught
    assert warning.filename == __file__


def test_the_data_can_be_read_a_second_time():
    calibrator = make()
    first = calibrate(calibrator)
    assert_array_equal(calibrate(calibrator), first)


def test_the_first_failure_is_kept_and_no_cache_is_written(tmp_path):
    def feeds():
        yield {"x": DATA[:4]}
        raise ConnectionError("the disk is gone")

    calibrator = make(feeds, batch_size=None, cache=tmp_path / "c.cache")
    assert len(calibrate(calibrator)) == 1
    assert not (tmp_path / "c.cache").exists()
    assert calibrator.table is None
    build_error = RuntimeError("TensorRT failed")
    with pytest.raises(ConnectionError, match="the disk is gone") as raised:
        calibrator.raise_failure(build_error)
    assert raised.value.__cause__ is build_error


def test_cancelling_ends_the_data():
    calibrator, cancelled = make(), []
    calibrator.bind(ServedBuild(cancelled=lambda: bool(cancelled)))
    assert calibrator.get_batch(["x"]) is not None
    cancelled.append("Ctrl-C")
    assert calibrator.get_batch(["x"]) is None
    with pytest.raises(KeyboardInterrupt):
        calibrator.raise_failure()


def test_an_input_that_the_data_lacks():
    calibrator = make()
    assert calibrator.get_batch(["y"]) is None
    with pytest.raises(CalibrationDataError, match="TensorRT asks for the input 'y', and the data has 'x'"):
        calibrator.raise_failure()


def test_a_builder_that_works_in_another_context():
    device = HostDevice()
    device.elsewhere = "another context is current"
    calibrator = make(device=device)
    assert calibrator.get_batch(["x"]) is None
    assert device.uploads == 0 and not device.live
    with pytest.raises(UnsupportedError, match="TensorRT cannot read the batches: another context is curr"):
        calibrator.raise_failure()


def test_a_cache_is_written_and_read_again(tmp_path):
    path = tmp_path / "c.cache"
    calibrate(make(cache=path))
    assert path.read_bytes() == CACHE
    again = make(cache=path)
    assert calibrate(again) == []
    assert again.read_calibration_cache() == CACHE
    assert again.table.amax.keys() == {"x"}
    alone = make(None, (), cache=path)
    assert alone.read_calibration_cache() == CACHE


def test_a_stale_cache_is_refused_or_made_again(tmp_path):
    path = tmp_path / "c.cache"
    calibrate(make(cache=path))
    calibrator = make(DATA + 1, cache=path)
    assert calibrator.read_calibration_cache() is None
    with pytest.raises(TableError, match="is stale: data"):
        calibrator.raise_failure()
    calibrator = make(DATA + 1, cache=path, stale="recalibrate")
    with pytest.warns(UserWarning, match="calibrating again: .* is stale"):
        assert len(calibrate(calibrator)) == 2
    calibrator.raise_failure()


def test_the_cache_of_one_model_is_stale_for_the_next_that_a_calibrator_is_built_with(tmp_path):
    calibrator = make(cache=tmp_path / "c.cache")
    calibrator.bind(ServedBuild("one"))
    calibrate(calibrator)
    assert calibrator.table.provenance.model == "one"
    with pytest.raises(TableError, match="is stale: model one instead of two"):
        calibrator.bind(ServedBuild("two"))
    assert calibrator.table is None
    # What the user says of the model stands.
    named = make(cache=tmp_path / "n.cache", model_fingerprint="named")
    named.bind(ServedBuild("one"))
    calibrate(named)
    named.bind(ServedBuild("two"))
    assert named.table.provenance.model == "named"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"data": None}, "nothing to calibrate with"),
        ({"data": None, "inputs": (), "cache": "c" * 300}, "nothing to calibrate with"),
        ({"data": None, "inputs": (), "cache": 5}, "cache is given as int"),
        ({"inputs": ()}, "inputs="),
        ({"num_batches": 0}, "num_batches is 0"),
        ({"last_batch": "Pad"}, "last_batch is 'Pad'; .*drop, pad, refuse"),
        ({"stale": "ignore"}, "stale is 'ignore'; .*refuse, recalibrate"),
    ],
)
def test_options_that_make_no_sense(arguments, named):
    with pytest.raises(CalibrationDataError, match=named):
        make(**arguments)


def test_a_finished_cache_is_used_where_nothing_can_be_written(tmp_path, monkeypatch):
    """As in the read-only image of a container."""
    calibrate(make(cache=tmp_path / "c.cache"))
    monkeypatch.setattr("calibrators.tensorrt.calibrator.check_writable", lambda path: pytest.fail("written"))
    for again in (make(cache=tmp_path / "c.cache"), make(None, (), cache=tmp_path / "c.cache")):
        again.prepare()
        assert again.read_calibration_cache() == CACHE
        again.raise_failure()


def test_a_damaged_sidecar_is_refused_before_anything_is_calibrated_again(tmp_path):
    """What is there may be somebody's; it would be found when the calibration is done."""
    calibrate(make(cache=tmp_path / "c.cache"))
    (tmp_path / "c.cache.json").write_text("{")
    again = make(cache=tmp_path / "c.cache", stale="recalibrate")
    with pytest.raises(OutputError, match=r"c\.cache\.json', the sidecar of the cache .* is something else"):
        again.prepare()
    assert again.batches == 0


@pytest.mark.parametrize("batches", [1, 2])
def test_a_cache_of_a_part_of_the_data_is_not_kept(batches, tmp_path):
    """A subclass of a user's fails, or gives nothing more, which TensorRT takes for the end of the data."""
    calibrator = make(np.concatenate([DATA, DATA]), cache=tmp_path / "c.cache")
    assert calibrator.read_calibration_cache() is None
    for _ in range(batches):
        calibrator.get_batch(["x"])
    calibrator.write_calibration_cache(memoryview(CACHE))
    with pytest.raises(CalibrationDataError, match=f"batch {batches}, .*limit or num_batches"):
        calibrator.raise_failure()
    assert list(tmp_path.iterdir()) == [] and calibrator.table is None


def test_a_build_that_was_given_up_leaves_nothing_on_the_gpu():
    device = HostDevice()
    calibrator = make(device=device)
    assert calibrator.get_batch(["x"]) is not None
    assert device.live
    calibrator.prepare()
    assert not device.live


def test_a_cache_of_an_unknown_model_is_not_taken_for_a_known_one(tmp_path):
    calibrate(make(cache=tmp_path / "c.cache"))
    known = make(cache=tmp_path / "c.cache", model_fingerprint="abc")
    with pytest.raises(TableError, match="is stale: of an unknown model instead of abc; calibrate again"):
        known.prepare()
    make(cache=tmp_path / "c.cache").prepare()


def test_a_calibrator_is_told_once_what_build_it_serves(tmp_path):
    """The types of a network are filled in when it is parsed. Nothing of one build is left in the next."""
    ids = (InputSpec("x", np.dtype(np.int64), ("n", 3)),)
    calibrator = make(np.arange(24).reshape(8, 3), ids, cache=tmp_path / "c.cache")
    dtypes = {}
    calibrator.bind(ServedBuild("one", before_fusion=True, network_dtypes=dtypes))
    dtypes["x"] = np.dtype(np.int32)
    (address,) = calibrator.get_batch(["x"])
    assert_array_equal(read(address, np.int32, (4, 3)), np.arange(12).reshape(4, 3))
    assert calibrator.before_fusion and calibrator.network_dtypes == {"x": np.dtype(np.int32)}
    calibrator.bind(ServedBuild("one"))
    (address,) = calibrator.get_batch(["x"])
    assert_array_equal(read(address, np.int64, (4, 3)), np.arange(12).reshape(4, 3))
    assert not calibrator.before_fusion and calibrator.network_dtypes == {}


def test_a_builder_of_ones_own_may_say_it_by_attributes():
    calibrator = make()
    calibrator.network_dtypes = {"x": np.dtype(np.float16)}
    calibrator.before_fusion = True
    calibrator.built_model = "one"
    calibrator.prepare()
    (address,) = calibrator.get_batch(["x"])
    assert_array_equal(read(address, np.float16, (4, 3)), DATA[:4].astype(np.float16))
    assert calibrator.before_fusion and calibrator.built_model == "one"
    calibrator.cancelled = lambda: True
    assert calibrator.get_batch(["x"]) is None
    with pytest.raises(KeyboardInterrupt):
        calibrator.raise_failure()


def test_the_states_of_a_calibrator():
    calibrator = make()
    seen = [calibrator.state]
    calibrator.bind(ServedBuild())
    for _ in range(5):
        seen.append(calibrator.state)
        calibrator.get_batch(["x"])
    assert seen == [State.NEW, State.READY, State.FEEDING, State.FEEDING, State.FED, State.FEEDING_AGAIN]
    calibrator.get_batch(["y"])
    calibrator.bind(ServedBuild())
    assert calibrator.get_batch(["y"]) is None
    assert calibrator.state is State.FAILED
    calibrator.bind(ServedBuild())
    assert calibrator.state is State.READY and calibrator.failure is None
    # What a failure before the first batch has read is not lost.
    assert calibrate(calibrator) and calibrator.state is State.FED


@pytest.mark.parametrize("as_batches", [False, True])
def test_a_last_batch_that_does_not_fill_the_models_fixed_one(as_batches):
    """Data for a fixed batch is read in whole batches otherwise, and the choice would have no effect."""
    fixed = (InputSpec("x", np.dtype(np.float32), (4, 3)),)
    part = DATA[:6]
    data = [{"x": part[:4]}, {"x": part[4:]}] if as_batches else part

    padding = make(data, fixed, batch_size=None, last_batch="pad")
    with pytest.warns(UserWarning, match="repeated the last 2 samples to fill a batch of 4"):
        seen = np.concatenate(calibrate(padding))
    padding.raise_failure()
    assert_array_equal(seen, np.concatenate([part, part[4:]]))

    refusing = make(data, fixed, batch_size=None, last_batch="refuse")
    with pytest.raises(CalibrationDataError, match="the last batch has 2 of 4 samples; choose last_batch="):
        refusing.prepare()
        calibrate(refusing)
        refusing.raise_failure()


def test_ours_stays_and_others_get_its_methods(tmp_path):
    (tmp_path / "m.cache").touch()
    ours = Calibrator(cache=tmp_path / "m.cache", device=HostDevice())
    assert calibrator.as_any_calibrator(ours) is ours.implementation is ours
    theirs = object()
    adapted = calibrator.as_any_calibrator(theirs)
    assert adapted.implementation is theirs
    for one in (ours, adapted):
        one.raise_failure(None)
        one.close()
    adapted.bind(ServedBuild("model", before_fusion=True))
    assert adapted.was_asked and not ours.was_asked
    assert (adapted.table, adapted.shapes(), adapted.input_sizes()) == (None, None, {})


@pytest.mark.parametrize(("current", "known"), [(None, False), (1, True)])
def test_where_others_allocate(monkeypatch, current, known):
    monkeypatch.setattr(calibrator, "current_device", lambda: current)
    adapted = calibrator.ForeignCalibrator(object())
    assert adapted.device_index == current
    assert isinstance(adapted.context(), contextlib.nullcontext) is known
