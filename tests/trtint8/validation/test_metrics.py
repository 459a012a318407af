import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from calibrators.errors import CalibrationDataError
from trtint8.validation import metrics
from trtint8.validation.batch import Batch, BatchForm
from trtint8.validation.metrics import (
    DetectionAgreement,
    check_metrics,
    layout_note,
    measurands,
    reads_layouts,
    usual_metrics,
)


def zeros(*shape, of=np.float32):
    return np.zeros(shape, of)


def integers(*shape):
    return zeros(*shape or (2, 8, 8), of=np.int64)


def _hits(name, scores, labels=None, reference=None):
    batch = Batch({}, {"y": scores}, {"y": reference}, labels, len(scores))
    (measurand,) = measurands([name], BatchForm.of(batch.outputs, labels, len(scores)))
    meter = measurand.start()
    meter.merge(measurand.measure(batch))
    return meter.value().count


@given(
    arrays(np.float32, (4, 7), elements=st.sampled_from([-1.0, 0.0, 0.5, 2.0])),
    st.lists(st.integers(0, 6), min_size=4, max_size=4),
    st.integers(1, 6),
)
def test_top_k_is_a_stable_sort(scores, labels, k):
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    expected = (order == np.array(labels)[:, None]).any(axis=1).sum()
    assert _hits(f"top{k}", scores, np.array(labels)) == expected


def test_what_is_not_a_number_is_never_right():
    scores = np.array([[np.nan, 1, 0], [0, np.nan, 1]], np.float32)
    assert _hits("top1", scores, np.array([0, 2])) == 1  # not the first: its score is a NaN
    assert _hits("agreement", scores, reference=np.array([[3.0, 2, 1], [1, 2, 3]])) == 1


OUTPUTS = ("sqnr", "cosine", "max_error")


@pytest.mark.parametrize(
    ("shape", "labelled", "names"),
    [
        ((4, 6), True, ("top1", "top5", "agreement")),
        ((4, 5), True, ("top1", "agreement")),
        ((4, 6), False, ("agreement",)),
        ((4, 1), True, ()),
        ((4, 3, 2), True, ()),
        ((4,), True, ()),
    ],
)
def test_the_usual_metrics(shape, labelled, names):
    labels = integers(4) if labelled else None
    assert usual_metrics(BatchForm.of({"y": np.zeros(shape)}, labels, 4)).names == (*names, *OUTPUTS)


@pytest.mark.parametrize(
    ("labels", "hint"),
    [
        (integers(4, 1), True),
        (zeros(4), True),
        (integers(4, 2), False),
    ],
)
def test_class_indices_in_another_form(labels, hint):
    reason = usual_metrics(BatchForm.of({"y": np.zeros((4, 6))}, labels, 4)).reason
    assert reason.endswith("(samples,)") == hint and f"({labels.dtype}, 4" in reason


@pytest.mark.parametrize(
    ("shape", "library", "names"),
    [
        ((2, 10, 64), True, ("map", "map50")),
        ((2, 10, 64), False, ("detections",)),
        ((2, 10, 8, 8), True, ()),  # in no layout of detections
    ],
)
def test_labels_that_are_boxes(shape, library, names, monkeypatch):
    monkeypatch.setattr(metrics, "has_library", lambda: library)
    labels = zeros(2, 3, 5)
    choice = usual_metrics(BatchForm.of({"y": np.zeros(shape, np.float32)}, labels, 2))
    assert choice.names == (*names, *OUTPUTS)
    assert ("MeanAveragePrecision(decode)" in choice.reason) == (not names)
    assert ("map needs" in choice.reason) == (not library)


def test_embeddings_and_cached_outputs_are_no_class_scores():
    choice = usual_metrics(BatchForm.of({"y": np.array([[0.6, -0.8], [-1, 0]], np.float32)}, None, 2))
    assert choice.names == OUTPUTS and "embeddings" in choice.reason
    outputs = {"keys": zeros(2, 7, 4), "y": zeros(2, 3)}
    choice = usual_metrics(BatchForm.of(outputs, None, 2, cached=("keys",)))
    assert choice.names == ("agreement", *OUTPUTS)
    assert choice.reason.startswith("output 'y' (float32, 2x3) ") and "but 'keys'" in choice.reason


