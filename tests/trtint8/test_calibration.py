"""Calibration through the API, on the demo model."""

import warnings
from dataclasses import replace

import numpy as np
import onnx
import pytest

import trtint8
import trtint8.calibration as trtint8_calibration
from calibrators.data.feeds import BatchAxes
from calibrators.errors import CalibrationDataError, OutputError, TableError
from calibrators.host.observer import Observer
from calibrators.tables.formats import json
from calibrators.tables.table import CalibrationTable
from tests.calibrators.specs import normal
from tests.calibrators.tables.formats.golden_files import GOLDEN
from tests.trtint8.interruptions import interrupted
from tests.trtint8.onnx_models import Graph, conv_relu_conv
from tests.trtint8.tuning.networks import uneven
from trtint8.cli.main import main
from trtint8.data import DEMO_MODEL


@pytest.fixture
def images(split):
    return split.calibration_images[:40]


def test_it_continues_with_the_same_table_and_removes_the_file(images, tmp_path):
    path = tmp_path / "c"
    interrupted(images, path)
    found = trtint8.calibrate(DEMO_MODEL, images, checkpoint=path, resume=True)
    whole = trtint8.calibrate(DEMO_MODEL, images)
    found.save(tmp_path / "found.json")
    whole.save(tmp_path / "whole.json")
    assert (tmp_path / "found.json").read_bytes() == (tmp_path / "whole.json").read_bytes()
    assert not path.exists()


def test_resume_without_a_file_begins_at_the_beginning(images, tmp_path):
    found = trtint8.calibrate(DEMO_MODEL, images, checkpoint=tmp_path / "c", resume=True)
    assert found.provenance.samples == 40


def test_other_data_or_another_model_is_refused_and_the_file_stays(images, tmp_path):
    path = tmp_path / "c"
    interrupted(images, path)
    options = {"checkpoint": path, "resume": True}
    with pytest.raises(CalibrationDataError, match="are not those that the checkpoint has seen"):
        trtint8.calibrate(DEMO_MODEL, images[::-1], **options)
    other = onnx.load(DEMO_MODEL)
    weight = max(other.graph.initializer, key=lambda tensor: len(tensor.raw_data))
    weight.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weight) * 2, weight.name))
    with pytest.raises(TableError, match="was made with another model"):
        trtint8.calibrate(other, images, **options)
    assert path.exists()


def test_a_place_that_cannot_be_written_is_refused_before_the_run(images, tmp_path):
    with pytest.raises(OutputError, match="does not exist"):
        trtint8.calibrate(DEMO_MODEL, images, checkpoint=tmp_path / "no" / "c")
    with pytest.raises(CalibrationDataError, match="checkpoint_seconds is -1"):
        trtint8.calibrate(DEMO_MODEL, images, checkpoint=tmp_path / "c", checkpoint_seconds=-1)


def test_nothing_is_resumed_without_a_checkpoint(images):
    with pytest.raises(
        CalibrationDataError, match=r"^resume continues from a checkpoint, .*; add checkpoint"
    ):
        trtint8.calibrate(DEMO_MODEL, images, resume=True)


def test_a_model_that_fits_no_message_is_calibrated_from_a_file(images, monkeypatch):
    whole = trtint8.calibrate(DEMO_MODEL, images)
    monkeypatch.setattr("trtint8.models.serialization._LARGEST_INLINE", 1000)
    found = trtint8.calibrate(DEMO_MODEL, images)
    assert found == whole


