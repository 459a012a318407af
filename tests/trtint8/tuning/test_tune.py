"""Tuning from end to end, on the demo model with a hot pixel among the calibration data."""

import dataclasses
import json
import shlex
import warnings

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import trtint8
from calibrators.errors import OutputError, TableError
from calibrators.tables.table import CalibrationTable, Provenance
from tests.trtint8.onnx_models import outlier_stream, tied
from tests.trtint8.simulation.opened import parsed
from tests.trtint8.tuning.networks import uneven
from trtint8.auditing.audit import Estimator
from trtint8.auditing.gpus import find_gpu
from trtint8.cli.main import main
from trtint8.data import DEMO_MODEL
from trtint8.quantization.targets import TARGETS, KernelCosts
from trtint8.report.files import find_report_files

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tuned(wild_table, held_out):
    return trtint8.tune(DEMO_MODEL, wild_table, held_out, max_drop=0.5)


def drop(accuracy):
    return accuracy.reference_top1.value - accuracy.top1.value


def test_it_recovers_what_wild_samples_cost(tuned, split):
    lost = drop(tuned.accuracy.also["before"])
    assert lost > 0.3
    assert drop(tuned.accuracy) < 0.2 * lost
    # Nothing was decided on these: the other half of the held-out images was tuned on.
    assert tuned.accuracy.samples < len(split.heldout_images)


def test_the_log_tells_what_was_tried(tuned):
    first, *others = tuned.trials
    assert (first.what, first.taken, first.keep_float) == ("as calibrated", True, 0)
    assert [trial.what for trial in others[:3]] == [
        "ranges chosen by the network's outputs",
        "adaptive rounding",
        "bias correction",
    ]
    taken = [trial.score for trial in tuned.trials if trial.taken and not trial.keep_float]
    assert [score.sqnr_db for score in taken] == sorted(score.sqnr_db for score in taken)


def test_it_shows_itself(tuned):
    assert repr(tuned).startswith("<Tuned: top-1 ") and repr(tuned).endswith(
        "layers in float, within the budget (top1: a drop of at most 0.5 points), but not for certain>"
    )
    assert tuned.verdict == tuned.to_json()["verdict"] == "uncertain" and tuned.keeps_goal
    page = tuned._repr_html_()
    assert ">tuned</th>" in page and ">before</th>" in page and page.count("ranges chosen by") == 1
    pytest.importorskip("pandas", reason="pandas is not installed (pip install 'trtint8[notebook]')")
    assert tuned.to_pandas()["what"].tolist() == [trial.what for trial in tuned.trials]


def test_the_same_seed_gives_the_same_result(tuned, wild_table, held_out):
    again = trtint8.tune(DEMO_MODEL, wild_table, held_out, max_drop=0.5)
    assert again.candidate.table.amax == tuned.candidate.table.amax
    assert again.candidate.keep_float == tuned.candidate.keep_float
    assert again.accuracy == tuned.accuracy


def test_a_budget_that_leaves_nothing_in_int8_is_warned_of():
    images = normal(np.random.default_rng(1), 32, 3, 8, 8)
    with pytest.warns(UserWarning, match="no layer is left in INT8"):
        found = trtint8.tune(maps_of_classes(), images[:16], images[16:], metric="sqnr", minimum=60.0)
    assert found.fits and found.candidate.placement.quantized_nodes == ()


def test_the_files_make_the_same_model_anew(tuned, tmp_path, capsys, held_out):
    written = tuned.save(tmp_path / "t.onnx", model=DEMO_MODEL)
    saved = (tmp_path / "t.onnx").read_bytes()
    log = json.loads(written.log.read_bytes())
    assert log["command"] == written.command
    assert len(log["trials"]) == len(tuned.trials)
    assert main(shlex.split(written.command)[1:]) == 0
    assert (tmp_path / "t.onnx").read_bytes() == saved
    judged = trtint8.validate(tmp_path / "t.onnx", held_out, reference=DEMO_MODEL, progress=False)
    assert judged.top1.value > 0.97


