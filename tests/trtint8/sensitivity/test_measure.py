"""A measurement from end to end: its figures, when it stops, and how it goes on after an interruption."""

import dataclasses
import itertools
import re

import numpy as np
import onnx
import pytest

import trtint8
from calibrators.errors import CalibrationDataError, TableError
from calibrators.tables.table import CalibrationTable, Provenance
from tests.trtint8.detectors import (
    BOXES,
    PICKED_FROM,
    SCORES,
    detector,
    images,
    suppressing_detector,
    unordered_detector,
)
from tests.trtint8.onnx_models import normal
from tests.trtint8.quantization.attention_models import AttentionGraph
from tests.trtint8.sensitivity.measuring import SPLIT, measured
from tests.trtint8.simulation.opened import opened, parsed
from trtint8.data import DEMO_MODEL
from trtint8.models.model import load_model
from trtint8.sensitivity.effects import ALL, COLUMN, ONLY, WITHOUT, EffectMeter, variants_of
from trtint8.sensitivity.gradients.rule import NoGradientError
from trtint8.sensitivity.measure import Measurement, Probe
from trtint8.sensitivity.quick_probe import QuickNetwork
from trtint8.simulation.networks import Form
from trtint8.simulation.segments import propagate


def measured_and_validated(model, data):
    """What a model's layers cost, and the SQNR that validation finds."""
    table = trtint8.calibrate(model, data, tensors="placed", progress=False)
    found = trtint8.measure_sensitivity(model, table, data, progress=False)
    validated = trtint8.validate(trtint8.quantize(model, table), data, reference=model, progress=False)
    assert found.quantized.sqnr_db == pytest.approx(validated.outputs[0].sqnr_db, abs=0.1)
    return found


#: Two halves of an image's rows, twice, as an unfolding makes them.
UNFOLDED = (
    "h0 = Slice (first, zero, four, two) h1 = Slice (first, four, eight, two) "
    "one = Concat <axis = 1> (h0, h1) q0 = Slice (one, zero, two, two) q1 = Slice (one, two, four, two) "
    "joined = Concat <axis = 1> (q0, q1)"
)


@pytest.mark.parametrize(
    ("join", "channels", "concats"),
    [
        (UNFOLDED, 16, ("one", "joined")),
        ("joined = Concat <axis = 1> (first, first)", 8, ("joined",)),
        (
            "one = Concat <axis = 1> (first, first) pool = MaxPool <kernel_shape = [1, 1]> (first) "
            "joined = Concat <axis = 1> (one, first, pool)",
            16,
            ("one", "joined"),
        ),
        (
            "one = Concat <axis = 1> (first, first) turned = Transpose <perm = [0, 1, 3, 2]> (one) "
            "joined = Concat <axis = 1> (turned)",
            8,
            ("one", "joined"),
        ),
    ],
)
def test_concats_do_not_count_the_noise_of_their_readers_again(join, channels, concats):
    text = (
        f"first = Conv (x, v) {join} last = Conv (joined, w) where int64[1] zero = {{0}}, "
        f"int64[1] two = {{2}}, int64[1] four = {{4}}, int64[1] eight = {{8}}, float[4, 4, 1, 1] v, float[4, "
        f"{channels}, 1, 1] w"
    )
    model = parsed("float[N, 4, 8, 8] x", text, "float[] last", scale=0.1)
    found = measured_and_validated(model, normal(16, 4, 8, 8))
    assert {layer.node: layer.copies for layer in found.layers} == {"first": (), "last": concats}
    assert sum(layer.noise_share for layer in found.layers) == pytest.approx(1.0)
    # The noise of single layers adds up to that of the network.
    noise = sum(10 ** (-layer.only.sqnr_db / 10) for layer in found.layers)
    assert -10 * np.log10(noise) == pytest.approx(found.quantized.sqnr_db, abs=1.5)


def _ends_in_a_concat(g, context):
    return g.op("Relu", [g.op("Concat", [context, context], "copy", axis=3)], "relu")


def _partly_read(g, context):
    joined = g.joined(context)
    linear = g.op("MatMul", [joined, g.weights(g.width, g.width)], "linear")
    return g.op("Add", [linear, g.op("Sigmoid", [joined], "sigmoid")], "sum")


