"""The reference runs on the first batches before they are asked for."""

import math
import threading
import warnings

import numpy as np
import onnx
import pytest

import trtint8
from calibrators.data.inputs import DataOptions, InputSpec
from calibrators.data.opening import open_batches
from calibrators.errors import CalibrationDataError, ModelError
from tests.trtint8.detectors import PICKED_FROM, images, plugin_detector, unordered_detector
from tests.trtint8.tuning.networks import uneven
from tests.trtint8.validation.small_models import scaled
from trtint8.cli.main import main
from trtint8.data import DEMO_MODEL
from trtint8.models.model import load_model
from trtint8.models.outputs.joined import OutputPart
from trtint8.models.session import ModelSession, StoppableRuns, open_model
from trtint8.validation import opening
from trtint8.validation.accuracy import SeenSamples, ValidatedModel
from trtint8.validation.comparison import OpenModels, compare_models
from trtint8.validation.opening import Reference, RunningReference
from trtint8.validation.output_shapes import DeclaredOutputs
from trtint8.validation.significance import SameAnswer, Share

INPUTS = (InputSpec("x", np.dtype(np.float32), ("n", 6)),)
PAIRS = (InputSpec("x", np.dtype(np.float32), ("n", 2)),)
LOGITS = np.eye(6, dtype=np.float32) * 2 + np.arange(6, dtype=np.float32) * 0.1


def _fixed(names, arrays):
    """Outputs that have the shapes of arrays, whatever their values, and are measured as wholes."""
    shapes = {name: array.shape for name, array in zip(names, arrays, strict=True)}
    return DeclaredOutputs(shapes, tuple(OutputPart(name, name) for name in names))


def _beside_itself(models, names, inputs, data, labels=None, batch_size=None, **options):
    """Models, each a function of the input's array, beside the input itself or what ``reference`` gives."""
    reference = options.pop("reference", lambda x: [x])
    validated = [
        ValidatedModel(name, lambda feed, f=f: f(feed["x"]), f"a test of {name}")
        for name, f in models.items()
    ]
    metrics, declared = options.pop("metrics", None), options.pop("declared", None)
    declared = declared or _fixed(names, reference(data))
    opened = OpenModels(validated, lambda feed: reference(feed["x"]), inputs, metrics, declared)
    batches = open_batches({"x": data}, inputs, batch_size=batch_size, labels=labels)
    return compare_models(opened, batches, **options)


def _compare(judged, labels=None, batch_size=2, **options):
    """One model, or a dict of several, beside one that gives its input back."""
    models = judged if isinstance(judged, dict) else {"INT8": judged}
    models = {name: lambda x, f=f: [f(x)] for name, f in models.items()}
    return _beside_itself(models, ["y"], INPUTS, LOGITS, labels, batch_size, **options)


def _rolled(x):
    return np.roll(x, 1, axis=1)


def test_equal_outputs():
    result = _compare(lambda x: x, labels=np.arange(6))
    (output,) = result.outputs
    assert (output.sqnr_db, output.max_error, output.token_cosine) == (math.inf, 0.0, None)
    assert output.cosine == pytest.approx(1.0)
    assert (result.top1, result.top5, result.agreement) == (Share(6, 6), Share(6, 6), Share(6, 6))
    result = _compare(_rolled, labels=np.arange(6), metrics=["top2"])  # only what was asked for
    assert [(measure.name, measure.reference) for measure in result.measures] == [("top2", Share(6, 6))]
    assert (result.top1, result.agreement, result.outputs) == (None, None, ())


@pytest.mark.parametrize("batch_size", [1, 4, 6])
def test_a_tenth_of_the_amplitude_as_noise_is_twenty_decibels(batch_size):
    result = _compare(lambda x: x * np.float32(1.1), batch_size=batch_size)
    assert result.outputs[0].sqnr_db == pytest.approx(20.0, abs=1e-4)
    assert result.outputs[0].max_error == pytest.approx(0.25)  # of 2.5, the largest logit
    assert result.top1 is None and result.agreement == Share(6, 6)