def normal(random, *shape):
    return random.standard_normal(shape).astype(np.float32)


def test_a_budget_that_only_the_samples_tuned_on_keep_is_named(tuned, tmp_path):
    missed = dataclasses.replace(tuned.accuracy.judgement, fits=False, notes=("they miss it",))
    found = dataclasses.replace(tuned, accuracy=dataclasses.replace(tuned.accuracy, judgement=missed))
    assert tuned.fits and tuned.accuracy.judgement.goal == str(tuned.goal)
    words = f", within the budget ({tuned.goal}) on the samples tuned on, not on those held out>"
    assert repr(found).endswith(words)
    assert "they miss it" in found._repr_html_()
    with pytest.warns(UserWarning, match="not shown to keep the budget"):
        found.save(tmp_path / "t.onnx", model=DEMO_MODEL)
    files = find_report_files([tmp_path])
    assert files.warnings[0] == "they miss it"


@pytest.mark.filterwarnings(
    "ignore:on 32 samples", "ignore:.*not shown to keep"
)  # nearly all are of one class
def test_uneven_channels_are_equalized_and_the_float_model_is_kept(tmp_path):
    images = normal(np.random.default_rng(1), 128, 3, 6, 6)
    onnx.save(uneven(), tmp_path / "m.onnx")
    options = {"max_drop": 4.0, "batch_size": 16, "progress": False}
    found = trtint8.tune(tmp_path / "m.onnx", images[:64], images[64:], **options)
    assert found.candidate.remedies[0] == "cross-layer equalization"
    after, before = (one.outputs[0].sqnr_db for one in (found.accuracy, found.accuracy.also["before"]))
    assert after > before + 10
    # Channels that are alike now have a rule for ranges of their own.
    choice = found.candidate.table.choice
    assert choice.sqnr_db[choice.rule] == pytest.approx(after, abs=5)
    written = found.save(tmp_path / "t.onnx", model=tmp_path / "m.onnx")
    assert written.float_model == tmp_path / "t.float.onnx"
    saved = written.model.read_bytes()
    assert main(shlex.split(written.command)[1:]) == 0
    assert written.model.read_bytes() == saved


def test_an_equalized_network_keeps_the_method_of_chosen_ranges():
    images = normal(np.random.default_rng(1), 300, 3, 6, 6)
    options = {"minimum": 3, "metric": "sqnr", "round_weights": False, "progress": False}
    found = trtint8.tune(uneven(), images[:150], images[150:], method="percentile", **options)
    taken = [trial.what for trial in found.trials if trial.taken]
    assert taken[1:3] == ["ranges chosen by the network's outputs", "cross-layer equalization"]
    assert found.candidate.table.method == "auto"


def test_a_result_has_the_warnings_that_were_shown(recwarn):
    """What is tried calibrates with some samples, which may be unlike others among these few."""
    images, samples = (np.random.default_rng(seed).standard_normal((300, 3, 6, 6)) for seed in (1, 2))
    samples[::70] *= 60
    options = {"minimum": 3, "metric": "sqnr", "round_weights": False, "progress": False}
    found = trtint8.tune(uneven(), images.astype(np.float32), samples.astype(np.float32), **options)
    assert {*found.warnings} == {str(one.message) for one in recwarn}


@pytest.mark.filterwarnings("ignore:no layer is left")
@pytest.mark.parametrize(("gain", "taken"), [(-1.0, False), (0.09, False), (0.11, True)])
def test_what_gains_nothing_on_other_samples_is_not_taken(gain, taken, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "trtint8.tuning.search.gain_on_others",
        lambda _start, samples, _calibrate, **_options: asked.append(samples) or gain,
    )
    images = normal(np.random.default_rng(1), 144, 3, 6, 6)
    found = trtint8.tune(
        uneven(), images[:80], images[80:], minimum=60, metric="sqnr", batch_size=16, progress=False
    )
    tried = [trial.what for trial in found.trials]
    assert ("cross-layer equalization" in tried) == taken
    # One quarter finds remedies, one decides, and half of the data judges the result.
    assert len(asked[0]) == 16 and {len(feed["x"]) for feed in asked[0]} == {1}