@pytest.mark.parametrize("name", ["agreement", "top1", "pixels", "miou", "psnr"])
def test_a_name_without_an_output_means_the_first_one_that_is_not_cached(name):
    maps = np.arange(24, dtype=np.float32).reshape(2, 3, 2, 2)
    rows = np.eye(2, 3, dtype=np.float32)
    shown = rows if name in ("agreement", "top1") else maps
    reference = {"keys": -shown, "y": shown}
    outputs = {"keys": np.roll(shown, 2, axis=1), "y": shown}
    batch = Batch({}, outputs, reference, np.arange(2), 2)
    (measurand,) = measurands([name], BatchForm.of(reference, batch.labels, 2, cached=("keys",)))
    value = measurand.measure(batch).value()
    assert getattr(value, "value", value) == (np.inf if name == "psnr" else 1.0)


@pytest.mark.parametrize(
    ("outputs", "picked", "names"),
    [
        ({"rows": zeros(2, 5, 6)}, ("rows",), ("detections",)),
        ({"map": integers()}, ("map",), ("pixels",)),
        ({"y": zeros(2, 3), "m": integers()}, ("m",), ("pixels:m",)),
        (
            {"top": zeros(2, 5), "of": integers(2, 5)},
            ("top", "of"),
            ("pixels:of",),
        ),
        ({"top": zeros(2, 5)}, ("top",), ()),
        ({"y": zeros(2, 5), "class": integers(2)}, ("class",), ()),
    ],
)
def test_outputs_that_hold_picks(outputs, picked, names):
    choice = usual_metrics(BatchForm.of(outputs, None, 2, picked=picked))
    assert choice.names == (*names, *OUTPUTS)
    assert choice.budget == "sqnr"
    assert choice.reason.endswith("of the tensors that it picks from")


@pytest.mark.parametrize(
    ("labels", "positions", "end"),
    [
        (None, "FP32's", ""),
        (integers(), "the label's", ""),
        (np.zeros((2, 1, 8, 8), np.uint8), "the label's", ""),
        (zeros(2, 5), "FP32's", "the labels (float32, 2x5) are not used"),
    ],
)
def test_words_of_class_maps_say_with_what_they_are_compared(labels, positions, end):
    form = BatchForm.of({"map": integers()}, labels, 2, picked=("map",))
    choice = usual_metrics(form)
    compared = f"positions of 'map' with {positions} class"
    assert "'map' (int64, 2x8x8)" in choice.reason and compared in choice.reason
    assert choice.reason.partition("; ")[2] == end
    (measurand,) = measurands(choice.names, form)
    assert measurand.title == compared
    # Detections that are picked are not compared with maps.
    rows = {"rows": zeros(2, 5, 6)}
    choice = usual_metrics(BatchForm.of(rows, integers(), 2, picked=("rows",)))
    assert choice.names[0] == "detections" and "; the labels (int64, 2x8x8) are not used" in choice.reason


@pytest.mark.parametrize(
    ("asked", "labels", "picked", "reads"),
    [
        (["sqnr", "top1"], None, ("boxes",), False),
        (["sqnr", "map50"], None, (), True),
        (["detections"], None, (), True),
        ([DetectionAgreement()], None, (), True),
        ([DetectionAgreement(len)], None, (), False),
        ([len], None, (), False),
        (None, None, (), False),
        (None, None, ("boxes",), True),
        (None, np.zeros((2, 3, 5)), (), True),
        (None, np.zeros((2, 8, 8)), (), False),  # classes or values of positions
        (None, integers(2), (), False),
    ],
)
def test_whether_detections_are_read_from_outputs_as_they_are(asked, labels, picked, reads):
    assert reads_layouts(asked, labels, picked) is reads


def test_only_a_layout_that_nobody_has_named_is_said():
    form = BatchForm.of({"y": np.zeros((1, 4 + 3, 50), np.float32)}, None, 1)
    assert "'detections:grid'" in layout_note(["sqnr", "detections"], form)
    assert "'detections:grid'" in layout_note([DetectionAgreement()], form)
    assert layout_note(["detections:grid", DetectionAgreement("grid"), "sqnr"], form) is None
    assert not reads_layouts(["map:grid"], None, ())
    assert [one.name for one in measurands(["detections:grid"], form)] == ["detections"]


@pytest.mark.parametrize(
    "names", [["detections:gird"], ["map:"], ["map50:y"], ["sqnr:y"], ["map:grid", "map:rows"]]
)
def test_layouts_that_do_not_exist_are_refused(names):
    with pytest.raises(CalibrationDataError, match=names[0].partition(":")[0]):
        check_metrics(names)
    with pytest.raises(CalibrationDataError, match="'gird'"):
        DetectionAgreement("gird")


_RANDOM = np.random.default_rng(0)


def _logits(classes=10, rows=16):
    return _RANDOM.normal(0, 3, (rows, classes)).astype(np.float32)