@pytest.mark.parametrize("batch_size", [1, 7, 120])
def test_the_table_does_not_depend_on_batch_size_or_order(split, batch_size, tmp_path):
    images = split.calibration_images[:120]
    table = trtint8.calibrate(DEMO_MODEL, images)
    images = images[::-1].copy()
    other = trtint8.calibrate(DEMO_MODEL, images, batch_size=batch_size)
    table.save(tmp_path / "a.json")
    other.save(tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def _usual_rows(monkeypatch):
    """Notes for every observer how many samples it may divide among its threads."""
    found, opened = [], Observer.open

    def noted(observer, rows=1):
        if observer._opening is None:
            found.append(rows)
        return opened(observer, rows)

    monkeypatch.setattr(Observer, "open", noted)
    return found


@pytest.mark.parametrize(("batch_size", "rows"), [(None, 32), (7, 7), (100, 32), ("feeds of 5", 5)])
def test_threads_divide_batches_and_the_table_stays(monkeypatch, images, batch_size, rows):
    divided = _usual_rows(monkeypatch)

    def calibrated(threads):
        if batch_size == "feeds of 5":  # which can be read once
            data = ({"images": images[start : start + 5]} for start in range(0, 40, 5))
            return trtint8.calibrate(DEMO_MODEL, data, threads=threads)
        return trtint8.calibrate(DEMO_MODEL, images, batch_size=batch_size, threads=threads)

    assert calibrated(1) == calibrated(3)
    assert divided == [rows, rows]


def test_how_many_samples_run_together_is_found_where_the_size_of_images_is_open(monkeypatch):
    model = conv_relu_conv(quantized=False, size=("height", "width"))
    data = normal(0, 5, 3, 512, 512)
    divided = _usual_rows(monkeypatch)
    trtint8.calibrate(model, data, threads=2)
    assert divided == [4]


def test_calibrate_covers_every_float_tensor_or_only_the_placed_ones(split, table):
    placed = trtint8.calibrate(DEMO_MODEL, split.calibration_images, tensors="placed")
    assert set(placed.amax) < set(table.amax)
    assert all(placed.amax[name] == table.amax[name] for name in placed.amax)
    assert table.amax["images"] == pytest.approx(float(np.abs(split.calibration_images).max()), rel=0.5)


def test_entropys_ranges_are_those_of_tensorrts_own_calibrator(split):
    """The cache that EntropyCalibrator2 of TensorRT 8.6.0 wrote on a GPU (an H200) for the same samples."""
    cache = trtint8.CalibrationTable.load(GOLDEN / "demo_8600.cache")
    table = trtint8.calibrate(DEMO_MODEL, split.calibration_images[:480], method="entropy")
    shared = sorted(cache.amax.keys() & table.amax.keys())
    assert len(shared) == 23
    ratios = np.array([cache.amax[name] / table.amax[name] for name in shared])
    assert 0.99 < np.median(ratios) < 1.02
    assert ratios.min() > 0.85 and ratios.max() < 1.4
    # Of a tensor that is taken whole, half of TensorRT's 2,048 bins is added.
    assert cache.amax["images"] / table.peaks["images"] == pytest.approx(1 + 0.5 / 2048, abs=2e-6)


def _images_with_a_huge_value():
    images = np.random.default_rng(0).random((200, 1, 8, 8), np.float32)
    images[0, 0, 0, 0] = 1000  # one of 12,800 values, and percentile clips one in 10,000
    return images


def test_ranges_that_lose_much_are_warned_of():
    with pytest.warns(UserWarning) as caught:
        table = trtint8.calibrate(DEMO_MODEL, _images_with_a_huge_value(), method="percentile")
    assert [warning.filename for warning in caught] == [__file__] * 2
    of_samples, of_ranges = (str(warning.message) for warning in caught)
    assert "reaches 1000 in 1 of 200 samples (sample 0)" in of_samples
    # It reaches more than one in 10,000 values of what the first convolution gives out.
    assert "'/stem/relu/Relu_output_0' (0.01% clipped, 0.5 dB" in of_ranges
    assert "'images'" not in of_ranges and "method auto or entropy" in of_ranges
    assert table.amax["images"] == pytest.approx(1, rel=1e-3)


def test_the_least_squared_error_that_a_huge_value_chose_is_warned_of():
    with pytest.warns(UserWarning) as caught:
        trtint8.calibrate(DEMO_MODEL, _images_with_a_huge_value(), method="mse")
    assert "0.0 dB where 48.1 dB are possible" in str(caught[-1].message)


def test_a_network_that_no_range_serves_is_warned_of(capsys, tmp_path):
    images = normal(1, 64, 3, 6, 6)
    with pytest.warns(UserWarning, match=r"only 0\.\d dB") as caught:
        table = trtint8.calibrate(uneven(), images)
    assert [warning.filename for warning in caught] == [__file__]
    onnx.save(uneven(), tmp_path / "m.onnx")
    np.save(tmp_path / "d.npy", images)
    command = ["calibrate", *(str(tmp_path / name) for name in ("m.onnx", "d.npy")), "-o"]
    assert main([*command, str(tmp_path / "t.json")]) == 0
    sentence = f"warning: {caught[0].message}"
    assert capsys.readouterr().err.splitlines() == [sentence]
    assert main(["table", "show", str(table.save(tmp_path / "t.json"))]) == 0
    assert capsys.readouterr().err.splitlines()[-1] == sentence


def test_the_range_of_an_input_is_its_largest_magnitude(split):
    table = trtint8.calibrate(DEMO_MODEL, split.calibration_images, method="minmax")
    assert table.amax["images"] == float(np.abs(split.calibration_images).max())


@pytest.mark.filterwarnings("ignore:ONNX Runtime's optimizer")
@pytest.mark.parametrize("method", ["auto", "minmax"])
def test_tensors_whose_type_onnx_does_not_infer_are_observed(method):
    product = onnx.helper.make_node("FusedMatMul", ["x", "w"], ["product"], domain="com.microsoft", transB=1)
    graph = onnx.helper.make_graph(
        [
            product,
            onnx.helper.make_node("Relu", ["product"], ["r"]),
            onnx.helper.make_node("MatMul", ["r", "w"], ["y"]),
        ],
        "g",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", 4])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["N", 4])],
        [onnx.numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")],
    )
    imports = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
    model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=8)
    x = np.linspace(-1, 2, 64, dtype=np.float32).reshape(16, 4)
    table = trtint8.calibrate(model, x, method=method)
    assert table.amax["r"] == pytest.approx(2, rel=0.01)
    assert table.amax["product"] == pytest.approx(2, rel=0.01)
    assert trtint8.quantize(model, table).graph.node


#: 100 steps of 4 sequences: what is summed over time reaches 27 times as far as its steps.
STEPS = np.abs(np.random.default_rng(0).normal(size=(100, 4, 8))).astype(np.float32)
SUMS = float(STEPS.cumsum(0).max())


def summed_over_time():
    """A network over [time, batch, 8], as PyTorch has its sequences."""
    graph = Graph()
    sums = graph.op("CumSum", ["x", graph.constant(np.array(0))], "sums")
    return graph.model({"x": ["t", "n", 8]}, graph.op("MatMul", [sums, graph.weights(8, 4)], "y"))


def calibrated(model, data, *, workers=None, method="minmax", **options):
    executor = trtint8.RayExecutor(workers) if workers else "local"
    return trtint8.calibrate(model, data, method=method, executor=executor, **options)


@pytest.mark.parametrize("workers", [None, 2])
class TestSequencesWithTheTimeFirst:
    @pytest.fixture(autouse=True)
    def opened(self, workers, request):
        if workers:
            request.getfixturevalue("workers_here")
        self.workers = workers

    def test_samples_along_another_axis_of_the_only_input(self, tmp_path):
        np.savez(tmp_path / "d.npz", x=STEPS)
        for data in ({"x": STEPS}, tmp_path / "d.npz"):
            table = calibrated(summed_over_time(), BatchAxes(data, {"x": 1}), workers=self.workers)
            assert table.amax["sums_out"] == pytest.approx(SUMS, rel=1e-3)
            assert table.provenance.samples == 4

    @pytest.mark.parametrize("batch_size", [None, 1])
    def test_arrays_that_are_cut_along_time_are_said(self, batch_size):
        with pytest.warns(UserWarning, match="'y_out'"):
            table = calibrated(summed_over_time(), STEPS, workers=self.workers, batch_size=batch_size)
        assert table.provenance.samples == 100
        assert table.amax["sums_out"] == pytest.approx(float(STEPS.max()), rel=1e-3)

    def test_batches_that_are_asked_for_stay_together(self):
        with pytest.warns(UserWarning, match="each batch of the data counts as one sample"):
            table = calibrated(summed_over_time(), STEPS, workers=self.workers, batch_size=100)
        assert table.amax["sums_out"] == pytest.approx(SUMS, rel=1e-3)
        assert table.provenance.samples == 1

    def test_each_feed_is_one_sample(self):
        feeds = [{"x": STEPS[:, [number]]} for number in range(4)]
        with pytest.warns(UserWarning, match="each batch of the data counts as one sample"):
            table = calibrated(summed_over_time(), feeds, workers=self.workers, method="auto")
        assert table.provenance.samples == max(table.choice.samples.values()) == 4
        assert table.choice.sqnr_db[table.choice.rule] > 35  # that of whole sequences
        assert replace(table, warnings=()) == calibrated(
            summed_over_time(), BatchAxes({"x": STEPS}, {"x": 1}), workers=self.workers, method="auto"
        )


@pytest.mark.parametrize("workers", [None, 2])
@pytest.mark.parametrize("target", [[1, 16, 4], [1, -1, 4]])
def test_a_model_that_was_traced_with_one_sample_gets_one_at_a_time(target, workers, request):
    """More of them fail, or are merged into one."""
    if workers:
        request.getfixturevalue("workers_here")
    graph = Graph()
    merged = graph.op("Reshape", ["x", graph.constant(np.array(target))], "merged")
    sums = graph.op("CumSum", [merged, graph.constant(np.array(1))], "sums")
    model = graph.model({"x": ["n", 8, 8]}, graph.op("MatMul", [sums, graph.weights(4, 4)], "y"))
    x = np.abs(np.random.default_rng(0).normal(size=(32, 8, 8))).astype(np.float32)
    wanted = float(x.reshape(32, 16, 4).cumsum(1).max())
    for given, options, said in [
        (x, {}, True),
        (x, {"batch_size": 1}, target[1] < 0),  # nothing is joined, but what was given may be no batch
        ([{"x": row[np.newaxis]} for row in x], {}, False),
    ]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            table = calibrated(model, given, workers=workers, method="auto", **options)
        assert len(caught) == said, [str(one.message) for one in caught]
        assert table.histograms["sums_out"].amax == pytest.approx(wanted, rel=1e-5)
        assert table.provenance.samples == 32


@pytest.mark.parametrize("method", ["minmax", "auto"])
def test_more_tensors_than_a_table_keeps_whole_are_said_before_the_run(images, tmp_path, method, monkeypatch):
    whole = trtint8.calibrate(DEMO_MODEL, images, method=method)
    for module in (json, trtint8_calibration):
        monkeypatch.setattr(module, "MOST_BYTES_OF_COUNTS", len(whole.histograms) * 2048 * 8 - 1)
    with pytest.warns(UserWarning, match=f"{len(whole.histograms)} tensors are observed, .* of 1024 bins"):
        table = trtint8.calibrate(DEMO_MODEL, images, method=method)
    assert (table.amax, table.peaks) == (whole.amax, whole.peaks)
    assert CalibrationTable.load(table.save(tmp_path / "t.json")) == table
    assert {len(found.counts) for found in table.histograms.values()} == {1024}
    with pytest.warns(UserWarning, match="tensors are observed"), pytest.raises(CalibrationDataError):
        trtint8.calibrate(DEMO_MODEL, images[:0], method=method)