def maps_of_classes():
    """A small network that gives class scores for each position."""
    text = (
        "in = Conv <pads = [1, 1, 1, 1]> (x, v) relu = Relu (in) scores = Conv <pads = [1, 1, 1, 1]> (relu, "
        "w) "
        "where float[8, 3, 3, 3] v, float[4, 8, 3, 3] w"
    )
    return parsed("float[N, 3, 8, 8] x", text, "float[] scores")


def test_a_network_without_class_scores_needs_no_options():
    images = normal(np.random.default_rng(1), 48, 3, 8, 8)
    goals = []
    options = {"progress": False, "on_goal": goals.append}
    found = trtint8.tune(maps_of_classes(), images[:24], images[24:], **options)
    assert [str(goal) for goal in goals] == ["sqnr: at least 20 dB"] and found.goal == goals[0]
    assert found.fits and found.score.drop is None and found.score.value == found.score.sqnr_db > 20
    assert "is no row of class scores" in found.accuracy.chosen
    assert found.accuracy.samples == 12  # two batches of 12: by default, the data would be a single one


def test_what_has_to_be_certain_leaves_more_in_float():
    images = normal(np.random.default_rng(1), 112, 3, 8, 8)
    options = {"metric": "sqnr", "round_weights": False, "progress": False, "groups": 2}
    found = trtint8.tune(maps_of_classes(), images[:16], images[16:], minimum=20, **options)
    judgement = found.accuracy.judgement
    assert found.verdict == judgement.verdict == "kept"
    low, high = found.score.interval
    assert 20 < low < found.score.value < high
    assert judgement.interval[0] < judgement.value < judgement.interval[1]
    # Between the figure and its lower end, the figure alone keeps the budget.
    options["minimum"] = round((low + found.score.value) / 2, 3)
    plain, sure = (
        trtint8.tune(maps_of_classes(), images[:16], images[16:], certain=certain, **options)
        for certain in (False, True)
    )
    assert plain.fits and plain.candidate.keep_float == ()
    assert sure.fits and sure.candidate.keep_float and sure.score.interval[0] >= options["minimum"]
    assert sure.goal.certain and str(plain.goal) in str(sure.goal) != str(plain.goal)


@pytest.mark.parametrize(
    ("budget", "value"),
    [
        ({"metric": "pixels", "max_drop": 0.0}, "pixels"),
        ({"metric": "miou", "minimum": 100.0}, "miou"),
        ({"metric": "psnr", "max_drop": 0.01}, "psnr"),
        ({"metric": "sqnr", "minimum": 60.0}, None),
        ({"metric": "max_error", "max_drop": 0.01}, None),
        ({"metric": lambda feeds, outputs, reference_outputs: 1.0, "max_drop": 0.0}, "<lambda>"),
    ],
)
@pytest.mark.filterwarnings("ignore:PSNR of")  # the labels are noise
@pytest.mark.filterwarnings("ignore:no layer is left")  # two layers are soon in float
def test_every_metric_is_a_budget(budget, value):
    images = normal(np.random.default_rng(1), 32, 3, 8, 8)
    labels = normal(np.random.default_rng(2), 16, 4, 8, 8)
    data = {"x": images[16:], **({"labels": labels} if value == "psnr" else {})}
    found = trtint8.tune(maps_of_classes(), images[:16], data, batch_size=4, progress=False, **budget)
    assert found.fits and found.accuracy.chosen is None
    assert [measure.name for measure in found.accuracy.measures] == ([] if value is None else [value])


