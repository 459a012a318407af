"""Data in two halves."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators.data.inputs import DataOptions, InputSpec
from calibrators.data.opening import open_batches, open_data
from calibrators.errors import CalibrationDataError
from tests.trtint8.detectors import CLASSES as KINDS
from tests.trtint8.detectors import Detector, images
from tests.trtint8.simulation.opened import parsed
from trtint8.data import DEMO_MODEL
from trtint8.models.model import load_model, prepare
from trtint8.tuning.samples import (
    begin_judging,
    check_judging,
    divide,
    first_form,
    head,
    smaller_batch_size,
    split,
)
from trtint8.validation.budget import Budget

SPEC = [InputSpec("x", np.dtype(np.float32), ("N", 2))]


def batches_of(count, size, labels=True):
    array = np.arange(count, dtype=np.float32)[:, None].repeat(2, axis=1)
    data = {"x": array, **({"labels": np.arange(count)} if labels else {})}
    return open_batches(data, SPEC, batch_size=size)


def seen(batches):
    return [int(value) for feed in batches for value in feed["x"][:, 0]]


@given(st.integers(2, 60), st.integers(1, 10))
def test_every_sample_is_in_one_half_with_its_label(count, size):
    if count <= size:
        return
    halves = split(batches_of(count, size))
    samples = [seen(half) for half in halves]
    assert sorted(samples[0] + samples[1]) == list(range(count))
    for half, ids in zip(halves, samples, strict=True):
        assert ids == half.labels.tolist()
        assert [half.name_of(row) for row in range(len(ids))] == [f"sample {number}" for number in ids]
        assert half.num_samples == len(ids) > 0
        assert seen(half) == ids  # again and again


def test_batches_take_turns():
    tuned_on, judged_on = split(batches_of(7, 2))
    assert (seen(tuned_on), seen(judged_on)) == ([0, 1, 4, 5], [2, 3, 6])


def test_feed_dicts_of_an_iterable_take_turns():
    feeds = [{"x": np.full((1, 2), index, np.float32)} for index in range(5)]
    tuned_on, judged_on = split(open_batches(feeds, SPEC))
    assert (seen(tuned_on), seen(judged_on)) == ([0, 2, 4], [1, 3])


@pytest.mark.parametrize("first_has", [True, False])
def test_labels_of_every_other_batch_are_refused(first_has):
    array = np.zeros((3, 2), np.float32)
    feeds = [
        {"x": array, "labels": np.arange(3)} if number % 2 != first_has else {"x": array}
        for number in range(4)
    ]
    for half in split(open_batches(feeds, SPEC)):
        with pytest.raises(CalibrationDataError, match="sample 3"):
            list(half.labelled())


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        (batches_of(4, 32), "the data's 4 samples are one batch"),
        (
            batches_of(1, 32),
            "the data has a single sample, which cannot be both tuned on and judged by; give more samples",
        ),
        # Labels of feeds of unknown size.
        (
            open_batches([{"x": np.zeros((3, 2), np.float32)}], SPEC, labels=np.arange(3)),
            "needs a batch_size",
        ),
    ],
)
def test_what_cannot_be_split(batches, message):
    with pytest.raises(CalibrationDataError, match=message):
        split(batches)


@pytest.mark.parametrize(("count", "size"), [(8, 1), (8, 4), (9, 4), (64, 32)])
def test_samples_to_tune_on_find_remedies_or_decide(count, size):
    found_with, decided_by = divide(batches_of(count, size))
    assert sorted(seen(found_with) + seen(decided_by)) == list(range(count))
    assert found_with.labels.tolist() == seen(found_with) and decided_by.labels.tolist() == seen(decided_by)
    assert abs(len(seen(found_with)) - len(seen(decided_by))) <= size


@pytest.mark.parametrize(("count", "size"), [(1, 1), (7, 1), (32, 32)])
def test_too_few_samples_find_remedies_and_decide(count, size):
    data = batches_of(count, size)
    with pytest.warns(UserWarning, match=f"{count} sample"):
        assert divide(data) == (data, data)


@pytest.mark.parametrize(("feeds", "labels"), [(1, None), (9, np.arange(9))])
def test_feed_dicts_that_cannot_be_divided(feeds, labels):
    """One alone, or with labels that nothing divides."""
    data = open_batches([{"x": np.ones((1, 2), np.float32)}] * feeds, SPEC, labels=labels)
    with pytest.warns(UserWarning, match="to tune on cannot be divided"):
        assert divide(data) == (data, data)


def in_groups(groups, size=3, labels=True):
    count = 12 if isinstance(groups, int) else len(groups)
    array = np.arange(count, dtype=np.float32)[:, None].repeat(2, axis=1)
    data = {"x": array, **({"labels": np.arange(count)} if labels else {})}
    return open_data(data, SPEC, DataOptions(size, groups=groups, shuffle=True))


@given(st.lists(st.integers(0, 5), min_size=2, max_size=40), st.integers(1, 9))
def test_groups_are_split_as_a_whole(groups, size):
    batches = in_groups([f"recording {group}" for group in groups], size)
    if len({*groups}) == 1:
        with pytest.raises(CalibrationDataError, match="one group"):
            split(batches)
        return
    halves = split(batches)
    own = [seen(half) for half in halves]
    assert sorted(own[0] + own[1]) == list(range(len(groups)))
    assert not {groups[sample] for sample in own[0]} & {groups[sample] for sample in own[1]}
    # As even as the largest group allows.
    assert abs(len(own[0]) - len(own[1])) <= max(map(groups.count, groups))
    for half, samples in zip(halves, own, strict=True):
        assert half.labels.tolist() == samples
        assert [half.name_of(row) for row in range(len(samples))] == [f"sample {one}" for one in samples]
        numbers = dict(zip(samples, half.groups.tolist(), strict=True))
        assert len({*numbers.values()}) == len({groups[sample] for sample in samples})


def test_samples_in_a_row_are_a_group():
    tuned_on, judged_on = split(in_groups(4))
    assert sorted(seen(judged_on)) in ([0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11])
    for part in divide(tuned_on):
        assert {*np.diff(np.sort(seen(part))).tolist()} == {1} and part.num_samples == 4
    assert open_batches({"x": np.zeros((4, 2), np.float32)}, SPEC).groups is None


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (0, "groups is 0"),
        (2.5, "groups is 2.5"),
        (np.arange(11), "groups is int64 of shape 11 and the data has 12 samples"),
        (np.zeros((12, 2)), "12x2"),
        ("nowhere.npy", "nowhere.npy"),
        ("groups.txt", "groups file 'groups.txt' must be a .npy or .npz"),
    ],
)
def test_groups_that_name_none(groups, message):
    data = {"x": np.zeros((12, 2), np.float32)}
    with pytest.raises(CalibrationDataError, match=message):
        open_data(data, SPEC, DataOptions(groups=groups))


def test_groups_of_what_is_not_counted():
    feeds = [{"x": np.zeros((3, 2), np.float32)}] * 4
    with pytest.raises(CalibrationDataError, match=r"groups .*iterable"):
        open_data(feeds, SPEC, DataOptions(groups=3))


@pytest.mark.parametrize(("samples", "taken"), [(1, 3), (3, 3), (4, 6), (100, 8)])
def test_the_head_is_whole_batches(samples, taken):
    assert seen(head(batches_of(8, 3), samples)) == list(range(taken))


def test_data_of_one_batch_gets_a_smaller_one_unless_it_was_asked_for():
    options = DataOptions()
    sizes = {n: smaller_batch_size(batches_of(n, 32), options, 2) for n in (1, 2, 18, 31, 32, 33, 62, 63)}
    assert sizes == {1: None, 2: 1, 18: 9, 31: 16, 32: 16, 33: 17, 62: 31, 63: None}
    assert smaller_batch_size(batches_of(62, 32), options, 4) == 16
    assert smaller_batch_size(batches_of(18, 32), DataOptions(batch_size=32), 2) is None


IMAGES = np.random.default_rng(0).standard_normal((6, 3, 8, 8)).astype(np.float32)
CLASSES, MAPS, LEVELS = (
    {"x": IMAGES, "labels": labels}
    for labels in (np.arange(6) % 4, np.ones((6, 8, 8), np.int64), np.zeros((6, 4, 8, 8), np.float32))
)
PLAIN = {"x": IMAGES}


def maps():
    text = "conv = Conv <pads = [1, 1, 1, 1]> (x, w) where float[4, 3, 3, 3] w"
    return parsed("float[N, 3, 8, 8] x", text, "float[] conv", scale=0.1)


def scores():
    text = "flat = Flatten (x) scores = MatMul (flat, w) where float[192, 4] w"
    return parsed("float[N, 3, 8, 8] x", text, "float[] scores", scale=0.1)


def grid():
    """Boxes of positive sizes in pixels, and scores of six classes."""
    g = Detector(quantized=False)
    boxes, scores = g.level("one")
    sizes = g.flat(g.op("Relu", [boxes], "sizes"), 4, "flat_boxes")
    rows = g.op("Concat", [sizes, g.flat(scores, KINDS, "flat_scores")], "rows", axis=1)
    return g.model({"images": ["N", 3, 8, 8]}, rows)


def begun(model, tuned_on, judge, **budget):
    model = prepare(load_model(model))
    form = first_form(model, open_batches(tuned_on, model.inputs, batch_size=2))
    judged = open_batches(judge, model.inputs, batch_size=2)
    return begin_judging(model, Budget(**budget).goal(form), form, judged)[1]


@pytest.mark.parametrize(
    ("tuned_on", "judge", "metric", "own", "other"),
    [
        (MAPS, PLAIN, "pixels", "positions of 'y' with the label's class", "positions of 'y' with FP32's"),
        (PLAIN, MAPS, "miou", "mean IoU of 'y' with FP32", "mean IoU of 'y' with the labels"),
        (LEVELS, PLAIN, "psnr", "PSNR of 'y' against the labels", "PSNR of 'y' against FP32"),
        (LEVELS, lambda: iter([PLAIN]), "psnr", "against the labels", "against FP32"),
    ],
)
def test_metrics_that_are_compared_with_something_else(tuned_on, judge, metric, own, other):
    message = f"metric '{metric}' means .*{own}.* for the samples tuned on and .*{other}.* for those to judge"
    with pytest.raises(CalibrationDataError, match=message.replace("'y'", "'conv'")):
        begun(maps(), tuned_on, judge, metric=metric)


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        (
            {},
            "metric 'top1' was chosen for the samples tuned on and does not apply to those to judge by "
            "(output 'scores' (float32, 2x4) is one row of class scores per sample: chose agreement, "
            "SQNR, cosine and largest error of every output); give both labels, or neither, or name a metric "
            "that applies to both",
        ),
        (
            {"metric": "top1"},
            "the samples to judge by cannot show whether the budget (top1: a drop of at most 1 point) is "
            "kept: metric 'top1' needs one class index per sample as label; give labels, or take another "
            "metric",
        ),
    ],
)
def test_metrics_that_the_samples_to_judge_by_have_no_labels_for(budget, message):
    with pytest.raises(CalibrationDataError) as caught:
        begun(scores(), CLASSES, PLAIN, **budget)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("tuned_on", "judge", "budget"),
    [
        (MAPS, MAPS, {"metric": "pixels"}),
        (PLAIN, PLAIN, {"metric": "pixels"}),
        (MAPS, PLAIN, {}),  # SQNR, which is of no labels
        (PLAIN, MAPS, {}),
        (LEVELS, PLAIN, {"metric": "max_error", "max_drop": 1.0}),
        (MAPS, PLAIN, {"metric": lambda feeds, outputs: 1.0, "max_drop": 1.0}),
    ],
)
def test_all_samples_are_in_the_pass_that_has_begun(tuned_on, judge, budget):
    found = begun(maps(), tuned_on, judge, **budget)
    assert np.array_equal(np.concatenate([feed["x"] for feed in found]), IMAGES)


def test_labels_that_only_the_samples_to_judge_by_have_are_no_harm_to_agreement():
    assert len(list(begun(scores(), PLAIN, CLASSES))) == 3


def test_a_generator_is_read_once():
    halves = [{name: array[part] for name, array in MAPS.items()} for part in (slice(2), slice(2, 6))]
    found = list(begun(maps(), MAPS, iter(halves), metric="pixels").labelled())
    assert np.array_equal(np.concatenate([batch.feed["x"] for batch in found]), IMAGES)
    assert [batch.labels.shape for batch in found] == [(2, 8, 8)] * 3


def test_there_have_to_be_samples():
    with pytest.raises(CalibrationDataError, match="there are no samples to judge by; pass at least one"):
        begun(maps(), PLAIN, lambda: iter([]), metric="pixels")


def test_a_metric_without_a_value_on_the_first_batch_is_no_reason_to_refuse():
    class Precise:
        """As an area under a curve, which a single class has none of."""

        name = "precise"

        def fresh(self):
            return Precise()

        def update(self, feeds, outputs, labels):
            pass

        def merge(self, other):
            pass

        def value(self):
            raise ValueError("only one class")

    assert len(list(begun(scores(), CLASSES, CLASSES, metric=Precise(), max_drop=1.0))) == 3


def checked(model, judge, tuned_on=None, **budget):
    model = prepare(load_model(model))
    tuned_on, judged = (open_batches(data, model.inputs, batch_size=2) for data in (tuned_on or judge, judge))
    goal = Budget(**budget).goal(first_form(model, tuned_on))
    return check_judging(model, goal, first_form(model, judged), judged)


def with_label(label, dtype=np.int64):
    """Class indices, of which the fifth is this one."""
    return {"x": IMAGES, "labels": np.array([0, 1, 2, 3, label, 1], dtype)}


@pytest.mark.parametrize("budget", [{}, {"metric": "top1"}, {"metric": "top2:scores"}])
@pytest.mark.parametrize("label", [4, -1])
def test_classes_that_the_model_does_not_have(label, budget):
    with pytest.raises(CalibrationDataError) as caught:
        checked(scores(), with_label(label), **budget)
    message = f"label {label} is not one of the model's 4 classes (0 to 3); check the labels"
    assert str(caught.value) == message


def test_metrics_that_only_the_samples_to_judge_by_have_labels_for():
    """They are measured at the end, although agreement is what the search keeps."""
    with pytest.raises(CalibrationDataError, match=r"label 4.*4"):
        checked(scores(), with_label(4), tuned_on=PLAIN)


@pytest.mark.parametrize(
    ("model", "judge", "budget"),
    [
        (scores(), with_label(3), {"max_drop": 20}),
        (scores(), with_label(4), {"metric": "sqnr"}),  # of no labels
        (scores(), with_label(4), {"metric": "agreement", "max_drop": 20}),
        (scores(), with_label(4, np.float32), {"max_drop": 20}),
        (scores(), PLAIN, {"minimum": 90}),
        (maps(), with_label(4), {}),
        (scores(), [CLASSES], {"max_drop": 0}),
    ],
)
def test_batches_with_usable_labels_are_counted(model, judge, budget):
    assert checked(model, judge, **budget) == 3


def test_samples_are_at_least_as_many_as_the_budget_needs():
    for judge, few in ((PLAIN, "6 samples"), ({"x": IMAGES[:1]}, "1 sample")):
        with pytest.raises(CalibrationDataError, match=rf"1 point .*{few} .* 100 .* max_drop"):
            checked(scores(), judge, tuned_on=PLAIN, max_drop=1)
        assert checked(scores(), judge, tuned_on=PLAIN) > 0  # nobody has asked for the point


def test_levels_that_are_not_finite():
    levels = LEVELS["labels"].copy()
    levels[4, 0, 0, 0] = np.inf
    message = "'psnr'.*sample 4"
    with pytest.raises(CalibrationDataError, match=message):
        checked(maps(), {"x": IMAGES, "labels": levels}, metric="psnr")


def test_true_boxes_of_a_class_that_the_network_does_not_have():
    """As metric detections judges by them."""
    labels = np.zeros((4, 1, 5), np.float32)
    labels[3, 0] = [0, 0, 4, 4, KINDS]
    data = {"images": images(4), "labels": labels}
    assert checked(grid(), {name: array[:3] for name, array in data.items()}, metric="detections") == 2
    with pytest.raises(CalibrationDataError, match="class 6"):
        checked(grid(), data, metric="detections")


def test_samples_that_do_not_fit_the_model():
    broken = IMAGES.copy()
    broken[4, 0, 0, 0] = np.nan
    with pytest.raises(CalibrationDataError, match="sample 4"):
        checked(scores(), {**CLASSES, "x": broken})


def test_half_of_one_batch_is_none():
    model = prepare(load_model(scores()))
    tuned_on, judged = (open_batches(data, model.inputs) for data in (PLAIN, lambda: iter([])))
    form = first_form(model, tuned_on)
    assert check_judging(model, Budget().goal(form), form, judged) == 0


def test_the_form_of_the_first_batch():
    model = prepare(load_model(DEMO_MODEL))
    data = {"images": np.zeros((5, 1, 8, 8), np.float32), "labels": np.arange(5)}
    form = first_form(model, open_batches(data, model.inputs, batch_size=3))
    assert form.outputs["logits"].shape == (3, 10) and form.rows == 3 and form.has_class_indices
