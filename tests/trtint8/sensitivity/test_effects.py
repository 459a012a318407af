"""Sums over samples, by hand and against plain NumPy."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators.errors import CalibrationDataError
from trtint8.sensitivity.effects import (
    COLUMN,
    COLUMNS,
    DECIBELS,
    Draw,
    EffectMeter,
    draw,
    half_widths,
    limited,
    output_scales,
    share_to_draw,
)
from trtint8.validation.significance import Share, t95

WANTED = {"y": np.array([[3.0, 1.0], [0.0, 4.0], [2.0, 5.0]], np.float32)}
GOT = {"y": np.array([[3.0, 2.0], [5.0, 4.0], [2.0, 5.0]], np.float32)}
LABELS = np.array([0, 1, 0])
ALL, LAYER = ("all", ""), ("only", "a")


def empty(*variants, scales=None, classes=False, labelled=False, predicted=False):
    """A meter without data, of one output where no scales are given."""
    options = {"classes": classes, "labelled": labelled, "predicted": predicted}
    return EffectMeter(variants or [ALL], scales or {"y": 1.0}, **options)


def only(names):
    return [("only", name) for name in names]


def meter_of(got=GOT, wanted=WANTED, labels=LABELS, scales=None, classes=True):
    meter = empty(scales=scales, classes=classes, labelled=labels is not None)
    meter.add(ALL, got, wanted, labels)
    return meter


def test_an_effect_by_hand():
    effect = meter_of().effect(ALL)
    # signal 9+1 + 16 + 4+25 = 55, noise 1 + 25 = 26
    assert effect.sqnr_db == pytest.approx(10 * math.log10(55 / 26))
    # product 9+2 + 16 + 29 = 56, got 13 + 41 + 29 = 83
    assert effect.cosine == pytest.approx(56 / math.sqrt(55 * 83))
    assert effect.agreement == Share(2, 3)
    assert effect.top1 == Share(1, 3)
    assert (effect.drop.gained, effect.drop.lost, effect.drop.difference) == (0, 1, -1 / 3)
    assert meter_of().reference_top1() == Share(2, 3)
    assert meter_of().noise(ALL) == 26


def test_the_interval_of_a_drop_says_the_same_of_zero_as_its_test():
    right, wrong = np.tile([1.0, 0.0], (100, 1)), np.tile([0.0, 1.0], (5, 1))
    got = {"y": np.concatenate([right[5:], wrong])}
    drop = meter_of(got, {"y": right}, np.zeros(100, np.int64)).effect(ALL).drop
    assert (drop.lost, drop.p_value, drop.pairs) == (5, pytest.approx(0.0625), 100)
    assert drop.interval[1] == 0.0 and not drop.significant


def test_outputs_of_different_units_weigh_the_same():
    wanted = {"boxes": np.array([[100.0, 100.0]]), "scores": np.array([[0.1, 0.1]]), "ids": np.array([[7]])}
    scales = output_scales(wanted)
    assert scales == pytest.approx({"boxes": 100.0, "scores": 0.1})
    got = {"boxes": np.array([[101.0, 100.0]]), "scores": np.array([[0.101, 0.1]]), "ids": np.array([[7]])}
    meter = empty(scales=scales)
    meter.add(ALL, got, wanted, None)
    assert meter.effect(ALL).sqnr_db == pytest.approx(10 * math.log10(4 / (2 * 0.01**2)))
    assert output_scales({"broken": np.array([[1.0, np.inf]])}) == {"broken": 1.0}
    assert output_scales({"dead": np.zeros((2, 2), np.float32)}) == {"dead": 1.0}
    assert output_scales({"classes": np.full((2, 2), 3)}) == {"classes": 3.0}


def test_equal_outputs_are_exact():
    effect = meter_of(got=WANTED).effect(ALL)
    assert (effect.sqnr_db, effect.interval_db, effect.cosine) == (math.inf, (math.inf, math.inf), 1.0)
    assert meter_of(got=WANTED).effect(ALL).drop.p_value == 1.0


@pytest.mark.parametrize("wrong", [-1, 2])
def test_labels_that_are_no_classes_of_the_model(wrong):
    """They would count as wrong for both networks, in silence."""
    with pytest.raises(
        CalibrationDataError, match=rf"^label {wrong} is not one of the model's 2 classes \(0 t"
    ):
        meter_of(labels=np.array([0, 1, wrong]))
    assert meter_of(labels=np.array([0, 1, wrong]), classes=False).reference_top1() is None


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_outputs_that_are_not_finite(broken):
    spoilt = {"y": WANTED["y"].copy()}
    spoilt["y"][1, 0] = broken
    meter = empty()
    for got, wanted, network in (
        (spoilt, WANTED, "the network in INT8"),
        (spoilt, spoilt, "the float network"),
        (WANTED, spoilt, "the float network"),
    ):
        with pytest.raises(
            CalibrationDataError, match=f"'y', which {network} makes NaN or inf.* for sample 33;"
        ):
            meter.add(ALL, got, wanted, None, 32)


def test_without_labels_or_classes():
    effect = meter_of(labels=None).effect(ALL)
    assert effect.top1 is effect.drop is None and effect.agreement == Share(2, 3)
    assert meter_of(labels=None).reference_top1() is None
    assert meter_of(classes=False, labels=None).effect(ALL).agreement is None


def test_outputs_without_a_common_first_dimension_are_one_sample():
    wanted = {"a": np.ones((3, 2)), "b": np.ones(5)}
    meter = empty(scales={"a": 1.0, "b": 1.0})
    meter.add(ALL, {"a": np.ones((3, 2)), "b": np.zeros(5)}, wanted, None)
    assert meter.effect(ALL).sqnr_db == pytest.approx(10 * math.log10(11 / 5))


@given(st.integers(0, 1000), st.integers(1, 7))
def test_batches_do_not_matter(seed, size):
    random = np.random.default_rng(seed)
    wanted, got = random.standard_normal((2, 12, 4))
    labels = random.integers(0, 4, 12)
    parts = empty(classes=True, labelled=True)
    for first in range(0, 12, size):
        rows = slice(first, first + size)
        parts.add(ALL, {"y": got[rows]}, {"y": wanted[rows]}, labels[rows])
    whole = meter_of({"y": got}, {"y": wanted}, labels)
    np.testing.assert_allclose(parts.sums, whole.sums, rtol=1e-12)


@pytest.mark.parametrize("samples", [8, 200])
def test_the_interval_holds_the_truth_as_often_as_it_says(samples):
    """Noise whose power varies from sample to sample by a factor of ten."""
    random = np.random.default_rng(0)
    truth = 10 * math.log10(1 / np.mean(0.01 * np.array([0.2, 2.0])))
    held = 0
    for _ in range(400):
        wanted = random.standard_normal((samples, 20))
        power = 0.01 * random.choice([0.2, 2.0], (samples, 1))
        got = wanted + random.standard_normal((samples, 20)) * np.sqrt(power)
        low, high = meter_of({"y": got}, {"y": wanted}, None, classes=False).effect(ALL).interval_db
        held += low <= truth <= high
    assert 0.91 < held / 400 < 0.98


def test_a_state_survives_json():
    meter = meter_of()
    again = EffectMeter(**json.loads(json.dumps(meter.state())))
    assert again.effect(ALL) == meter.effect(ALL)
    again.add(ALL, GOT, WANTED, LABELS)
    assert again.effect(ALL).top1 == Share(2, 6)


@pytest.mark.parametrize(("decibels", "half"), [(-3, 16.96), (0, 12.0), (20, 1.39), (40, 0.71), (80, 0.70)])
def test_what_gradients_predict_is_less_certain_where_the_noise_is_large(decibels, half):
    """Of samples that are all alike, so that their number adds nothing."""
    meter = empty(LAYER, predicted=True)
    noise = np.full((1, 64), 10.0 * 10 ** (-decibels / 10))
    meter.add_noise([LAYER], noise, {"y": np.tile(np.float32([3.0, 1.0]), (64, 1))})
    effect = meter.effect(LAYER)
    assert effect.sqnr_db == pytest.approx(decibels, abs=1e-6)
    assert effect.interval_db[1] - effect.sqnr_db == pytest.approx(half, abs=0.03)


def test_a_single_observation_says_nothing_of_how_far_it_is_off():
    """As of one sample, or of one batch whose samples cannot be told apart."""
    names = only("ab")
    meter = empty(*names, ALL, predicted=True)
    wanted = {"y": np.ones((4, 2), np.float32)}
    meter.add(ALL, {"y": np.full((4, 2), 1.1, np.float32)}, wanted, None)
    for intervals in ([(-math.inf, math.inf)] * 2, None):
        meter.add_noise(names, np.array([[0.08], [0.0008]]), wanted)
        effects = meter.effects(names)
        assert [effect.sqnr_db for effect in effects] == pytest.approx([20.0, 40.0])
        found = [effect.interval_db for effect in effects]
        assert found == intervals if intervals else np.isfinite(found).all()
    assert np.isfinite(meter.effect(ALL).interval_db).all()
    assert meter.shown(names) is None  # observations are no samples that were drawn


def test_what_gradients_predict_is_at_most_what_outputs_can_be_wrong_by():
    """Outputs that have nothing in common: twice the signal. Shares of the noise stay as predicted."""
    names = only("ab")
    meter = empty(*names, ALL, predicted=True)
    wanted = np.ones((8, 4), np.float32)
    meter.add(ALL, {"y": np.tile(np.float32([1, -1, 1, -1]), (8, 1))}, {"y": wanted}, None)
    meter.add_noise(names, np.array([[3e14] * 8, [1e14] * 8]), {"y": wanted})
    first, second, whole = meter.effects([*names, ALL])
    assert first == second
    assert first.sqnr_db == pytest.approx(-3.0103, abs=1e-4)
    assert first.interval_db[1] == pytest.approx(-3.0103 + math.hypot(12 * math.sqrt(2), 0.7), abs=1e-3)
    assert first.cosine == pytest.approx(3**-0.5)
    assert whole.sqnr_db == pytest.approx(-3.0103, abs=1e-4) and whole.cosine == pytest.approx(0)
    without = meter.remaining_effects("ab")
    assert [effect.sqnr_db for effect in without] == pytest.approx([3.0103, -1.7609], abs=1e-4)
    assert meter.noise(LAYER) == 8 * 3e14


def test_no_layer_is_taken_to_be_more_certain_than_layers_usually_are():
    """The noise of one is the same in all samples, by accident; that of the others varies."""
    names = only("abcd")
    meter = empty(*names, predicted=True)
    random = np.random.default_rng(0)
    varying, more = (1e-6 * random.lognormal(0.0, width, (1, 64)) for width in (0.5, 1.5))
    noise = np.concatenate([np.full((1, 64), 1e-6), varying, 2 * varying, more])
    meter.add_noise(names, noise, {"y": np.ones((64, 1), np.float32)})
    effects = meter.effects(names)
    assert effects == [meter.effect(name) for name in names]
    halves = [effect.interval_db[1] - effect.sqnr_db for effect in effects]
    _, low, same, high = half_widths(meter.sums)
    assert low == pytest.approx(same) and high > 2 * low
    usual = math.hypot((2 * low + high) / 3, 0.7)
    assert halves == pytest.approx([usual, usual, usual, math.hypot(high, 0.7)], abs=0.01)


def test_noise_sample_by_sample():
    meter = meter_of(scales={"y": 2.0})
    np.testing.assert_allclose(meter.noise_of_samples(GOT, WANTED), [0.25, 6.25, 0.0])
    assert meter.noise(ALL) == 6.5
    with pytest.raises(CalibrationDataError, match=r"output 'y', whose shape depends on the values"):
        meter.noise_of_samples({"y": GOT["y"][:, :1]}, WANTED)


def test_outputs_without_elements_make_no_noise(recwarn):
    """As the boxes of an image in which there is nothing."""
    nothing = {"y": np.empty((0, 4), np.float32)}
    assert output_scales(nothing) == {"y": 1.0}
    assert meter_of(nothing, nothing, labels=None, classes=False).effect(ALL).sqnr_db == math.inf
    assert not recwarn.list


def test_a_first_output_whose_rows_are_no_samples_has_no_classes():
    wanted = {"y": np.ones((3, 2), np.float32), "z": np.ones((5, 4), np.float32)}
    got = {"y": np.full((3, 2), 2, np.float32), "z": np.ones((5, 4), np.float32)}
    effect = meter_of(got, wanted, labels=None, scales={"y": 1.0, "z": 1.0}).effect(ALL)
    assert effect.sqnr_db == pytest.approx(10 * math.log10(26 / 6)) and effect.agreement is None


def _sums(**known):
    sums = np.zeros((1, COLUMNS))
    for name, value in known.items():
        sums[0, COLUMN[name]] = value
    return sums


def test_a_width_by_hand():
    """Noise powers 1 and 3 under signals of 4: of the logarithm of their mean the variance is 1/4."""
    sums = _sums(samples=2, shown=2, signal=8, signal2=32, noise=4, noise2=10, both=16)
    assert half_widths(sums)[0] == pytest.approx(t95(1) * DECIBELS * 0.5)


def test_a_width_of_drawn_samples_by_hand():
    """Powers 1 and 2 were drawn of four samples, each with a chance of a half: they count 2 and 4."""
    noise = np.array([[1.0, 2.0]])
    meter = empty(LAYER)
    outputs = {"y": np.full((4, 1), 2.0)}
    meter.add_noise([LAYER], noise, outputs, Draw(np.array([1, 3]), np.array([0.5, 0.5])))
    known = dict(zip(COLUMN, meter.sums[0].tolist(), strict=True))
    assert known == {
        **dict.fromkeys(COLUMN, 0.0),
        **{"samples": 4, "shown": 2, "signal": 16, "signal2": 64, "noise": 6, "noise2": 10, "both": 24},
        **{"product": 16, "got2": 22, "missed": 1, "missed_noise": 3, "missed_noise2": 10},
    }
    # All four: (10/4 - 1.5^2) / 1.5^2 / 3; drawing: (10 - 2 * 3 * 3 + 9) * 2 / 6^2.
    variance = (2.5 / 2.25 - 1) / 3 + 2 / 36
    assert half_widths(meter.sums)[0] == pytest.approx(t95(1) * DECIBELS * math.sqrt(variance))


@pytest.mark.parametrize("share", [0.25, 0.5, 1.0])
def test_the_interval_of_drawn_samples_holds_the_truth_as_often_as_it_says(share):
    """Of a layer whose noise is about proportional to the whole network's."""
    random = np.random.default_rng(0)
    held, wide = 0, []
    for _ in range(300):
        whole = random.lognormal(0.0, 0.7, 256)
        layer = 0.01 * whole * random.lognormal(0.0, 0.7, 256)
        drawn = draw(whole, np.zeros(256, bool), share, random)
        meter = empty(LAYER)
        meter.add_noise([LAYER], layer[None, drawn.rows], {"y": np.ones((256, 1))}, drawn)
        effect = meter.effect(LAYER)
        low, high = effect.interval_db
        held += low <= -10 * math.log10(0.01 * math.exp(0.49)) <= high
        wide.append(high - low)
    assert 0.91 < held / 300 < 0.99
    assert np.mean(wide) < 2 * 2.5


