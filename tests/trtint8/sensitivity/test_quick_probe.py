"""Which samples of a batch show what."""

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from calibrators.errors import CalibrationDataError
from tests.trtint8.simulation.opened import WEIGHTS, opened, opened_products, parsed
from trtint8.models.model import load_model, prepare
from trtint8.models.session import ModelSession
from trtint8.sensitivity import quick_probe
from trtint8.sensitivity.effects import ALL, COLUMN, ONLY, EffectMeter
from trtint8.sensitivity.error_network import ErrorNetwork
from trtint8.sensitivity.quick_probe import QuickNetwork, draw_directions, may_run_one_by_one, random_signs

NAMES = ("first", "second")
ROWS = np.random.default_rng(4).standard_normal((64, 2)).astype(np.float32)


@pytest.fixture
def few(monkeypatch):
    """Samples are small enough for all of them to show what layers cost, but are not taken to be."""
    monkeypatch.setattr("trtint8.sensitivity.effects._LEAST", 0)


def quick(model=None, **options):
    model = model or opened_products()
    return QuickNetwork(model.model, model.quantizer, model.network, **options)


def meter(labelled=False, output="second", names=NAMES):
    variants = [ALL, *((ONLY, name) for name in names)]
    return EffectMeter(variants, {output: 0.5}, classes=True, labelled=labelled, predicted=True)


def measured(feeds, *, labels=None, threads=1, **options):
    """The meter of effects and of local errors after some batches."""
    network, effects = quick(threads=threads, **options), meter(labels is not None)
    first, local = 0, []
    for rows in feeds:
        own_labels = None if labels is None else labels[first : first + len(rows)]
        local.append(network.measure({"x": rows}, own_labels, first, effects))
        first += len(rows)
    return effects, local


def test_every_sample_shows_the_noise_and_every_eighth_its_class():
    effects, local = measured([ROWS], labels=np.zeros(64, np.int64))
    assert effects.effect(ALL).agreement.total == effects.reference_top1().total == 64
    alone = effects.effect((ONLY, "first"))
    assert alone.agreement.total == alone.top1.total == 8
    assert effects.sums[:, 0].tolist() == [64, 64, 64]
    assert local[0].samples == 2


@pytest.mark.usefixtures("few")
def test_of_many_samples_some_show_the_noise_and_every_sixteenth_its_class():
    labels = np.zeros(64, np.int64)
    effects, _ = measured([ROWS], labels=labels, samples=1000)
    assert effects.effect(ALL).agreement.total == 64
    assert effects.effect((ONLY, "first")).agreement.total == 4
    assert effects.sums[:, 0].tolist() == [64, 64, 64]
    assert effects.sums[:, COLUMN["shown"]].tolist() == [64, 17, 17]
    every, _ = measured([ROWS], labels=labels, samples=1000, every_sample=True)
    assert every.sums[:, COLUMN["shown"]].tolist() == [64, 64, 64]
    np.testing.assert_allclose(effects.sums[0], every.sums[0], rtol=1e-5)
    signal = COLUMN["signal"]
    np.testing.assert_allclose(effects.sums[:, signal], every.sums[:, signal], rtol=1e-5)


@pytest.mark.usefixtures("few")
def test_what_some_samples_show_is_about_what_all_show():
    rows = np.random.default_rng(5).uniform(-0.9, 0.9, (1024, 2)).astype(np.float32)
    batches = [rows[start : start + 64] for start in range(0, 1024, 64)]
    some, all_of_them = (measured(batches, samples=1024, every_sample=every)[0] for every in (False, True))
    for name in NAMES:
        found, exact = (meter.effect((ONLY, name)) for meter in (some, all_of_them))
        half = found.interval_db[1] - found.sqnr_db
        assert abs(found.sqnr_db - exact.sqnr_db) < half < 1.5
        assert half >= exact.interval_db[1] - exact.sqnr_db