@pytest.mark.parametrize(("ending", "rounding"), [(_ends_in_a_concat, "copy"), (_partly_read, "turn")])
def test_what_reads_an_attention_has_a_row_where_nothing_behind_it_rounds_the_same(ending, rounding):
    g = AttentionGraph()
    model = g.model(g.inputs, ending(g, g.context(g.softmax(g.scores()))))
    found = measured_and_validated(model, 4 * normal(16, 8, 32))
    layers = {layer.node: layer for layer in found.layers}
    assert layers[rounding].noise_share > 0
    assert all(layer.copies == () for layer in found.layers)
    # Its values are rounded already where they are read.
    behind = [layer.activations_db for name, layer in layers.items() if name == "linear"]
    assert behind in ([], [None])


@pytest.mark.slow
def test_the_whole_network_costs_what_validation_says(table):
    found = measured(table, limit=None, tolerance_db=0.0)
    accuracy = trtint8.validate(
        trtint8.quantize(DEMO_MODEL, table),
        SPLIT.heldout_images,
        labels=SPLIT.heldout_labels,
        reference=DEMO_MODEL,
        progress=False,
    )
    assert found.samples == accuracy.samples
    assert found.quantized.sqnr_db == pytest.approx(accuracy.outputs[0].sqnr_db, abs=0.05)
    assert found.quantized.top1 == accuracy.top1
    assert found.reference_top1 == accuracy.reference_top1
    assert found.quantized.agreement == accuracy.agreement


@pytest.mark.parametrize(("tolerance", "shown"), [(0.01, 136), (0.0, 512)])
def test_how_many_samples_show_single_layers(table, monkeypatch, tolerance, shown):
    monkeypatch.setattr("trtint8.sensitivity.effects._LEAST", 0)
    found = measured(table, limit=512, batch_size=64, tolerance_db=tolerance)
    assert (found.samples, found.shown) == (512, shown)