def test_without_noise_or_signal_there_is_no_width():
    assert half_widths(_sums(samples=2, signal=1)).tolist() == [0.0]
    assert half_widths(_sums(samples=2, noise=1)).tolist() == [0.0]
    assert half_widths(np.zeros((1, COLUMNS))).tolist() == [0.0]


def test_a_limit_beyond_all_numbers_limits_nothing():
    """As of the sums of a checkpoint that says so."""
    sums = np.zeros((1, COLUMNS))
    sums[0, COLUMN["signal"]], sums[0, COLUMN["noise"]] = 1e308, 3.0
    assert limited(sums, np.array([True]))[0, COLUMN["noise"]] == 3.0


@pytest.mark.parametrize(
    ("samples", "share"),
    [(None, 1.0), (1, 1.0), (112, 1.0), (128, 0.875), (256, 0.4375), (500, 0.27), (10_000, 0.27)],
)
def test_about_a_quarter_of_the_samples_and_not_too_few(samples, share):
    assert share_to_draw(samples, 3 << 20) == share


@pytest.mark.parametrize(("samples", "share"), [(256, 1.0), (512, 0.5), (10_000, 0.27)])
def test_more_of_the_samples_where_they_are_small(samples, share):
    assert share_to_draw(samples, 1 << 20) == share