def test_where_samples_are_large_every_eighth_shows_its_class_only(monkeypatch):
    monkeypatch.setattr("trtint8.sensitivity.error_network._WANTED", 15)
    effects, _ = measured([ROWS], labels=np.zeros(64, np.int64))
    assert effects.effect((ONLY, "first")).agreement.total == 8
    assert effects.sums[:, 0].tolist() == [64, 56, 56]


def test_runs_that_go_on_at_once_have_as_many_samples(monkeypatch):
    """Nine fit a run, so four threads need two runs each for 64, of eight."""
    monkeypatch.setattr("trtint8.sensitivity.error_network._WANTED", 16 * 9)
    sizes, run = [], ErrorNetwork.run

    def counted(self, feed, *rest):
        sizes.append(len(feed["x"]))
        return run(self, feed, *rest)

    monkeypatch.setattr(ErrorNetwork, "run", counted)
    measured([ROWS], threads=4)
    assert sizes == [8] * 8


@pytest.mark.parametrize(("threads", "size", "parts"), [(4, 8, 8), (1, 2, 32)])
def test_where_several_runs_go_on_at_once_those_without_gradients_have_more_samples(
    monkeypatch, threads, size, parts
):
    """Two fit a run with gradients, so eight fit one without."""
    monkeypatch.setattr("trtint8.sensitivity.error_network._WANTED", 16 * 2)
    sizes, run = [], ModelSession.run

    def counted(self, feed, *rest):
        if feed.keys() == {"x"}:
            sizes.append(len(feed["x"]))
        return run(self, feed, *rest)

    monkeypatch.setattr(ModelSession, "run", counted)
    measured([ROWS], threads=threads)
    assert sizes == [2, *[size] * parts]  # two show the errors at every layer


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("samples", [None, 1000])
@pytest.mark.parametrize(("threads", "size"), [(1, 16 * 9), (4, 16 * 9), (4, 16 << 20)])
def test_what_a_batch_shows_does_not_depend_on_how_it_is_cut_and_run(monkeypatch, threads, size, samples):
    whole, _ = measured([ROWS], samples=samples)
    monkeypatch.setattr("trtint8.sensitivity.error_network._WANTED", size)
    parts, _ = measured([ROWS], threads=threads, samples=samples)
    np.testing.assert_allclose(parts.sums, whole.sums, rtol=1e-5)


@pytest.mark.parametrize(("threads", "per_run"), [(1, 1), (4, 1), (8, 1), (9, 9)])
def test_threads_run_parts_of_their_own_where_there_are_enough_parts(monkeypatch, threads, per_run):
    monkeypatch.setattr("trtint8.sensitivity.error_network._WANTED", 16 * 9)
    found, open_graph_model = [], quick_probe.open_graph_model

    def noted(model, *, threads, **options):
        found.append(threads)
        return open_graph_model(model, threads=threads, **options)

    monkeypatch.setattr(quick_probe, "open_graph_model", noted)
    measured([ROWS, ROWS[:1]], threads=threads)  # eight parts, and one
    assert found == [per_run]


def test_local_errors_are_measured_with_the_first_samples_only():
    _, local = measured([ROWS[:1], ROWS[1:6], ROWS[6:]])
    assert [meter.samples for meter in local] == [1, 1, 0]


def pooled(rows="rows"):
    """A product with every row of an image and the mean over all rows, of which gradients need the number."""
    text = (
        "first = MatMul (x, w) y = ReduceMean <axes = [1], keepdims = 0> (first) "
        "where float[2, 2] w = {1.0, 0.1, 0.2, 0.5}"
    )
    return quick(opened(f"float[N, {rows}, 2] x", text, ranges=1.0), threads=1)