def test_a_fixed_batch_makes_no_difference(table):
    """Samples that are computed by themselves are told apart whatever number of them the model takes."""
    fixed = onnx.load(DEMO_MODEL)
    for value in (*fixed.graph.input, *fixed.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 64
    own = dataclasses.replace(table.provenance, model=load_model(fixed).fingerprint)
    found, wanted = (
        trtint8.measure_sensitivity(
            model,
            dataclasses.replace(table, provenance=provenance),
            SPLIT.heldout_images[:128],
            batch_size=64,
            progress=False,
        )
        for model, provenance in ((fixed, own), (DEMO_MODEL, table.provenance))
    )
    assert [layer.only.sqnr_db for layer in found.layers] == pytest.approx(
        [layer.only.sqnr_db for layer in wanted.layers], abs=1e-3
    )


def test_layers_by_name_with_shares_that_add_up(table):
    found = measured(table, limit=64)
    assert [layer.operator for layer in found.layers].count("Conv") + 1 <= len(found.layers)
    assert sum(layer.noise_share for layer in found.layers) == pytest.approx(1)
    loudest = found.worst_first[0]
    assert loudest.noise_share == max(layer.noise_share for layer in found.layers)
    for layer in found.layers:
        assert layer.only.sqnr_db > found.quantized.sqnr_db
        assert (layer.weights_db is None) == (layer.operator == "Add")
        assert layer.activations_db > 20


def test_an_outlier_is_found_and_named(table):
    """One range blown up a hundredfold: that layer makes nearly all the noise, from its activations."""
    tensor = next(iter(table.histograms))
    blown = table.override({tensor: 100 * table.amax[tensor]})
    found = measured(blown, limit=64)
    worst = found.worst_first[0]
    assert worst.noise_share > 0.9
    assert worst.weights_db > worst.activations_db + 20
    assert "outliers" in [suspect.kind for suspect in worst.suspects]
    # Without it, the network is better than with it.
    assert worst.without.sqnr_db > found.quantized.sqnr_db + 10
    # The error enters there and is nowhere before.
    position = found.layers.index(worst)
    assert all(layer.cumulative_db < 25 for layer in found.layers[position:])
    assert all(layer.cumulative_db > 25 for layer in found.layers[:position])


def test_a_softmax_before_a_layer_is_named_where_the_layer_makes_much_of_the_noise():
    text = (
        "a = Softmax (x) loud = MatMul (a, v) b = Softmax (x) quiet = MatMul (b, w) "
        "less = Mul (quiet, hundredth) y = Concat <axis = 1> (loud, less) where float[8, 8] v, float[8, 8] "
        "w, float hundredth = {0.01}"
    )
    found = measured_and_validated(parsed("float[N, 8] x", text), normal(64, 8))
    kinds = {layer.node: [suspect.kind for suspect in layer.suspects] for layer in found.layers}
    assert (kinds["loud"], kinds["quiet"]) == (["delicate-neighbour"], [])


@pytest.mark.slow
def test_it_stops_when_certain(table):
    same = np.repeat(SPLIT.heldout_images[:1], 500, axis=0)
    found = measured(table, same, labels=None, batch_size=32, tolerance_db=3.0)
    assert (found.samples, found.converged) == (64, True)
    half = [layer.only.interval_db[1] - layer.only.sqnr_db for layer in found.layers]
    # All samples are the same: what is left is what gradients, and random directions, are uncertain about.
    assert min(half) > 0.7 and max(half) < 3.0
    few = measured(table, limit=64, tolerance_db=0.001)
    assert (few.samples, few.converged) == (64, False)


def test_the_plan_is_told_before_the_work(table):
    plans = []
    found = measured(table, limit=40, on_plan=plans.append)
    (plan,) = plans
    assert (plan.layers, plan.samples) == (len(found.layers), 40)
    assert 0 < plan.seconds_per_sample < 5


def test_data_that_does_not_fit(table):
    with pytest.raises(CalibrationDataError, match="the data holds no samples"):
        measured(table, iter([]), labels=None)
    with pytest.raises(CalibrationDataError, match="images"):
        measured(table, {"pictures": SPLIT.heldout_images}, labels=None)


def test_a_table_of_another_model_is_not_called_stale(table):
    other = dataclasses.replace(
        table, amax={**table.amax, "strange": 1.0}, provenance=Provenance(model="another")
    )
    with pytest.raises(TableError, match=r"1.*'strange'"):
        measured(other, SPLIT.heldout_images, labels=None)


def test_detections_are_measured_by_what_they_are_picked_from():
    """After non-maximum suppression, INT8 has another number of boxes."""
    picking, dense = suppressing_detector(), unordered_detector(batch=1)
    options = {"batch_size": 1, "progress": False}
    of_dense = trtint8.calibrate(dense, images(16, seed=1), **options)
    table = trtint8.calibrate(picking, images(16, seed=1), **options).override(dict(of_dense.amax))
    plans = []
    found = trtint8.measure_sensitivity(picking, table, images(12), on_plan=plans.append, **options)
    wanted = trtint8.measure_sensitivity(
        dense, trtint8.CalibrationTable(dict(of_dense.amax)), images(12), **options
    )
    assert [plan.picked_from for plan in plans] == [PICKED_FROM]
    assert [layer.node for layer in found.layers] == ["one_stem", "one_boxes", "one_classes"]
    assert found.samples == wanted.samples == 12
    for got, other in zip(found.layers, wanted.layers, strict=True):
        assert got.only.sqnr_db == pytest.approx(other.only.sqnr_db, abs=0.01)
        assert 20 < got.only.sqnr_db < 90


def test_an_output_that_is_a_constant_is_left_out():
    table, rows = CalibrationTable({"x": 3.0, "y": 4.0}), normal(16, 4)
    text = "h = Gemm (x, w) y = Relu (h) where float[4, 4] w"
    found, wanted = (
        trtint8.measure_sensitivity(parsed("float[N, 4] x", text, outputs), table, rows, progress=False)
        for outputs in ("float[N, 4] y, float[4, 4] w", "float[N, 4] y")
    )
    assert found.quantized == wanted.quantized
    assert [layer.only for layer in found.layers] == [layer.only for layer in wanted.layers]


@pytest.mark.parametrize("batch_size", [1, 4])
def test_samples_that_are_not_finite_are_named_by_their_file(tmp_path, batch_size):
    """Whether they are in the first batch or in a later one."""
    model, rows = parsed("float[N, 4] x", "y = MatMul (x, w) where float[4, 4] w"), normal(4, 4)
    table = trtint8.calibrate(model, {"x": rows}, method="minmax", progress=False)
    rows[2] = np.inf
    for number, row in enumerate(rows):
        np.save(tmp_path / f"{number}.npy", row)
    with pytest.raises(
        CalibrationDataError, match=r"4 values that are NaN .* the first in '.*2\.npy'; remove"
    ):
        trtint8.measure_sensitivity(model, table, tmp_path, batch_size=batch_size, progress=False)


def probing(model, **options):
    return Probe(model.model, model.quantizer, inputs=model.prepared.inputs, **options)


X = np.random.default_rng(2).standard_normal((96, 4)).astype(np.float32)
PROBE_X = np.random.default_rng(1).standard_normal((5, 4)).astype(np.float32)
NAMES = ("first", "second")


@pytest.fixture(scope="module")
def products():
    """Two products, the second of which gives scores of three classes."""
    text = "first = MatMul (x, v) second = MatMul (first, w) where float[4, 4] v, float[4, 3] w"
    return opened("float[N, 4] x", text, "float[] second")


def measuring(products, tolerance):
    return Measurement(products.prepared, products.layers, tolerance, None)


def results(products, read):
    """What batches of 16 samples show; counts the samples that were read."""
    probe = probing(products)
    probe.begin({"x": X[:16]}, 0, labelled=False)
    for start in range(0, len(X), 16):
        read.append(16)
        yield probe.run({"x": X[start : start + 16]}, None, start)


@pytest.mark.parametrize("tolerance", ["a", None, True, -1.0, float("nan")])
def test_tolerances_that_make_no_sense(products, tolerance):
    with pytest.raises(
        CalibrationDataError, match=f"tolerance_db is {tolerance!r}; give a number of decibels"
    ):
        measuring(products, tolerance)


@pytest.mark.parametrize(
    ("tolerance", "samples", "converged"), [(100.0, 64, True), (0.001, 96, False), (0.0, 96, True)]
)
def test_it_stops_when_certain_and_not_before_there_are_enough_samples(
    products, tolerance, samples, converged
):
    measurement, read, table = measuring(products, tolerance), [], CalibrationTable(products.amax)
    measurement.run(results(products, read))
    found = measurement.result(table)
    assert sum(read) == found.samples == samples
    assert (found.converged, found.tolerance_db) == (converged, tolerance)
    assert tuple(layer.node for layer in found.layers) == NAMES
    first, second = found.layers
    assert first.noise_share + second.noise_share == pytest.approx(1.0)
    ratio = 10 ** ((second.only.sqnr_db - first.only.sqnr_db) / 10)
    assert first.noise_share / second.noise_share == pytest.approx(ratio)
    assert found.table_fingerprint == table.fingerprint
    assert found.model_fingerprint == products.prepared.fingerprint


def test_no_samples(products):
    with pytest.raises(CalibrationDataError, match="the data holds no samples"):
        measuring(products, 1.0).run(iter(()))


@pytest.fixture
def probe(products):
    made = probing(products)
    assert made.begin({"x": PROBE_X}, 0, labelled=True) > 0
    assert made.effects.predicted
    assert tuple(layer.name for layer in made.layers) == NAMES
    return made


@pytest.fixture
def exact(products, probe):
    """The same, with every layer run by itself."""
    meter = EffectMeter(
        variants_of(NAMES, predicted=False), probe.effects.scales, classes=True, labelled=True
    )
    return probing(products, effects=meter)


def outputs(network, forms):
    tensors = {"x": PROBE_X}
    for segment, form in zip(network.segments, forms, strict=True):
        tensors |= segment.run(form, tensors)
    return tensors["second"]


def test_every_variant_is_measured(products, exact):
    network = products.network
    found = exact.run({"x": PROBE_X}, np.zeros(9, np.int64), 0)
    assert found.samples == 5
    exact = outputs(network, (Form.FLOAT, Form.FLOAT))
    variants = {
        ALL: (Form.INT8, Form.INT8),
        (ONLY, "first"): (Form.INT8, Form.FLOAT),
        (WITHOUT, "first"): (Form.FLOAT, Form.INT8),
        (ONLY, "second"): (Form.FLOAT, Form.INT8),
        (WITHOUT, "second"): (Form.INT8, Form.FLOAT),
    }
    for variant, forms in variants.items():
        wanted = 10 * np.log10(np.square(exact).sum() / np.square(exact - outputs(network, forms)).sum())
        assert found.effects.effect(variant).sqnr_db == pytest.approx(wanted, abs=1e-3)
    assert found.effects.reference_top1().total == 5
    assert found.local.levels("first")[0] > 20


def test_gradients_predict_what_a_run_of_every_layer_shows(probe, exact):
    """With samples enough to be certain, one of eight for its class and the others for the noise."""
    rows = np.random.default_rng(7).standard_normal((2000, 4)).astype(np.float32) / 4
    predicted, wanted = (one.run({"x": rows}, np.zeros(2000, np.int64), 0).effects for one in (probe, exact))
    assert predicted.effect(ALL) == wanted.effect(ALL)
    for name, remaining in zip(NAMES, predicted.remaining_effects(NAMES), strict=True):
        alone, real = predicted.effect((ONLY, name)), wanted.effect((ONLY, name))
        assert alone.sqnr_db == pytest.approx(real.sqnr_db, abs=0.5)
        assert alone.interval_db[0] < real.sqnr_db < alone.interval_db[1]
        assert alone.cosine == pytest.approx(real.cosine, abs=2e-3)
        assert alone.agreement.total == alone.top1.total < real.agreement.total == 2000
        assert alone.agreement.value == pytest.approx(real.agreement.value, abs=0.02)
        real = wanted.effect((WITHOUT, name))
        assert remaining.interval_db[0] < real.sqnr_db < remaining.interval_db[1]
        assert remaining.sqnr_db == pytest.approx(real.sqnr_db, abs=1.0)
        assert remaining.cosine == pytest.approx(real.cosine, abs=2e-3)


def test_a_network_whose_gradients_are_unknown_is_run_layer_by_layer(caplog, monkeypatch):
    text = "first = MatMul (x, w) sign = Sign (first) where float[4, 4] w"
    model = opened("float[N, 4] x", text, "float[] sign")
    caplog.set_level("INFO", logger="trtint8.sensitivity.measure")
    probe = probing(model)
    assert "Sign 'sign': the gradient of this operator is not known" in caplog.text
    ticks = itertools.count()
    with monkeypatch.context() as patched:  # a run of the network takes a second
        patched.setattr("trtint8.sensitivity.measure.time.perf_counter", lambda: float(next(ticks)))
        assert probe.begin({"x": PROBE_X}, 0, labelled=False) == 3 / len(PROBE_X)
    found = probe.run({"x": PROBE_X}, None, 0).effects
    assert not found.predicted
    assert found.effect((WITHOUT, "first")).sqnr_db == np.inf
    assert found.effect((ONLY, "first")) == found.effect(ALL)


def test_gradients_that_predict_far_more_noise_than_there_is_are_not_used(caplog):
    """As of a logarithm of values that are nearly zero: any error is large beside them."""
    model = opened(
        "float[N, 4] x",
        "first = MatMul (x, w) square = Mul (first, first) power = Add (square, little) level = Log (power) "
        "where float[4, 1] w = {1.0, -0.5, 0.0, 0.0}, float little = {1e-11}",
        "float[] level",
    )
    x = PROBE_X.copy()
    x[:, 0] = x[:, 1] / 2 + np.float32(3e-6)
    caplog.set_level("INFO", logger="trtint8.sensitivity.measure")
    probe = probing(model)
    probe.begin({"x": x}, 0, labelled=False)
    assert not probe.effects.predicted
    assert re.search(r"by their gradients, layers have \d\d dB more noise than the quantized", caplog.text)
    assert probe.run({"x": x}, None, 0).effects.effect((ONLY, "first")).sqnr_db > -10


TURNED = "y = Transpose <perm = [1, 0]> (second)"
IN_ROWS = "y = Reshape (second, rows)"  # the steps of all samples along the first axis
COMPARED = "turned = Transpose <perm = [1, 0]> (second) y = MatMul (turned, second)"


def finished(end, samples="N"):
    """A product of a product, what is computed from it at the end, and its probe."""
    products = "first = MatMul (x, w) second = MatMul (first, w)"
    text = f"{products} {end} where float[4, 4] w, int64[2] rows = {{-1, 2}}"
    return probing(opened(f"float[{samples}, 4] x", text, ranges=8.0))


@pytest.mark.parametrize(("end", "samples"), [("y = Identity (second)", 5), (COMPARED, "N")])
def test_where_samples_of_a_batch_cannot_be_told_apart_every_layer_is_run_by_itself(end, samples, caplog):
    """Gradients would show one random product for the whole batch."""
    caplog.set_level("INFO", logger="trtint8.sensitivity.measure")
    probe = finished(end, samples)
    probe.begin({"x": PROBE_X}, 0, labelled=False)
    assert "the samples of a batch cannot be told apart in the network's outputs" in caplog.text
    assert not probe.effects.predicted


@pytest.mark.parametrize("end", [TURNED, IN_ROWS])
def test_samples_that_lie_elsewhere_in_outputs_are_run_one_by_one(end):
    """As of readers of text lines, whose outputs join the steps of all lines."""
    probe = finished(end)
    probe.begin({"x": PROBE_X}, 0, labelled=False)
    assert probe.effects.predicted
    found = probe.run({"x": PROBE_X}, None, 0)
    alone = finished(end)
    alone.begin({"x": PROBE_X[:1]}, 0, labelled=False)
    assert probe.effects.scales == alone.effects.scales
    results = [alone.run({"x": PROBE_X[row : row + 1]}, None, row) for row in range(5)]
    np.testing.assert_array_equal(found.effects.sums, sum(result.effects.sums for result in results))
    row = found.effects.variants.index((ONLY, "first"))
    assert found.effects.sums[row, COLUMN["shown"]] == 5
    assert found.local.samples == 2


def test_outputs_that_are_no_row_of_classes_per_sample_show_no_classes():
    probe = finished(IN_ROWS)
    probe.begin({"x": PROBE_X}, 0, labelled=True)
    effect = probe.run({"x": PROBE_X}, np.zeros(5, np.int64), 0).effects.effect(ALL)
    assert (effect.agreement, effect.top1) == (None, None)


def test_batches_of_one_sample_need_not_be_told_apart():
    probe = finished(COMPARED)
    probe.begin({"x": PROBE_X[:1]}, 0, labelled=False)
    assert probe.effects.predicted


def ratio(divisors):
    """A product over what is given for each sample, and its probe."""
    text = (
        "first = MatMul (x, w) none = Equal (z, zero) quotient = Div (first, z) "
        "y = Where (none, first, quotient) where float[4, 4] w, float zero = {0}"
    )
    probe, feed = probing(opened("float[N, 4] x, float[N, 4] z", text)), {"x": PROBE_X, "z": divisors}
    probe.begin(feed, 0, labelled=False)
    return probe, feed


def test_gradients_that_are_not_finite_are_not_used(caplog):
    """As of a division by zero whose result the network does not take."""
    caplog.set_level("INFO", logger="trtint8.sensitivity.measure")
    probe, feed = ratio(np.zeros_like(PROBE_X))
    assert not probe.effects.predicted
    assert "every layer is run by itself" in caplog.text and "infinite slope" in caplog.text
    found = probe.run(feed, None, 0).effects
    assert found.effect((ONLY, "first")) == found.effect(ALL)


def test_gradients_that_are_not_finite_for_later_samples_are_refused():
    probe, feed = ratio(np.ones_like(PROBE_X))
    assert probe.effects.predicted
    with pytest.raises(CalibrationDataError, match="sample 64"):
        probe.run({**feed, "z": np.zeros_like(PROBE_X)}, None, 64)


def test_classes_that_are_the_first_output_are_no_scores():
    """As of networks that give the likeliest class of every position before its scores."""
    text = (
        "scores = MatMul (x, w) bent = Softsign (scores) best = ArgMax <axis = 2, keepdims = 0> (bent) "
        "where float[4, 3] w"
    )
    probe = probing(opened("float[N, 2, 4] x", text, "int64[N, 2] best, float[N, 2, 3] scores"))
    feed = {"x": PROBE_X[:4, None] + np.zeros((1, 2, 1), np.float32)}
    probe.begin(feed, 0, labelled=False)
    found = probe.run(feed, None, 0).effects
    assert not found.classes
    assert found.effect(ALL).sqnr_db > 30
    assert found.effect(ALL).agreement is None


def test_a_batch_of_other_shapes_whose_gradients_are_unknown_is_refused(products, probe, monkeypatch):
    def unknown(*_):
        raise NoGradientError("Concat 'join': sizes differ")

    monkeypatch.setattr(QuickNetwork, "measure", unknown)
    with pytest.raises(CalibrationDataError, match=r"'x'.*5x4.*'join'"):
        probe.run({"x": PROBE_X}, np.zeros(5, np.int64), 0)


def test_samples_that_were_measured_before_are_only_looked_at(products, probe):
    skipping = probing(products, skip=5, effects=probe.effects)
    found = skipping.run({"x": PROBE_X}, None, 0)
    assert (found.samples, found.effects, found.local) == (5, None, None)
    assert (
        found.fingerprint.hexdigest()
        == probe.run({"x": PROBE_X}, np.zeros(5, np.int64), 0).fingerprint.hexdigest()
    )


def test_batches_that_do_not_fit(probe):
    with pytest.raises(CalibrationDataError, match="x"):
        probe.run({"x": PROBE_X[:, :3]}, None, 0)
    with pytest.raises(CalibrationDataError, match="labels"):
        probe.run({"x": PROBE_X}, np.zeros(3, np.int64), 0)


def test_an_input_that_is_an_output_too():
    text = "flat = Flatten (x) scores = Gemm (flat, w) where float[48, 5] w"
    model = parsed("float[N, 3, 4, 4] x", text, "float[N, 5] scores, float[N, 3, 4, 4] x")
    data = np.random.default_rng(0).random((16, 3, 4, 4), np.float32)
    table = trtint8.calibrate(model, data, method="minmax", progress=False)
    result = trtint8.measure_sensitivity(model, table, data, progress=False)
    assert result.quantized.agreement.total == 16


def test_a_meter_of_other_outputs(products):
    variants = variants_of(NAMES, predicted=True)
    meter = EffectMeter(variants, {"whole": 1.0}, classes=False, labelled=False, predicted=True)
    with pytest.raises(TableError, match="the checkpoint is of the outputs whole, which are not those"):
        probing(products, effects=meter)


@pytest.mark.parametrize("predicted", [True, False])
def test_boxes_do_not_hide_the_scores_of_a_detector(predicted):
    model = opened(detector(), None)
    layers, scales = ("one_stem", "one_boxes", "one_classes"), {BOXES: 200.0, SCORES: 0.5}
    variants = variants_of(layers, predicted=predicted)
    meter = EffectMeter(variants, scales, classes=False, labelled=False, predicted=predicted)
    feed = {"images": images(256)}
    effects = probing(model, effects=meter).run(feed, None, 0).effects
    found = propagate(model.network, feed, lambda *_: None)
    for layer in layers:
        error = (found.only[layer]["joined_out"] - found.reference["joined_out"]).astype(np.float64)
        noise = np.square(error[:, :4] / 200).sum() + np.square(error[:, 4:] / 0.5).sum()
        assert effects.noise((ONLY, layer)) == pytest.approx(noise, rel=0.25 if predicted else 1e-4)
    first = probing(model)
    first.begin(feed, 0, labelled=False)
    assert list(first.effects.scales) == [BOXES, SCORES]


@pytest.mark.parametrize(("amax", "kinds"), [(5.998, []), (5.0, ["clipped"])])
@pytest.mark.parametrize("depthwise", [False, True])
def test_a_relu6_is_cut_off_only_by_ranges_that_lose_more_than_half_a_step(amax, kinds, depthwise):
    channels, groups = ("8, 1", 8) if depthwise else ("4, 8", 1)
    text = (
        f"first = Conv (x, v) relu6 = Clip (first, low, high) last = Conv <group = {groups}> (relu6, w) "
        f"where float[8, 4, 1, 1] v, float low = {{0}}, float high = {{6}}, float[{channels}, 1, 1] w"
    )
    model, held = parsed("float[N, 4, 8, 8] x", text, "float[] last", scale=0.1), "relu6"
    data = 60 * normal(16, 4, 8, 8)
    table = trtint8.calibrate(model, data, method="minmax", progress=False)
    assert table.histograms[held].above(5.999) > 0.01 * table.histograms[held].total
    table = dataclasses.replace(table, amax={**table.amax, held: amax})
    found = trtint8.measure_sensitivity(model, table, data, progress=False)
    assert {layer.node: [one.kind for one in layer.suspects] for layer in found.layers} == {
        "first": [],
        "last": kinds,
    }
