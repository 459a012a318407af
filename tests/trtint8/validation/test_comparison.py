import math

import numpy as np
import pytest

from calibrators.data.inputs import InputSpec
from calibrators.data.opening import open_batches
from calibrators.errors import CalibrationDataError, ModelError
from trtint8.validation.accuracy import ValidatedModel
from trtint8.validation.comparison import compare
from trtint8.validation.significance import Share

INPUTS = (InputSpec("x", np.dtype(np.float32), ("n", 6)),)
PAIRS = (InputSpec("x", np.dtype(np.float32), ("n", 2)),)
LOGITS = np.eye(6, dtype=np.float32) * 2 + np.arange(6, dtype=np.float32) * 0.1


def _compare(judged, labels=None, batch_size=2, **options):
    """One model, or a dict of several, beside one that gives its input back."""
    models = judged if isinstance(judged, dict) else {"INT8": judged}
    return compare(
        [
            ValidatedModel(name, lambda feed, f=f: [f(feed["x"])], f"a test of {name}")
            for name, f in models.items()
        ],
        lambda feed: [feed["x"]],
        ["y"],
        INPUTS,
        open_batches({"x": LOGITS}, INPUTS, batch_size=batch_size, labels=labels),
        progress=False,
        **options,
    )


def _rolled(x):
    return np.roll(x, 1, axis=1)


def test_equal_outputs():
    result = _compare(lambda x: x, labels=np.arange(6))
    assert result.outputs[0].sqnr_db == math.inf
    assert result.outputs[0].cosine == pytest.approx(1.0)
    assert result.outputs[0].max_error == 0.0
    assert result.outputs[0].token_cosine is None
    assert (result.top1, result.top5, result.agreement) == (Share(6, 6), Share(6, 6), Share(6, 6))


@pytest.mark.parametrize("batch_size", [1, 4, 6])
def test_a_tenth_of_the_amplitude_as_noise_is_twenty_decibels(batch_size):
    result = _compare(lambda x: x * np.float32(1.1), batch_size=batch_size)
    assert result.outputs[0].sqnr_db == pytest.approx(20.0, abs=1e-4)
    assert result.outputs[0].max_error == pytest.approx(0.25)  # of 2.5, the largest logit
    assert result.top1 is None and result.agreement == Share(6, 6)


def test_top1_counts_against_labels_and_agreement_against_fp32():
    result = _compare(_rolled, labels=np.array([1, 1, 3, 3, 4, 5]))
    assert result.reference_top1 == Share(4, 6)  # samples 1, 3, 4 and 5
    assert result.top1 == Share(2, 6)  # samples 0 and 2
    assert result.agreement == Share(0, 6)


@pytest.mark.parametrize("batch_size", [1, 4, 6])
def test_the_difference_in_top1_is_paired(batch_size):
    result = _compare(_rolled, labels=np.array([1, 1, 3, 3, 4, 5]), batch_size=batch_size)
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


def test_only_what_was_asked_for_is_measured():
    result = _compare(_rolled, labels=np.arange(6), metrics=["top2"])
    assert [measure.name for measure in result.measures] == ["top2"]
    assert (result.top1, result.agreement, result.outputs) == (None, None, ())
    assert result.measures[0].reference == Share(6, 6)


def test_outputs_of_several_tokens():
    inputs = (InputSpec("x", np.dtype(np.float32), ("n", 2, 2)),)
    wanted = np.array([[[1, 0], [0, 1]], [[3, 4], [0, 0]]], np.float32)
    got = np.array([[[2, 0], [1, 0]], [[4, 3], [0, 0]]], np.float32)
    result = compare(
        [ValidatedModel("INT8", lambda feed: [got[int(feed["x"][0, 0, 0] == 3)][None]], "a test")],
        lambda feed: [feed["x"]],
        ["y"],
        inputs,
        open_batches({"x": wanted}, inputs, batch_size=1),
        metrics=["token_cosine"],
        progress=False,
    )
    # Cosines 1, 0, 24/25 and, of two zero vectors, 1.
    assert result.outputs[0].token_cosine == pytest.approx((1 + 0 + 0.96 + 1) / 4)
    assert result.measures == ()


def test_a_function_is_weighted_by_samples():
    def first_value(feeds, outputs):
        return outputs["y"][0, 0] + 10 * len(feeds["x"])

    result = _compare(lambda x: x + np.float32(1), metrics=[first_value], batch_size=4)
    # Batches of 4 and 2 samples: LOGITS[0, 0] + 40 and LOGITS[4, 0] + 20.
    assert result.measures[0].name == "first_value"
    assert result.measures[0].reference == pytest.approx((4 * 42.0 + 2 * 20.0) / 6)
    assert result.measures[0].value == pytest.approx((4 * 43.0 + 2 * 21.0) / 6)
    (found,) = result.measures[0].comparisons
    assert (found.test, found.pairs, found.unit) == ("bootstrap", 2, "batches")
    assert found.difference == pytest.approx(1.0)


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