def test_where_a_size_is_open_gradients_are_those_of_each_batch():
    random, network, found = np.random.default_rng(5), pooled(), []
    for rows in (3, 5, 5, 3):
        feed = {"x": random.uniform(-1, 1, (8, rows, 2)).astype(np.float32)}
        for one in (network, pooled(rows)):
            effects = meter(output="y", names=["first"])
            one.measure(feed, None, 8, effects)
            found.append(effects.sums)
        np.testing.assert_array_equal(found[-2], found[-1])
    assert (found[0][1] != found[2][1]).any()


@pytest.mark.parametrize(
    ("kept", "made"), [(256 << 20, [3, 5, 4]), (5 << 20, [3, 5, 4, 3, 5]), (0, [3, 5, 3, 5, 4, 3, 5])]
)
def test_networks_for_sizes_that_come_again_are_made_once_while_they_fit(monkeypatch, kept, made):
    """Five MiB hold two of them; the one that was used the longest ago goes."""
    monkeypatch.setattr(quick_probe, "_KEPT", kept)
    sizes, make = [], ErrorNetwork.__init__

    def counted(self, graph_model, quantizer, batch, samples):
        sizes.append(batch["x"][1])
        make(self, graph_model, quantizer, batch, samples)

    monkeypatch.setattr(ErrorNetwork, "__init__", counted)
    network, effects = pooled(), meter(output="y", names=["first"])
    for first, rows in enumerate((3, 5, 3, 5, 4, 3, 5)):
        network.measure({"x": np.ones((1, rows, 2), np.float32)}, None, 8 + first, effects)
    assert sizes == made


def test_the_first_samples_give_scales_and_a_time():
    network = quick(threads=1)
    reference, samples, seconds = network.begin({"x": ROWS})
    np.testing.assert_allclose(reference["second"], ROWS[:2] @ WEIGHTS @ WEIGHTS, rtol=1e-5)
    assert samples == 2
    assert seconds > 0
    assert reference["second"].base is None, "not in the memory of a session that is closed"
    begun = network.measure({"x": ROWS}, None, 0, meter())
    _, (anew,) = measured([ROWS])
    assert begun.state() == anew.state()


MATRICES = hnp.arrays(
    np.float32,
    hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=12),
    elements=st.floats(-8, 8, width=16),
)


def drawn(values, seed):
    return draw_directions(values, 1, np.random.default_rng(seed))[0]


def test_signs_are_one_or_minus_one():
    signs = random_signs((1000,), np.random.default_rng(0))
    assert signs.dtype == np.float32
    assert set(signs.tolist()) == {-1, 1}
    assert abs(signs.mean()) < 0.1
    assert random_signs((), np.random.default_rng(0)).shape == ()