def test_weights_that_are_read_along_two_axes():
    data = np.random.default_rng(0).standard_normal((96, 16)).astype(np.float32)
    found = trtint8.tune(tied(), data[:64], data[64:], metric="agreement", max_drop=20, progress=False)
    assert found.fits and found.accuracy.outputs[0].sqnr_db > 30


@pytest.mark.parametrize(
    ("options", "tried", "remedies"),
    [
        ({}, ["adaptive rounding", "bias correction"], ("adaptive rounding",)),
        ({"round_weights": False}, ["bias correction"], None),
    ],
)
def test_within_the_budget_only_remedies_without_cost_are_tried(table, held_out, options, tried, remedies):
    found = trtint8.tune(DEMO_MODEL, table, held_out, max_drop=1.0, **options)
    # The ranges of `auto` are not chosen again.
    assert [trial.what for trial in found.trials[1:]] == tried
    assert found.candidate.keep_float == ()
    if remedies is not None:
        assert found.candidate.remedies == remedies
        after, before = (one.outputs[0].sqnr_db for one in (found.accuracy, found.accuracy.also["before"]))
        assert after > before + 0.3


def test_layers_in_float_gain_what_ranges_cannot(bare, held_out):
    found = trtint8.tune(DEMO_MODEL, bare, held_out, max_drop=0.5)
    assert found.candidate.table.amax == bare.amax
    assert found.candidate.keep_float
    assert drop(found.accuracy) < 0.05
    assert 0 < found.float_cost <= 1
    # The least arithmetic that was seen to keep the budget, with and without remedies for weights.
    bought = [trial for trial in found.trials if trial.keep_float]
    assert found.float_cost == min(trial.float_cost for trial in bought if trial.score.drop <= 0.5)
    assert all(trial.score.drop <= 0.5 for trial in bought if trial.taken)


def test_a_budget_for_a_function_of_ones_own(wild_table, split):
    seen = []

    def negative_error(feeds, outputs):
        seen.append(len(feeds["images"]))
        return -float(np.abs(next(iter(outputs.values()))).mean())

    found = trtint8.tune(
        DEMO_MODEL, wild_table, split.heldout_images[:64], max_drop=1e9, metric=negative_error, batch_size=16
    )
    assert seen and len(found.accuracy.measures) == 1
    assert found.accuracy.measures[0].name == "negative_error"


def test_without_labels_it_is_agreement(wild_table, split):
    found = trtint8.tune(DEMO_MODEL, wild_table, split.heldout_images[:128], max_drop=2.0)
    assert found.accuracy.top1 is None
    assert found.accuracy.agreement.value > found.accuracy.also["before"].agreement.value


@pytest.mark.filterwarnings("ignore:.*not shown to keep the budget")
def test_what_stays_in_float_becomes_fp16_where_asked(bare, held_out, tmp_path):
    found = trtint8.tune(DEMO_MODEL, bare, held_out, max_drop=0.5, float16=True)
    assert any(node.op_type == "Cast" for node in found.graph_model.graph)
    assert found.graph_model.opset_imports[""] >= 19
    written = found.save(tmp_path / "t.onnx", model=DEMO_MODEL)
    assert found.float16 and written.command.endswith(" --float16 --float32-io")


@pytest.mark.filterwarnings("ignore:.*not shown to keep the budget")
def test_for_tensorrt_for_rtx_convolutions_get_the_form_that_stores_less(
    bare, held_out, tmp_path, monkeypatch
):
    options = {"max_drop": 0.5, "float16": True, "target": "rtx", "checkpoint": tmp_path / "c"}
    # Kernels in which many products come on one byte.
    dear = dataclasses.replace(TARGETS["rtx"], costs_with_float16=(KernelCosts(operations_per_byte=1),))
    monkeypatch.setitem(TARGETS, "rtx", dear)
    found = trtint8.tune(DEMO_MODEL, bare, held_out, **options)
    assert any((node.name or "").endswith("_by_one_scale") for node in found.graph_model.graph)
    written = found.save(tmp_path / "t.onnx", model=DEMO_MODEL)
    assert "--target rtx --keep-int8 '*' --float16 --float32-io" in written.command
    with pytest.raises(trtint8.TableError, match="another"):
        trtint8.tune(DEMO_MODEL, bare, held_out, **options | {"target": "auto", "resume": True})