def _softmax(classes=10, rows=16):
    exponentials = np.exp(_logits(classes, rows))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def _sigmoid(classes=10, rows=16):
    return 1 / (1 + np.exp(-_logits(classes, rows)))


def _pixels(columns=42, rows=16):
    return (_RANDOM.uniform(0, 192, columns) + _RANDOM.normal(0, 4, (rows, columns))).astype(np.float32)


def _points(rows=16, size=64):
    """Points of an eye: x, y and z in pixels, some of which are below zero."""
    points = np.stack([_RANDOM.uniform(5, size - 5, 71), _RANDOM.normal(32, 6, 71), _RANDOM.normal(0, 4, 71)])
    return (points.T.ravel() + _RANDOM.normal(0, 1, (rows, 213))).astype(np.float32)


_MAP = zeros(16, 1, 8, 8)
_LABELS = np.arange(16) % 10


@pytest.mark.parametrize(
    ("outputs", "labels", "names", "budget"),
    [
        ([_logits()], None, ["agreement"], "agreement"),
        ([_logits()], _LABELS, ["top1", "top5", "agreement"], "top1"),
        ([_softmax()], None, ["agreement"], "agreement"),
        ([np.log(_softmax())], None, ["agreement"], "agreement"),
        ([_softmax().astype(np.float16)], None, ["agreement"], "agreement"),
        ([_softmax(1000)], _LABELS, ["top1", "top5", "agreement"], "top1"),
        ([_sigmoid()], None, [], "sqnr"),
        ([_sigmoid()], _LABELS, ["top1", "top5", "agreement"], "top1"),
        ([_pixels()], None, [], "sqnr"),
        ([_pixels()], _LABELS, ["top1", "top5", "agreement"], "top1"),  # of the only output
        ([_pixels(), _sigmoid(1)], _LABELS, [], "sqnr"),
        ([_pixels(195, 1), _sigmoid(1, 1)], None, [], "sqnr"),
        ([_points(), _pixels(15)], None, [], "sqnr"),
        ([_points(1)], None, [], "sqnr"),
        ([_pixels() / 192], None, [], "sqnr"),
        ([_pixels(), _logits()], None, [], "sqnr"),
        ([_pixels(), _logits()], _LABELS, ["top1:o1", "top5:o1", "agreement:o1"], "top1:o1"),
        ([_pixels(), _softmax()], None, ["agreement:o1"], "agreement:o1"),
        ([_logits(), _MAP], None, [], "sqnr"),
        ([_MAP, _softmax(2)], None, ["agreement:o1"], "agreement:o1"),
        ([_MAP], None, [], "sqnr"),
        ([_logits(), _logits()], None, ["agreement_all", "agreement", "agreement:o1"], "agreement_all"),
        (
            [_softmax(11)] * 5,
            None,
            ["agreement_all", "agreement", *(f"agreement:o{number}" for number in range(1, 5))],
            "agreement_all",
        ),
        (
            [_logits(), _softmax(3)],
            _LABELS,
            ["top1", "top5", "agreement_all", "agreement", "agreement:o1"],
            "top1",
        ),
        ([np.full((16, 10), np.nan, np.float32)], None, ["agreement"], "agreement"),
    ],
)
def test_class_scores_are_told_from_other_numbers(outputs, labels, names, budget):
    arrays = {f"o{number}": array for number, array in enumerate(outputs)}
    form = BatchForm.of(arrays, labels if labels is None else labels[: len(outputs[0])], len(outputs[0]))
    choice = usual_metrics(form)
    assert (choice.names, choice.budget) == ((*names, *OUTPUTS), budget)
    assert [one.name for one in measurands(choice.names, form)] == names
    tables = [name for name, array in arrays.items() if array.ndim == 2 and array.shape[1] > 1]
    assert ("agreement" in choice.reason) == bool(tables)  # what would take it for class scores


def test_the_same_class_in_all_outputs():
    reference = {"a": np.eye(4, dtype=np.float32), "b": np.eye(4, dtype=np.float32)}
    outputs = {"a": reference["a"][[0, 1, 2, 0]], "b": reference["b"][[0, 2, 2, 3]]}
    form = BatchForm.of(reference, None, 4)
    found = [one.measure(Batch({}, outputs, reference, None, 4)).value() for one in measurands(NAMED, form)]
    assert [share.count for share in found] == [2, 3, 3]
    with pytest.raises(CalibrationDataError, match="agreement_all"):
        measurands(["agreement_all"], BatchForm.of({"o": _MAP}, None, 16))


NAMED = ["agreement_all", "agreement", "agreement:b"]