@pytest.mark.parametrize("batch_size", [1, 2, 4, 6])
def test_outputs_that_are_the_same_for_all_samples_show_nothing(batch_size):
    def compared(reference):
        return _beside_itself(
            {"INT8": lambda x: [reference(x)]},
            ["y"],
            INPUTS,
            LOGITS,
            None,
            batch_size,
            reference=lambda x: [reference(x)],
        )

    with pytest.warns(UserWarning, match="same outputs for all 6 samples"):
        assert compared(lambda x: np.zeros_like(x)).seen == SeenSamples(1, 6, {})
    with pytest.warns(UserWarning, match="same outputs"):
        assert compared(lambda x: np.full((len(x), 3), 7.0, np.float32)).seen.different == 1
    for one in range(6):  # whichever sample differs
        found = compared(lambda x, one=one: np.float32(x.argmax(1, keepdims=True) == one))
        assert found.seen == SeenSamples(2, 1, {})
    alone = _beside_itself({"INT8": lambda x: [x]}, ["y"], INPUTS, LOGITS[:1])
    assert alone.seen == SeenSamples(1, 1, {})  # nothing tells


@pytest.mark.parametrize("batch_size", [1, 2, 4, 6])
def test_samples_that_repeat_and_values_that_are_no_numbers_are_counted(batch_size):
    def compared(reference, metrics=None, labels=None):
        models = {"INT8": lambda x: [np.nan_to_num(reference(x))]}
        options = {"reference": lambda x: [reference(x)], "metrics": metrics}
        return _beside_itself(models, ["y"], INPUTS, LOGITS, labels, batch_size, **options)

    found = compared(lambda x: np.float32(np.eye(3)[x.argmax(1) // 2]))
    assert found.seen == SeenSamples(3, 2, {})
    with pytest.warns(UserWarning, match="'y' has values that are not numbers for 2 of 6 samples"):
        found = compared(lambda x: np.where(x.argmax(1, keepdims=True) < 2, np.nan, x))
    assert found.seen == SeenSamples(5, 1, {"y": 2})
    # Three pairs of the same samples are three samples.
    pairs = compared(lambda x: np.float32(np.eye(3)[x.argmax(1) // 2]), ["agreement"])
    assert pairs.measures[0].same_answer == SameAnswer(1 / 3, is_beaten=False)
    labels = np.array([0, 0, 0, 0, 1, 2])
    with pytest.warns(UserWarning, match=r"66.67 %, and FP32 has 16.67 %"):
        top1, top2 = compared(lambda x: x, ["top1", "top2"], labels).measures
    assert (top1.same_answer.value, top2.same_answer.value) == (4 / 6, 5 / 6)


@pytest.mark.parametrize("batch_size", [1, 4, 6])
def test_the_difference_in_top1_is_paired(batch_size):
    result = _compare(_rolled, labels=np.array([1, 1, 3, 3, 4, 5]), batch_size=batch_size)
    # FP32 has samples 1, 3, 4 and 5 right, and INT8 samples 0 and 2.
    assert (result.reference_top1, result.top1, result.agreement) == (Share(4, 6), Share(2, 6), Share(0, 6))
    (measure,) = [measure for measure in result.measures if measure.name == "top1"]
    (found,) = measure.comparisons
    assert (found.against, found.gained, found.lost, found.pairs) == ("FP32", 2, 4, 6)
    assert found.difference == pytest.approx(-2 / 6)
    assert found.p_value == pytest.approx(0.6875)  # 2 (1 + 6 + 15) / 64
    assert not found.significant


def test_models_side_by_side_have_the_same_samples():
    result = _compare(
        {"INT8": _rolled, "FP16": lambda x: x, "FP8": _rolled}, labels=np.array([1, 1, 3, 3, 4, 5])
    )
    assert result.judged == "a test of INT8" and list(result.also) == ["FP16", "FP8"]
    assert result.also["FP16"].judged == "a test of FP16"
    assert (result.top1, result.also["FP16"].top1) == (Share(2, 6), Share(4, 6))
    assert result.also["FP8"].measures[0].comparisons == result.measures[0].comparisons
    agreement = {measure.name: measure for measure in result.measures}["agreement"]
    assert agreement.reference is None
    assert [(one.against, one.gained, one.lost) for one in agreement.comparisons] == [
        ("FP16", 0, 6),
        ("FP8", 0, 0),
    ]
    others = {measure.name: measure for measure in result.also["FP16"].measures}
    assert others["agreement"].comparisons == ()


def test_a_function_is_weighted_by_samples():
    def first_value(feeds, outputs):
        return outputs["y"][0, 0] + 10 * len(feeds["x"])

    (found,) = _compare(lambda x: x + np.float32(1), metrics=[first_value], batch_size=4).measures
    # Batches of 4 and 2 samples: LOGITS[0, 0] + 40 and LOGITS[4, 0] + 20.
    assert found.name == "first_value"
    assert found.reference == pytest.approx((4 * 42.0 + 2 * 20.0) / 6)
    assert found.value == pytest.approx((4 * 43.0 + 2 * 21.0) / 6)
    (one,) = found.comparisons
    assert (one.test, one.pairs, one.unit) == ("bootstrap", 2, "batches")
    assert one.difference == pytest.approx(1.0)
    # One batch with one value shows nothing.
    assert _compare(_rolled, metrics=[first_value], batch_size=6).measures[0].comparisons == ()


@pytest.mark.parametrize("batch_size", [1, 4, 6])
def test_a_function_with_a_value_a_sample_does_not_depend_on_the_batches(batch_size):
    def peak(feeds, outputs):
        return outputs["y"].max(axis=1)

    result = _compare(lambda x: x * np.float32(2), metrics=[peak], batch_size=batch_size)
    assert result.measures[0].reference == pytest.approx(2.25)
    assert result.measures[0].value == pytest.approx(4.5)
    (found,) = result.measures[0].comparisons
    assert (found.pairs, found.unit) == (6, "samples")
    assert found.interval == pytest.approx((2.1, 2.4), abs=0.05)
    assert found.significant


@pytest.mark.parametrize(
    ("metrics", "value"),
    [
        (["top"], "'top'"),
        (["top0"], "'top0'"),
        (["top1"], "'top1' needs labels"),
        (["top6"], "'top6' .*6 classes"),
        (["agreement", "agreement"], "two .*'agreement'"),
        ([3], "3 is"),
        ([lambda feeds, outputs: "good"], "'<lambda>' .*'good'"),
        ([lambda feeds, outputs: np.zeros(3)], r"\(3,\)"),
    ],
)
def test_metrics_that_do_not_apply(metrics, value):
    with pytest.raises(CalibrationDataError, match=value):
        _compare(_rolled, metrics=metrics)


def test_outputs_that_are_no_classes():
    inputs = (InputSpec("x", np.dtype(np.float32), ("n", 2, 2)),)
    given = {"INT8": lambda x: [x]}, ["y"], inputs, np.ones((3, 2, 2), np.float32)
    found = _beside_itself(*given)
    assert found.measures == () and found.outputs[0].cosine == pytest.approx(1.0)
    with pytest.raises(CalibrationDataError, match=r"'y' .*\(3, 2, 2\)"):
        _beside_itself(*given, metrics=["agreement"])


@pytest.mark.parametrize("lengths", [(2, 2, 1, 1), (2, 2, 1), (1, 1, 2, 2)])
def test_the_first_batch_decides_whether_rows_are_embeddings(lengths):
    """Rows of scores may have the length 1 by chance, and rows of embeddings another one by mistake."""
    rows = np.array([[0.6, -0.8]], np.float32) * np.array(lengths, np.float32)[:, None]
    result = _beside_itself({"INT8": lambda x: [x]}, ["y"], PAIRS, rows, batch_size=2)
    assert result.top1 is None
    assert result.agreement == (None if lengths[0] == 1 else Share(len(lengths), len(lengths)))
    assert result.outputs[0].cosine == pytest.approx(1.0)
    # Labels are not classes of embeddings, of which there are more than an embedding has elements.
    rows = np.array([[0.6, -0.8]] * 4, np.float32)
    result = _beside_itself({"INT8": lambda x: [x]}, ["y"], PAIRS, rows, np.array([7, 8, 9, 7]))
    assert result.agreement is None and result.top1 is None and "int64, 4" in result.chosen


def test_what_was_chosen_is_said():
    chosen = _compare(_rolled, labels=np.arange(6)).chosen
    assert "'y' (float32, 2x6)" in chosen and "chose top-1, top-5, agreement, SQNR, cosine" in chosen
    assert "top-1" not in _compare(_rolled).chosen
    assert _compare(_rolled, metrics=["agreement"]).chosen is None
    # Numbers that are no class indices are not used, and that is said too.
    result = _compare(_rolled, labels=np.linspace(0, 1, 6))
    assert result.top1 is None and result.agreement == Share(0, 6)
    assert "(float64, 2)" in result.chosen.partition("; ")[2]


def _compare_maps(found, labels=None, metrics=None, batch_size=2):
    """A model beside one that gives its input back: three samples of two outputs, maps and their means."""
    inputs = (InputSpec("x", np.dtype(np.float32), ("n", 2, 4, 4)),)
    maps = np.random.default_rng(0).standard_normal((3, 2, 4, 4)).astype(np.float32)
    models = {"INT8": lambda x: [found(x), found(x).mean()]}
    options = {"reference": lambda x: [x, x.mean()], "metrics": metrics}
    labels = labels and labels(maps)
    return _beside_itself(models, ["maps", "mean"], inputs, maps, labels, batch_size, **options)


def test_outputs_without_a_batch_axis_have_their_fidelity():
    result = _compare_maps(lambda x: x * np.float32(1.1))
    assert [round(output.sqnr_db, 3) for output in result.outputs] == [20.0, 20.0]
    assert result.measures == () and "'maps' (float32, 2x2x4x4) is no row of class scores" in result.chosen


@pytest.mark.parametrize(
    ("labels", "hint"),
    [
        (lambda maps: maps, "; metric psnr compares with them"),
        (lambda maps: maps.argmax(axis=1), "; metrics pixels and miou compare with them"),
        (lambda maps: np.arange(3), ""),
    ],
)
def test_labels_that_are_not_used_by_default(labels, hint):
    assert _compare_maps(lambda x: x, labels).chosen.partition(" are not used")[2] == hint


@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_metrics_with_and_without_labels(batch_size):
    def shifted(x):
        return x + np.float32(0.1)

    (psnr,) = _compare_maps(shifted, None, ["psnr:maps"], batch_size).measures
    assert (psnr.reference, psnr.perfect, psnr.unit) == (None, math.inf, "dB")
    (labelled,) = _compare_maps(shifted, lambda maps: maps - np.float32(0.1), ["psnr"], batch_size).measures
    assert labelled.reference == pytest.approx(psnr.value, abs=0.01)
    assert labelled.value == pytest.approx(labelled.reference - 20 * math.log10(2), abs=0.01)
    assert labelled.comparisons[0].difference == pytest.approx(-20 * math.log10(2), abs=0.01)
    names = ["pixels", "miou"]
    pixels, miou = _compare_maps(lambda x: -x, lambda maps: maps.argmax(axis=1), names, batch_size).measures
    assert (pixels.value, pixels.reference, miou.value, miou.reference) == (0.0, 1.0, 0.0, 1.0)


def test_a_function_that_sees_the_reference():
    def distance(feeds, outputs, reference_outputs):
        return np.abs(outputs["maps"] - reference_outputs["maps"]).mean(axis=(1, 2, 3))

    (measure,) = _compare_maps(lambda x: x + np.float32(0.5), None, [distance]).measures
    assert measure.value == pytest.approx(0.5, abs=1e-6)
    assert (measure.name, measure.reference, measure.perfect) == ("distance", None, 0.0)


def test_labels_that_fit_the_outputs_of_some_batches_only():
    def mean(x):
        return [x.mean(keepdims=True).ravel()]  # one number per batch

    given = {"INT8": mean}, ["y"], PAIRS, np.eye(2, dtype=np.float32)[[0, 1, 0]], np.ones(3), 2
    with pytest.raises(CalibrationDataError, match=r"PSNR of 'y' .*PSNR of 'y'"):
        _beside_itself(*given, reference=mean, metrics=["psnr"])


def test_labels_and_shapes_are_checked():
    with pytest.raises(CalibrationDataError, match=r"label 6 .*6 classes"):
        _compare(_rolled, labels=np.array([0, 1, 2, 3, 4, 6]))
    with pytest.raises(CalibrationDataError, match="5 labels"):  # of 6 samples
        trtint8.validate(scaled(0.5), FEEDS, reference=scaled(1.0), labels=np.zeros(5, int))
    with pytest.raises(ModelError, match=r"'y' .*\(2, 5\).*\(2, 6\)"):
        _compare(lambda x: x[:, :5])


FEEDS = [{"x": np.full((2, 4), value, np.float32)} for value in (1, 2, 3)]


class Recorded:
    """A session that records what it is fed, by the value of the feed, and in which thread."""

    def __init__(self):
        self.opened = open_model(load_model(scaled(2.0)))
        self.runs = []

    def run(self, names, feed, options=None):
        self.runs.append((float(feed["x"].flat[0]), threading.current_thread() is threading.main_thread()))
        return self.opened.session.run(names, feed, options)


def wait_for(running):
    running._ahead.result(60)


@pytest.fixture
def session():
    return Recorded()


@pytest.fixture
def running(session):
    with RunningReference(lambda: ModelSession(session)) as running:
        yield running


def test_batches_run_once_whether_ahead_or_not(session, running):
    running.run_ahead(FEEDS[:2])
    wait_for(running)
    assert session.runs == [(1.0, False), (2.0, False)]
    for feed in FEEDS:
        np.testing.assert_array_equal(running.run(feed)[0], 2 * feed["x"])
    assert session.runs == [(1.0, False), (2.0, False), (3.0, True)]


def test_few_bytes_of_outputs_are_made_ahead(session, running, monkeypatch):
    monkeypatch.setattr(opening, "_KEPT", 0)
    running.run_ahead(FEEDS)
    wait_for(running)
    assert session.runs == [(1.0, False)]


def test_nothing_runs_ahead_once_a_batch_was_asked_for(session, running, monkeypatch):
    gate, run = threading.Event(), session.run

    def slow(*args):
        gate.wait(60)
        return run(*args)

    monkeypatch.setattr(session, "run", slow)
    running.run_ahead(FEEDS)
    asked = threading.Thread(target=running.run, args=(FEEDS[0],))
    asked.start()
    while not running._is_asked:
        pass
    gate.set()
    asked.join(60)
    assert session.runs == [(1.0, False)]


def test_a_batch_that_does_not_fit_is_refused_when_it_is_asked_for(session, running):
    bad = {"x": np.zeros((1, 5), np.float32)}
    running.run_ahead([bad, FEEDS[0]])
    wait_for(running)
    with pytest.raises(CalibrationDataError, match="the model fails on a batch"):
        running.run(bad)
    np.testing.assert_array_equal(running.run(FEEDS[0])[0], 2 * FEEDS[0]["x"])
    assert len(session.runs) == 3


def test_the_run_under_way_is_stopped_where_the_comparison_fails(session):
    """It may take long, and the process does not end before it."""
    gate, ends = threading.Event(), []

    def run(_names, _feed, options):
        gate.wait(60)
        ends.append(options.terminate)
        raise RuntimeError("terminated")

    session.run = run
    with pytest.raises(ModelError), RunningReference(lambda: ModelSession(session)) as running:
        running.run_ahead(FEEDS)
        while running._runs is None:
            pass
        raise ModelError("the other model is invalid")
    gate.set()
    wait_for(running)
    assert ends == [True]


def test_what_cannot_be_opened_or_is_stopped_is_refused():
    def refuse():
        raise ModelError("no kernel")

    with RunningReference(refuse) as running:
        running.run_ahead(FEEDS)
        with pytest.raises(ModelError, match="no kernel"):
            running.session()
    runs, opened = StoppableRuns(), open_model(load_model(scaled(2.0)))
    np.testing.assert_array_equal(opened.run(FEEDS[0], stoppable=runs)[0], 2 * FEEDS[0]["x"])
    runs.stop()
    with pytest.raises(CalibrationDataError, match="terminate"):
        opened.run(FEEDS[0], stoppable=runs)


def test_plugins_are_left_out_and_named():
    whole = load_model(plugin_detector())
    reference = Reference.of(whole)
    assert tuple(reference.declared.shapes) == PICKED_FROM == reference.declared.left_out.sources
    assert "num" in reference.declared.left_out.outputs
    assert reference.model.fingerprint == whole.fingerprint
    batches = list(reference.open_data(images(4), DataOptions(limit=2)))
    assert [list(feed) for feed in batches] == [[spec.name for spec in reference.model.inputs]]
    assert sum(len(array) for feed in batches for array in feed.values()) == 2
    # A model without plugins stays as it is.
    model = load_model(unordered_detector())
    reference = Reference.of(model)
    assert reference.model is model and not reference.declared.left_out.outputs


DATA = np.eye(4, dtype=np.float32)

CALIBRATED = "was calibrated with the samples that it is judged by"


def said(model, data, reference, **options):
    """What a comparison warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trtint8.validate(model, data, reference=reference, **options)
    own = [warning for warning in caught if warning.category is UserWarning]
    assert {warning.filename for warning in own} <= {__file__}
    return [str(warning.message) for warning in own]


@pytest.fixture(scope="module")
def own_images(split):
    return split.calibration_images[:40]


@pytest.fixture(scope="module")
def table(own_images):
    return trtint8.calibrate(DEMO_MODEL, own_images)


@pytest.fixture(scope="module")
def quantized(table):
    return trtint8.quantize(DEMO_MODEL, table)


def test_a_float_model_in_place_of_a_quantized_one(tmp_path, quantized, own_images):
    onnx.save(scaled(0.5), tmp_path / "half.onnx")
    (sentence,) = said(tmp_path / "half.onnx", DATA, scaled(1.0))
    assert "'half.onnx'" in sentence
    assert said(scaled(1.0, "float16"), DATA, scaled(1.0)) == []
    # Only the model that is called INT8 has to be in INT8.
    assert said(quantized, own_images[1:], DEMO_MODEL, also={"float": DEMO_MODEL}) == []


def test_a_quantized_model_in_place_of_the_reference(tmp_path, quantized, own_images):
    onnx.save(quantized, tmp_path / "q.onnx")
    first, second = said(tmp_path / "q.onnx", own_images[1:], tmp_path / "q.onnx")
    assert "reference 'q.onnx' holds Q/DQ pairs" in first
    # The float model that it says it was made from is not itself.
    assert second.startswith("the model 'q.onnx' was not made from the reference 'q.onnx'")


def test_a_reference_that_the_model_was_not_made_from(tmp_path, quantized, own_images):
    other = onnx.load(DEMO_MODEL)
    other.graph.node[0].name = "renamed"
    tensor = other.graph.initializer[0]
    values = onnx.numpy_helper.to_array(tensor) * np.float32(1.001)
    tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    onnx.save(other, tmp_path / "other.onnx")
    onnx.save(quantized, tmp_path / "q.onnx")
    (sentence,) = said(tmp_path / "q.onnx", own_images[1:], tmp_path / "other.onnx")
    assert sentence.startswith("the model 'q.onnx' was not made from the reference 'other.onnx'")
    # It is not known where models come from that other tools made.
    foreign = onnx.load(tmp_path / "q.onnx")
    del foreign.metadata_props[:]
    assert said(foreign, own_images[1:], tmp_path / "other.onnx") == []


def test_what_was_equalized_may_be_compared_with_either_float_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = np.random.default_rng(1).standard_normal((64, 3, 6, 6)).astype(np.float32)
    onnx.save(uneven(), "m.onnx")
    trtint8.calibrate("m.onnx", data, method="mse").save("t.json")
    np.savez("d.npz", x=data)
    assert main(["quantize", "m.onnx", "t.json", "-o", "q.onnx", "--equalize", "d.npz"]) == 0
    for reference in ("m.onnx", "q.float.onnx"):
        assert said("q.onnx", data[1:], reference) == []
        (sentence,) = said("q.onnx", data, reference)
        assert CALIBRATED in sentence


def test_samples_that_the_ranges_were_found_on(tmp_path, quantized, own_images, table):
    (sentence,) = said(quantized, own_images, DEMO_MODEL)
    assert CALIBRATED in sentence and sentence.startswith("the model 'model' ")
    # In another order, too, but not as many others.
    assert CALIBRATED in said(quantized, own_images[::-1], DEMO_MODEL, batch_size=7)[0]
    assert said(quantized, own_images + np.float32(0.01), DEMO_MODEL) == []
    assert said(quantized, own_images[:39], DEMO_MODEL) == []


def test_samples_are_read_once(quantized, own_images):
    passes = []

    def feeds():
        passes.append(None)
        yield from ({"images": own_images[start : start + 8]} for start in range(0, 40, 8))

    # How many samples there are shows only at the end.
    (sentence,) = said(quantized, feeds, DEMO_MODEL)
    assert CALIBRATED in sentence and len(passes) == 1


def test_an_engine_and_the_samples_of_its_table(tmp_path, monkeypatch, rtx, own_images):
    monkeypatch.setattr(opening, "gpu_problem", lambda: "there is none")
    engine = tmp_path / "e.engine"
    trtint8.build_int8_engine(DEMO_MODEL, own_images, engine, target="rtx", keep_int8=["*"])
    (sentence,) = said(engine, own_images, DEMO_MODEL)
    assert sentence.startswith(f"the engine '{engine}' {CALIBRATED}")
    assert said(engine, own_images[:39], DEMO_MODEL) == []
    (tmp_path / "e.table.json").unlink()
    assert said(engine, own_images, DEMO_MODEL) == []