def test_chances_by_hand():
    """One sample has most of the noise, so its chance would be more than 1: it is drawn for certain."""
    noise, nobody = np.array([30.0, 1.0, 1.0, 1.0]), np.zeros(4, bool)
    seen = [draw(noise, nobody, 0.5, np.random.default_rng(seed)) for seed in range(20)]
    assert all(one.rows[0] == 0 and len(one.rows) == 2 for one in seen)
    # The others share the place that is left.
    np.testing.assert_allclose([one.chances for one in seen], [[1.0, 1 / 3]] * 20)
    assert {int(one.rows[1]) for one in seen} == {1, 2, 3}
    # Three tenths of each chance are even: 0.3 + 0.7 * 3 / 2 of four, times the two places.
    chances = {
        int(row): float(chance)
        for seed in range(20)
        for row, chance in zip(
            *vars(draw(np.array([3.0, 1.0, 2.0, 2.0]), nobody, 0.5, np.random.default_rng(seed))).values(),
            strict=True,
        )
    }
    assert chances == pytest.approx({0: 0.675, 1: 0.325, 2: 0.5, 3: 0.5})


noises = st.lists(st.floats(0, 1e6), min_size=1, max_size=70)


@given(noises, st.floats(0.01, 1.0), st.integers(1, 9), st.integers(0, 99))
def test_what_is_drawn(noise, share, every, seed):
    certain = np.arange(len(noise)) % every == 0
    drawn = draw(np.array(noise), certain, share, np.random.default_rng(seed))
    assert (np.diff(drawn.rows) > 0).all() and drawn.rows[0] >= 0 and drawn.rows[-1] < len(noise)
    assert ((drawn.chances > 0) & (drawn.chances <= 1)).all()
    assert set(np.flatnonzero(certain)) <= set(drawn.rows.tolist())
    assert (drawn.chances[certain[drawn.rows]] == 1).all()
    others = len(noise) - int(certain.sum())
    wanted = max(round(share * len(noise)), int(certain.sum()) + min(others, 1))
    assert len(drawn.rows) == wanted