@given(values=MATRICES, seed=st.integers(0, 99))
def test_every_direction_has_the_same_product_with_all_rows(values, seed):
    directions = drawn(values, seed).astype(np.float64)
    squares = np.square(directions @ values.T.astype(np.float64)).sum(axis=1)
    np.testing.assert_allclose(squares, np.square(values, dtype=np.float64).sum(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [2, 30])
def test_the_mean_square_of_a_product_is_the_square_of_the_length(rows):
    random = np.random.default_rng(1)
    values = random.standard_normal((rows, 5)).astype(np.float32) * [3, 1, 1, 0.1, 0]
    errors = np.array([[1, 0, 0, 0, 0], [0, 0, 0, 0, 1], [1, -2, 3, -4, 5]], np.float64)
    directions = np.concatenate([drawn(values, seed) for seed in range(8000)])
    means = np.square(directions @ errors.T).mean(axis=0)
    np.testing.assert_allclose(means, np.square(errors).sum(axis=1), rtol=0.05)


def plain(values, seed):
    return random_signs((1, *values.shape), np.random.default_rng(seed))


def independent(values, seed):
    return np.stack([drawn(values, seed), drawn(values, 1000 + seed)])


@pytest.mark.parametrize(
    ("others", "factor", "mixed"),
    [(plain, 0.85, np.random.default_rng(2).standard_normal((3, 6))), (independent, 0.98, np.eye(10))],
)
def test_directions_tell_more_than_others(others, factor, mixed):
    """A single one where errors lie where outputs do; and two that are opposed."""
    values, errors = np.random.default_rng(7).standard_normal((2, 60, len(mixed))) @ mixed
    exact = np.square(errors).sum()

    def spread(draws):
        return np.std([np.square((one * errors).sum(axis=2)).mean(axis=0).sum() / exact for one in draws])

    wider = [others(values, seed) for seed in range(300)]
    own = [draw_directions(values, len(wider[0]), np.random.default_rng(seed)) for seed in range(300)]
    assert spread(own) < factor * spread(wider)


@pytest.mark.parametrize(
    "values", [np.ones((4, 3, 2)), np.full((4, 3), np.nan), np.ones((2, 4097)), np.ones(())]
)
def test_other_outputs_get_a_sign_for_every_value(values):
    directions = draw_directions(values, 2, np.random.default_rng(4))
    assert directions.shape == (2, *values.shape) and directions.dtype == np.float32
    np.testing.assert_array_equal(directions[0], random_signs(values.shape, np.random.default_rng(4)))
    assert set(np.unique(directions)) <= {-1, 1}


@given(
    errors=hnp.arrays(
        np.float32, st.sampled_from([(5, 4), (4, 3), (6, 1), (3, 2, 2)]), elements=st.floats(-8, 8, width=32)
    ),
    seed=st.integers(0, 99),
)
def test_as_many_directions_as_components_show_all_of_an_error(errors, seed):
    """Of four components each has a column of its own, so nothing that two have in common is left."""
    random = np.random.default_rng(seed)
    values = random.standard_normal(errors.shape)
    directions = draw_directions(values, 4, random).astype(np.float64)
    sample = tuple(range(2, directions.ndim))
    shown = np.square((directions * errors).sum(axis=sample)).mean(axis=0)
    exact = np.square(errors, dtype=np.float64).sum(axis=tuple(range(1, errors.ndim)))
    np.testing.assert_allclose(shown, exact, rtol=1e-4, atol=1e-3)


def test_two_directions_of_a_sample_are_at_a_right_angle():
    """Independent ones have on average a tenth of their length in common."""
    values = np.random.default_rng(5).standard_normal((40, 10))
    first, second = draw_directions(values, 2, np.random.default_rng(6)).astype(np.float64)
    np.testing.assert_allclose((first * second).sum(axis=1), 0, atol=1e-5)
    np.testing.assert_allclose(np.square(first).sum(axis=1), 10, rtol=1e-5)


X = np.random.default_rng(0).standard_normal((3, 2, 4)).astype(np.float32)


@pytest.mark.parametrize(
    ("text", "samples", "wanted"),
    [
        ("y = Transpose <perm = [2, 0, 1]> (x)", "N", True),
        ("y = Reshape (x, to) where int64[2] to = {-1, 4}", "N", True),
        ("y = Reshape (x, to) where int64[2] to = {-1, 4}", 3, False),
        ("y = ReduceMean <axes = [0]> (x)", "N", False),
        ("mean = ReduceMean <axes = [0]> (x) y = Sub (x, mean)", "N", False),
        ("shape = Shape (x) y = Cast <to = 1> (shape)", "N", False),
        ("y = Reshape (x, to) where int64[4] to = {-1, 2, 2, 4}", "N", None),  # which takes no single sample
    ],
)
def test_where_the_outputs_are_those_of_single_samples(text, samples, wanted):
    model = prepare(load_model(parsed(f"float[{samples}, 2, 4] x", text))).graph_model
    fails = pytest.raises(CalibrationDataError, match="the model fails on a batch")
    with fails if wanted is None else contextlib.nullcontext():
        assert may_run_one_by_one(model, {"x": X}, threads=1) is wanted
