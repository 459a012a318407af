"""Which samples of a batch show what."""

import numpy as np
import pytest

from tests.trtint8.onnx_models import Shaped
from tests.trtint8.simulation.two_products import WEIGHTS, opened_products
from trtint8.models.model import load_model, prepare
from trtint8.models.session import ModelSession
from trtint8.quantization.placement import place
from trtint8.sensitivity import quick_probe
from trtint8.sensitivity.effects import ALL, ONLY, EffectMeter
from trtint8.sensitivity.error_network import ErrorNetwork
from trtint8.sensitivity.noise_sums import COLUMN
from trtint8.sensitivity.quick_probe import QuickNetwork
from trtint8.simulation.layers import Quantizer
from trtint8.simulation.segments import cut

NAMES = ("first", "second")
ROWS = np.random.default_rng(4).standard_normal((64, 2)).astype(np.float32)


@pytest.fixture
def few(monkeypatch):
    """Samples are small enough for all of them to show what layers cost, but are not taken to be."""
    monkeypatch.setattr("trtint8.sensitivity.drawing._LEAST", 0)


def measured(feeds, *, labels=None, threads=1, **options):
    """The meter of effects and of local errors after some batches."""
    opened = opened_products()
    network = QuickNetwork(opened.model, opened.quantizer, opened.network, threads=threads, **options)
    variants = [ALL, *((ONLY, name) for name in NAMES)]
    effects = EffectMeter(
        variants, {"second_out": 0.5}, classes=True, labelled=labels is not None, predicted=True
    )
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
    opened, open_graph_model = [], quick_probe.open_graph_model

    def noted(model, *, threads, **options):
        opened.append(threads)
        return open_graph_model(model, threads=threads, **options)

    monkeypatch.setattr(quick_probe, "open_graph_model", noted)
    measured([ROWS, ROWS[:1]], threads=threads)  # eight parts, and one
    assert opened == [per_run]


def test_local_errors_are_measured_with_the_first_samples_only():
    _, local = measured([ROWS[:1], ROWS[1:6], ROWS[6:]])
    assert [meter.samples for meter in local] == [1, 1, 0]


def pooled(shape):
    """A product with every row of an image and the mean over all rows, of which gradients need the number."""
    g = Shaped(quantized=False)
    product = g.op("MatMul", ["x", g.constant(WEIGHTS)], "first")
    source = g.model({"x": shape}, g.op("ReduceMean", [product], "mean", axes=[1], keepdims=0))
    model = prepare(load_model(source)).graph_model
    quantizer = Quantizer.of(place(model), {"x": 1.0})
    return QuickNetwork(model, quantizer, cut(model, quantizer), threads=1)


def test_where_a_size_is_open_gradients_are_those_of_each_batch():
    variants, random = [ALL, (ONLY, "first")], np.random.default_rng(5)
    network, found = pooled(["N", "rows", 2]), []
    for rows in (3, 5, 5, 3):
        feed = {"x": random.uniform(-1, 1, (8, rows, 2)).astype(np.float32)}
        for one in (network, pooled(["N", rows, 2])):
            effects = EffectMeter(variants, {"mean_out": 0.5}, classes=True, labelled=False, predicted=True)
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
    network = pooled(["N", "rows", 2])
    effects = EffectMeter(
        [ALL, (ONLY, "first")], {"mean_out": 0.5}, classes=True, labelled=False, predicted=True
    )
    for first, rows in enumerate((3, 5, 3, 5, 4, 3, 5)):
        network.measure({"x": np.ones((1, rows, 2), np.float32)}, None, 8 + first, effects)
    assert sizes == made


def test_the_first_samples_give_scales_and_a_time():
    opened = opened_products()
    network = QuickNetwork(opened.model, opened.quantizer, opened.network, threads=1)
    reference, samples, seconds = network.begin({"x": ROWS})
    np.testing.assert_allclose(reference["second_out"], ROWS[:2] @ WEIGHTS @ WEIGHTS, rtol=1e-5)
    assert samples == 2
    assert seconds > 0
    assert reference["second_out"].base is None, "not in the memory of a session that is closed"
    effects = EffectMeter(
        [ALL, *((ONLY, name) for name in NAMES)], {"second_out": 0.5}, classes=True, labelled=False
    )
    begun = network.measure({"x": ROWS}, None, 0, effects)
    _, (anew,) = measured([ROWS])
    assert begun.state() == anew.state()