def test_a_search_with_fp16_is_not_continued_without(table, held_out, tmp_path):
    options = {"max_drop": 5.0, "round_weights": False, "checkpoint": tmp_path / "c"}
    trtint8.tune(DEMO_MODEL, table, held_out, float16=True, **options)
    kept = (tmp_path / "c").read_bytes()
    with pytest.raises(trtint8.TableError, match=r"with another use of FP16 \(True then, False now\)"):
        trtint8.tune(DEMO_MODEL, table, held_out, resume=True, **options)
    assert (tmp_path / "c").read_bytes() == kept


def test_a_table_of_another_model_is_told_by_its_tensors(table, held_out):
    foreign = CalibrationTable({**table.amax, "elsewhere": 1.0}, provenance=Provenance(model="another"))
    with pytest.raises(TableError, match=r"1.*'elsewhere'"):
        trtint8.tune(DEMO_MODEL, foreign, held_out)


def test_nothing_new_is_left_where_writing_fails(tuned, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("trtint8.tuning.tune.write_atomically", full)
    (tmp_path / "t.onnx").write_bytes(b"old")
    with pytest.raises(OutputError, match=r"^cannot write '.*t\.onnx': No space left on device; choose"):
        tuned.save(tmp_path / "t.onnx", model=DEMO_MODEL)
    assert [path.name for path in tmp_path.iterdir()] == ["t.onnx"]


def test_layers_that_are_slower_in_int8_stay_in_fp16(rtx, table, held_out, tmp_path, monkeypatch):
    # Memory so fast that products decide, and INT8 products that are fast.
    gpu = dataclasses.replace(find_gpu("A10"), bandwidth_gbs=1e6, fp16_tflops=0.001, int8_tops=1.0)
    options = {"max_drop": 5.0, "round_weights": False, "target": "rtx"}
    seen, kept = [], {"checkpoint": tmp_path / "c"}
    fast = trtint8.tune(DEMO_MODEL, table, held_out, speed=gpu, on_speed_trial=seen.append, **kept, **options)
    assert fast.complete and fast.speed.trials == tuple(seen)
    assert fast.speed.keep_float == fast.candidate.keep_float
    assert fast.speed.seconds < fast.speed.fp16_seconds
    # What is in float is FP16 without being asked for.
    assert "Cast" in {node.op_type for node in fast.graph_model.graph}
    slow = dataclasses.replace(gpu, int8_tops=0.0001)
    with pytest.raises(trtint8.UnsupportedError, match="no layer is estimated to be faster in INT8"):
        trtint8.tune(DEMO_MODEL, table, held_out, speed=slow, **options)
    monkeypatch.setattr(Estimator, "estimate", None)  # nothing is estimated again
    again = trtint8.tune(DEMO_MODEL, table, held_out, speed=gpu, resume=True, **kept, **options)
    assert again.speed == fast.speed
    assert [trial.what for trial in again.trials] == [trial.what for trial in fast.trials]


def test_tuning_looks_at_every_tensor_for_fp16():
    """Of which those without pairs would overflow unseen."""
    model, samples = outlier_stream((64, 16))
    options = {"metric": "sqnr", "minimum": 10, "round_weights": False, "float16": True, "progress": False}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = trtint8.tune(model, samples, samples, method="minmax", **options)
    types = {value.name: value.dtype for node in found.graph_model.graph for value in node.outputs}
    assert types["wide_out"] == types["stream_out"] == ir.DataType.FLOAT
    assert not any("no range tells" in str(one.message) for one in said)