@given(st.integers(0, 1000))
def test_sums_over_the_drawn_samples_are_right_on_average(seed):
    random = np.random.default_rng(seed)
    noise = random.lognormal(0.0, 1.0, 24)
    values = noise * random.lognormal(0.0, 0.5, 24)
    certain = np.arange(24) % 8 == 0

    def estimated(one: Draw) -> float:
        return float((values[one.rows] / one.chances).sum())

    found = [estimated(draw(noise, certain, 0.5, np.random.default_rng((seed, n)))) for n in range(400)]
    error = np.std(found) / math.sqrt(len(found))
    assert abs(np.mean(found) - values.sum()) < 5 * error


def test_a_noise_that_is_alike_in_all_layers_needs_fewer_samples():
    """Beside samples that are drawn with the same chance."""
    noise = np.random.default_rng(0).lognormal(0.0, 1.0, 64)
    spread = []
    for known in (noise, np.ones(64)):
        draws = [draw(known, np.zeros(64, bool), 0.25, np.random.default_rng(n)) for n in range(300)]
        spread.append(np.std([(noise[one.rows] / one.chances).sum() for one in draws]))
    assert spread[0] < 0.6 * spread[1]


@pytest.mark.parametrize("noise", [np.zeros(8), np.array([1.0, np.inf, *[1.0] * 6]), np.full(8, np.nan)])
def test_where_the_noise_says_nothing_all_chances_are_the_same(noise):
    drawn = draw(noise, np.zeros(8, bool), 0.5, np.random.default_rng(0))
    assert drawn.chances.tolist() == [0.5] * 4


def test_all_are_drawn_where_as_many_are_wanted():
    drawn = draw(np.ones(5), np.array([True, False, False, False, False]), 1.0, np.random.default_rng(0))
    assert drawn.rows.tolist() == [0, 1, 2, 3, 4] and drawn.chances.tolist() == [1.0] * 5