def test_one_batch_with_one_value_shows_nothing():
    result = _compare(_rolled, metrics=[lambda feeds, outputs: 1.0], batch_size=6)
    assert result.measures[0].comparisons == ()


def test_what_a_function_changes_changes_no_other_result():
    def scaling(feeds, outputs, reference_outputs):
        feeds["x"] *= 2
        outputs["y"] *= 2
        reference_outputs["y"] *= 2
        return outputs["y"].max(axis=1)

    models = {"INT8": _rolled, "other": lambda x: x * np.float32(3)}
    given = LOGITS.copy()
    result = _compare(models, metrics=[scaling, "sqnr", "agreement"])
    alone = _compare(models, metrics=["sqnr", "agreement"])
    assert result.outputs == alone.outputs and result.agreement == alone.agreement
    assert result.also["other"].outputs == alone.also["other"].outputs
    assert result.also["other"].measures[0].value == pytest.approx(13.5)
    assert (given == LOGITS).all()


def test_the_first_sample_without_a_value_is_named():
    def broken(feeds, outputs):
        return np.where(feeds["x"][:, 4] > 2, np.nan, outputs["y"].max(axis=1))

    with pytest.raises(
        CalibrationDataError, match="metric 'broken' returned NaN for sample 4; return a numb"
    ):
        _compare(lambda x: x, metrics=[broken])


class Peak:
    """The largest value of the data set."""

    name = "peak"

    def __init__(self):
        self.batches = []

    def fresh(self):
        return Peak()

    def update(self, feeds, outputs, labels):
        self.batches.append((outputs["y"].max(), list(labels)))

    def value(self):
        assert [labels for _, labels in self.batches] == [[0, 1, 2, 3], [4, 5]]
        return max(peak for peak, _ in self.batches)


def test_a_metric_over_the_data_set_has_a_state_for_each_model():
    given = Peak()
    result = _compare(lambda x: x * np.float32(2), labels=np.arange(6), metrics=[given], batch_size=4)
    (measure,) = result.measures
    assert (measure.name, measure.value, measure.reference) == ("peak", 5.0, 2.5)
    assert measure.comparisons == () and given.batches == []


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        (["top"], "there is no metric 'top'; there are top1, top5 and so on"),
        (["top0"], "there is no metric 'top0'"),
        (["top1"], "metric 'top1' needs labels and the data has none"),
        (["top6"], "metric 'top6' is always right with 6 classes"),
        (["agreement", "agreement"], "two metrics are named 'agreement'"),
        ([3], "3 is not a metric"),
        ([lambda feeds, outputs: "good"], "metric '<lambda>' returned 'good' for a batch of 2 samples"),
        ([lambda feeds, outputs: np.zeros(3)], r"returned an array of shape \(3,\) for a batch of 2 samples"),
    ],
)
def test_metrics_that_do_not_apply(metrics, message):
    with pytest.raises(CalibrationDataError, match=message):
        _compare(_rolled, metrics=metrics)


def test_outputs_that_are_no_classes():
    inputs = (InputSpec("x", np.dtype(np.float32), ("n", 2, 2)),)

    def run(**options):
        return compare(
            [ValidatedModel("INT8", lambda feed: [feed["x"]], "a test")],
            lambda feed: [feed["x"]],
            ["y"],
            inputs,
            open_batches({"x": np.ones((3, 2, 2), np.float32)}, inputs),
            progress=False,
            **options,
        )

    assert run().measures == () and run().outputs[0].cosine == pytest.approx(1.0)
    with pytest.raises(
        CalibrationDataError, match=r"needs one row of class scores .* 'y' is float32 of shape \(3, 2, 2\)"
    ):
        run(metrics=["agreement"])


@pytest.mark.parametrize("lengths", [(2, 2, 1, 1), (2, 2, 1), (1, 1, 2, 2)])
def test_the_first_batch_decides_whether_rows_are_embeddings(lengths):
    """Rows of scores may have the length 1 by chance, and rows of embeddings another one by mistake."""
    rows = np.array([[0.6, -0.8]], np.float32) * np.array(lengths, np.float32)[:, None]
    result = compare(
        [ValidatedModel("INT8", lambda feed: [feed["x"]], "a test")],
        lambda feed: [feed["x"]],
        ["y"],
        PAIRS,
        open_batches({"x": rows}, PAIRS, batch_size=2),
        progress=False,
    )
    assert result.top1 is None
    assert result.agreement == (None if lengths[0] == 1 else Share(len(lengths), len(lengths)))
    assert result.outputs[0].cosine == pytest.approx(1.0)


def test_labels_of_embeddings_are_not_classes_of_theirs():
    """Of which there are more than an embedding has elements."""
    result = compare(
        [ValidatedModel("INT8", lambda feed: [feed["x"]], "a test")],
        lambda feed: [feed["x"]],
        ["y"],
        PAIRS,
        open_batches({"x": np.array([[0.6, -0.8]] * 4, np.float32)}, PAIRS, labels=np.array([7, 8, 9, 7])),
        progress=False,
    )
    assert result.agreement is None and result.top1 is None
    assert result.chosen.endswith("the labels (int64, 4) are not used")


def test_what_was_chosen_is_said():
    chosen = _compare(_rolled, labels=np.arange(6)).chosen
    assert chosen == (
        "output 'y' (float32, 2x6) is one row of class scores per sample: chose top-1, top-5, agreement, "
        "SQNR, cosine and largest error of every output"
    )
    assert "top-1" not in _compare(_rolled).chosen
    assert _compare(_rolled, metrics=["agreement"]).chosen is None
    # Numbers that are no class indices are not used, and that is said too.
    result = _compare(_rolled, labels=np.linspace(0, 1, 6))
    assert result.top1 is None and result.agreement == Share(0, 6)
    assert result.chosen.endswith(
        "; the labels (float64, 2) are not used; top-1 compares with class indices that are integers of "
        "shape (samples,)"
    )


def _compare_maps(found, labels=None, metrics=None, batch_size=2):
    """A model beside one that gives its input back: three samples of two outputs, maps and their means."""
    inputs = (InputSpec("x", np.dtype(np.float32), ("n", 2, 4, 4)),)
    maps = np.random.default_rng(0).standard_normal((3, 2, 4, 4)).astype(np.float32)
    return compare(
        [ValidatedModel("INT8", lambda feed: [found(feed["x"]), found(feed["x"]).mean()], "a test")],
        lambda feed: [feed["x"], feed["x"].mean()],
        ["maps", "mean"],
        inputs,
        open_batches({"x": maps}, inputs, batch_size=batch_size, labels=labels and labels(maps)),
        metrics=metrics,
        progress=False,
    )


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
    pixels, miou = _compare_maps(
        lambda x: -x, lambda maps: maps.argmax(axis=1), ["pixels", "miou"], batch_size
    ).measures
    assert (pixels.value, pixels.reference, miou.value, miou.reference) == (0.0, 1.0, 0.0, 1.0)


def test_labels_that_fit_the_outputs_of_some_batches_only():
    inputs = (InputSpec("x", np.dtype(np.float32), ("n", 2)),)

    def run(feed):
        return [feed["x"].mean(keepdims=True).ravel()]  # one number per batch

    with pytest.raises(
        CalibrationDataError,
        match="means 'PSNR of 'y' against FP32' for the first batch and 'PSNR of 'y' against the labels' f",
    ):
        compare(
            [ValidatedModel("INT8", run, "a test")],
            run,
            ["y"],
            inputs,
            open_batches(
                {"x": np.eye(2, dtype=np.float32)[[0, 1, 0]]}, inputs, batch_size=2, labels=np.ones(3)
            ),
            metrics=["psnr"],
            progress=False,
        )


def test_a_function_that_sees_the_reference():
    def distance(feeds, outputs, reference_outputs):
        return np.abs(outputs["maps"] - reference_outputs["maps"]).mean(axis=(1, 2, 3))

    (measure,) = _compare_maps(lambda x: x + np.float32(0.5), None, [distance]).measures
    assert measure.value == pytest.approx(0.5, abs=1e-6)
    assert (measure.name, measure.reference, measure.perfect) == ("distance", None, 0.0)


def test_labels_are_checked():
    with pytest.raises(CalibrationDataError, match="label 6 is not one of the model's 6 classes"):
        _compare(_rolled, labels=np.array([0, 1, 2, 3, 4, 6]))
    feeds = [{"x": LOGITS[:4]}, {"x": LOGITS[4:]}]
    with pytest.raises(CalibrationDataError, match="5 labels"):
        compare(
            [ValidatedModel("INT8", lambda feed: [feed["x"]], "a test")],
            lambda feed: [feed["x"]],
            ["y"],
            INPUTS,
            open_batches(feeds, INPUTS, labels=np.arange(5)),
            progress=False,
        )


def test_outputs_of_another_shape():
    with pytest.raises(ModelError, match=r"output 'y' has shape \(2, 5\), the reference's \(2, 6\)"):
        _compare(lambda x: x[:, :5])
