"""The method auto on whole models."""

import gc
import threading
import weakref

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import trtint8
from calibrators.errors import CalibrationDataError
from calibrators.histograms.rules import NEAR, RULES, TIGHT, range_of
from calibrators.histograms.thresholds import mse
from calibrators.tables.choice import RangeChoice
from tests.trtint8.detectors import images, suppressing_detector, unordered_detector
from tests.trtint8.interruptions import interrupted
from tests.trtint8.onnx_models import Shaped, parsed
from tests.trtint8.range_choice import networks
from tests.trtint8.range_choice.noisy import HISTOGRAMS, Noisy, choose, chosen
from trtint8.data import DEMO_MODEL
from trtint8.models.model import load_model, prepare
from trtint8.range_choice import compared
from trtint8.range_choice.auto import AutoRanges, plain_ranges
from trtint8.range_choice.compared import ComparedModel
from trtint8.range_choice.trial_network import TrialNetwork

#: Samples of large outputs that the best rules are tried on: eight, and more where it is not certain which
#: one is best.
TRIED = range(8, 21)


def calibrated(model, data, **options):
    return trtint8.calibrate(model, data, progress=False, spend=0, **options)


def with_peaks(every):
    """Images whose last channel has one large value, in every so many of them."""
    images = networks.normal(64, 4, 32, 32)
    images[::every, 3, 4, 4] = 60
    return images


@pytest.mark.filterwarnings("ignore:.*much of the tensor")
def test_values_that_the_network_ignores_are_clipped():
    table = calibrated(networks.one_channel_weighs(0), with_peaks(3))
    assert table.choice.rule in ("entropy", "percentile", TIGHT, NEAR)
    assert table.amax["x"] < 8
    assert table.choice.sqnr_db[table.choice.rule] > table.choice.sqnr_db["minmax"] + 15


def test_values_that_the_network_needs_are_not_clipped():
    table = calibrated(networks.one_channel_weighs(10), with_peaks(1))
    assert table.amax["x"] > 50 > 8 > table.with_method("entropy").amax["x"]


def test_the_ranges_are_those_of_the_rule_that_is_best():
    table = calibrated(networks.convolutions(), networks.normal(40), tensors="placed")
    choice = table.choice
    assert (table.method, set(table.amax)) == ("auto", {"x", "relu_out"})
    assert table.amax == {name: range_of(found, choice.rule) for name, found in table.histograms.items()}
    assert choice.samples[choice.rule] == max(choice.samples.values())
    assert max(choice.samples.values()) in TRIED
    assert set(choice.samples) == set(choice.sqnr_db) and set(choice.samples) - {TIGHT, NEAR} == set(RULES)
    assert 25 < choice.sqnr_db[choice.rule] < 60


@pytest.mark.parametrize("build", [networks.whole_numbers, networks.without_weights])
def test_without_outputs_to_compare_the_squared_error_decides(build):
    table = calibrated(build(), networks.normal(8))
    assert (table.choice.rule, table.choice.samples, table.choice.sqnr_db) == ("mse", {}, {})
    assert table.amax == table.with_method("mse").amax


def test_what_is_picked_is_judged_by_what_it_is_picked_from():
    table = calibrated(networks.class_numbers(), networks.normal(40))
    scores = calibrated(networks.one_convolution(), networks.normal(40))
    assert table.choice == scores.choice and table.choice.samples
    assert table.amax == {name: scores.amax[name] for name in table.amax}


def test_detections_by_suppression():
    dense, picking = unordered_detector(batch=1), suppressing_detector()
    found, wanted = (calibrated(model, images(24), batch_size=1) for model in (picking, dense))
    assert found.choice.samples == wanted.choice.samples and found.choice.rule == wanted.choice.rule
    assert found.choice.sqnr_db == pytest.approx(wanted.choice.sqnr_db, abs=1e-3)


def test_samples_of_a_fixed_batch_are_told_apart():
    table = calibrated(networks.convolutions({"x": [4, 4, 8, 8]}), networks.normal(24))
    assert table.provenance.samples == 24
    same = calibrated(networks.convolutions(), networks.normal(24))
    assert (table.rule, table.choice.samples) == (same.rule, same.choice.samples)


def test_two_inputs_and_outputs():
    data = {"x": networks.normal(20), "z": networks.normal(20, seed=1)}
    table = calibrated(networks.two_inputs_and_outputs(), data)
    assert table.choice.samples["mse"] in TRIED
    assert 25 < table.choice.sqnr_db[table.choice.rule] < 60


def positive_products(extra=""):
    """A model of positive values, with another output."""
    given = ", float[N, ?] z" if extra else ""
    body = f"hidden = MatMul (x, w) y = Relu (hidden) {extra}"
    model = parsed("float[N, 16] x, float[N, 16] past", f"float[N, 16] y{given}", body)
    weights = np.random.default_rng(0).uniform(0, 1, (16, 16)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return model


@pytest.mark.parametrize(
    "extra",
    ["z = Neg (x)", "z = Concat <axis = 1> (past, y)", "z = Sign (y)"],
    ids=["copied", "past", "exact"],
)
def test_what_int8_does_not_change_hides_no_noise(extra):
    x = np.random.default_rng(1).uniform(0, 1, (16, 16)).astype(np.float32)
    bare, choice = (
        calibrated(positive_products(one), {"x": x, "past": 9 * x[::-1]}).choice for one in ("", extra)
    )
    assert choice.outputs == {} and choice.rule == bare.rule
    assert choice.sqnr_db == pytest.approx(bare.sqnr_db, abs=1e-3)


def test_no_figure_counts_what_an_output_copies():
    data = {"x": np.random.default_rng(1).uniform(0, 1, (16, 16)).astype(np.float32)}
    data["past"] = 9 * data["x"][::-1]
    model = positive_products("z = Concat <axis = 1> (past, y)")
    table = calibrated(model, data)
    int8 = trtint8.quantize(model, table)
    accuracy = trtint8.validate(int8, data, reference=model, metrics=["sqnr", "token_cosine"], progress=False)
    alone, joined = accuracy.outputs
    assert (joined.sqnr_db, joined.cosine) == pytest.approx((alone.sqnr_db, alone.cosine), abs=1e-3)
    assert joined.token_cosine == pytest.approx(alone.token_cosine, abs=1e-6)
    measured = trtint8.measure_sensitivity(model, table, data, progress=False)
    assert measured.quantized.sqnr_db == pytest.approx(alone.sqnr_db, abs=1e-3)


def test_every_output_has_its_own_level():
    """The shifts of boxes are small beside where these are, and hide no noise of scores."""
    body = """
        scores = MatMul (x, w)
        shifts = MatMul (x, v)
        boxes = Add (shifts, anchors)
    """
    model = parsed("float[N, 16] x", "float[N, 16] scores, float[N, 16] boxes", body)
    rng = np.random.default_rng(0)
    weights = {"w": rng.normal(size=(16, 16)), "v": rng.normal(size=(16, 16)), "anchors": np.full(16, 1e3)}
    for name, array in weights.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
    choice = calibrated(model, rng.normal(size=(16, 16)).astype(np.float32)).choice
    assert list(choice.outputs) == ["scores", "boxes"]
    assert choice.sqnr_db[choice.rule] == choice.outputs["scores"] < 50 < 80 < choice.outputs["boxes"]


def test_a_network_that_takes_one_sample_at_a_time(capfd):
    table = calibrated(networks.one_row(), networks.normal(20), batch_size=1)
    assert max(table.choice.samples.values()) in TRIED
    assert "".join(capfd.readouterr()) == ""


def test_samples_of_different_shapes():
    model = networks.convolutions({"x": ["N", 4, "height", 8]})
    feeds = [{"x": networks.normal(1, 4, height, 8, seed=height)} for height in range(4, 16)]
    table = calibrated(model, feeds)
    assert max(table.choice.samples.values()) in TRIED
    again = calibrated(model, feeds[::-1])
    assert (again.choice.rule, again.amax) == (table.choice.rule, table.amax)


@pytest.mark.filterwarnings("ignore:input 'z' is 0 in all")
def test_a_tensor_that_is_always_zero():
    data = {"x": networks.normal(20), "z": np.zeros((20, 4, 8, 8), np.float32)}
    table = calibrated(networks.two_inputs_and_outputs(), data, tensors="placed")
    assert table.amax["z"] == 0 and table.choice.sqnr_db[table.choice.rule] > 25


class TestKnownOutputs:
    """What the float network gave out while it was observed is not computed again."""

    @pytest.fixture
    def rows(self, monkeypatch):
        """How many samples each further run of the float network had."""
        found, reference = [], TrialNetwork.reference

        def counted(network, feed):
            found.append(len(feed["x"]))
            return reference(network, feed)

        monkeypatch.setattr(TrialNetwork, "reference", counted)
        return found

    @pytest.mark.parametrize("build", [networks.convolutions, networks.one_convolution])
    def test_the_choice_is_the_same(self, rows, monkeypatch, build):
        found = calibrated(build(), networks.normal(40))
        assert not rows
        monkeypatch.setattr(ComparedModel, "takes_outputs", False)
        assert calibrated(build(), networks.normal(40)) == found and rows

    @pytest.mark.parametrize("build", [networks.class_numbers, networks.one_row])
    def test_others_are_computed(self, rows, build):
        calibrated(build(), networks.normal(20), batch_size=1)
        assert rows


class TestOpeningAhead:
    """The network that ranges are tried on opens while the float network is observed."""

    @pytest.fixture
    def opened(self, monkeypatch):
        """The networks that are opened, in order."""
        found = []

        class Recorded(TrialNetwork):
            def __init__(self, *arguments, **options):
                super().__init__(*arguments, **options)
                found.append(self)

        monkeypatch.setattr("trtint8.range_choice.compared.TrialNetwork", Recorded)
        return found

    def data(self, opened, *shape):
        """Samples, and how many networks were open when each was read."""
        seen = []

        def feeds():
            for image in networks.normal(20, 1, *shape):
                seen.append(len(opened))
                yield {"x": image}

        return feeds, seen

    def test_one_network_opens_while_the_second_batch_is_run(self, opened):
        feeds, seen = self.data(opened, 4, 8, 8)
        table = calibrated(networks.convolutions(), feeds)
        assert (seen, len(opened)) == ([0, 0] + [1] * 18, 1)
        assert table.choice.samples

    def test_where_sizes_are_open_it_opens_when_they_are_known(self, opened):
        feeds, seen = self.data(opened, 4, 6, 8)
        calibrated(networks.convolutions({"x": ["N", 4, "height", 8]}), feeds)
        assert (set(seen), len(opened)) == ({0}, 1)

    @pytest.mark.parametrize("build", [networks.convolutions, networks.class_numbers])
    def test_the_choice_is_the_same(self, build):
        samples = [{"x": image} for image in networks.normal(12, 1, 4, 8, 8)]
        prepared = prepare(load_model(build()))
        histograms = networks.histograms_of({"x": networks.normal(12), "relu_out": networks.normal(12)})
        found = []
        for ahead in (False, True):
            with AutoRanges(ComparedModel(prepared, 1, "cpu")) as chooser:
                if ahead:
                    chooser.open_ahead()
                found.append(chooser.choose(histograms, samples, 12, progress=False))
        assert found[0] == found[1] and found[0][1].samples

    def test_none_opens_where_the_first_batch_is_refused(self, opened):
        with pytest.raises(CalibrationDataError):
            calibrated(networks.convolutions(), networks.normal(4, 5, 8, 8))
        with pytest.raises(CalibrationDataError):
            calibrated(networks.convolutions(), lambda: iter([{"x": networks.normal(4, 5, 8, 8)}]))
        assert not opened

    def test_no_thread_works_on_where_later_data_is_refused(self, opened):
        feeds = [{"x": networks.normal(4, size, 8, 8)} for size in (4, 4, 5)]
        with pytest.raises(CalibrationDataError):
            calibrated(networks.convolutions(), feeds)
        assert len(opened) == 1
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("trtint8-open")]


class TestDemoModel:
    def test_auto_is_the_default(self, table):
        assert (table.method, table.choice.rule) == ("auto", "mse")
        # Two rules are so close that eight samples do not tell them apart.
        assert 8 < max(table.choice.samples.values()) <= 60
        assert table.choice.sqnr_db[table.choice.rule] > 30

    def test_neither_order_nor_batch_size_nor_an_interruption_leaves_a_trace(self, split, tmp_path):
        images = split.calibration_images[:40]
        wanted = calibrated(DEMO_MODEL, images)
        assert calibrated(DEMO_MODEL, images[::-1].copy(), batch_size=7) == wanted
        interrupted(images, tmp_path / "c")
        assert calibrated(DEMO_MODEL, images, checkpoint=tmp_path / "c", resume=True) == wanted


class TestLargeWeights:
    """Where weights are large, no two networks are open at once."""

    @pytest.fixture
    def opened(self, monkeypatch):
        """How many sessions were alive when each was opened, itself included."""
        alive, found = weakref.WeakSet(), []

        class Recorded(ort.InferenceSession):
            def __init__(self, *arguments, **options):
                super().__init__(*arguments, **options)
                gc.collect()
                alive.add(self)
                found.append(len(alive))

        monkeypatch.setattr(ort, "InferenceSession", Recorded)
        monkeypatch.setattr(compared, "_LARGE_WEIGHTS", 0)
        return found

    @pytest.mark.parametrize("build", [networks.convolutions, networks.class_numbers])
    def test_the_choice_is_the_same_with_one_session_at_a_time(self, build, request):
        data = networks.normal(40)
        wanted = calibrated(build(), data)
        opened = request.getfixturevalue("opened")
        assert calibrated(build(), data) == wanted
        assert len(opened) in (2, 3, 4) and set(opened) == {1}

    def test_a_choice_that_takes_more_samples_opens_the_float_network_again(self, opened):
        opening = networks.trial_network(networks.convolutions(), one_at_a_time=True)
        with opening as (_, placement, network):
            feed = {"x": networks.normal(3)}
            (first,) = network.reference(feed)
            network.close_float()
            network.outputs(feed, network.scales(dict.fromkeys(placement.tensors, 4.0)))
            (second,) = network.reference(feed)
        np.testing.assert_array_equal(first, second)
        assert opened == [1, 1, 2]


@pytest.mark.parametrize("broken", [*range(0, 64, 7), 3])
def test_one_broken_sample_of_64_does_not_choose(broken):
    """Wherever it stands: samples that are tried are chosen by what they hold."""
    data = networks.normal(64)
    data[broken].flat[0] = 1000.0
    with pytest.warns(UserWarning, match=r"reaches 1000 in 1 of 64 samples|loses? much"):
        table = calibrated(networks.convolutions(), data)
    assert table.rule in ("percentile", "tight")
    assert table.choice.samples[table.rule] >= 8
    assert table.amax["x"] < 10


@pytest.mark.filterwarnings("ignore:.*reaches|.*much of the tensor")
@pytest.mark.parametrize("batch", ["N", 16])
@pytest.mark.parametrize("magnitude", [50.0, 700.0, 1e6])
def test_one_huge_value_of_16_samples_decides_nothing_wherever_it_stands(magnitude, batch):
    """It makes the whole row of each later tensor huge: one value in 16."""
    g = Shaped()
    hidden = g.op("Relu", [g.op("MatMul", ["x", g.weights(64, 64)], "hidden")], "relu")
    model = g.model({"x": [batch, 64]}, g.op("MatMul", [hidden, g.weights(64, 8)], "y"))
    rows = networks.normal(16, 64)
    for position in range(16):
        data = rows.copy()
        data[position, 5] = magnitude * np.abs(rows).max()
        assert calibrated(model, data).amax["x"] < 2 * np.abs(rows).max()


@pytest.mark.parametrize(("rows", "largest"), [(16, 8), (1, 1)])
def test_samples_are_run_together_where_the_network_takes_batches(rows, largest):
    amax, choice, network = chosen(lambda found: 0.1 / found, rows=rows)
    assert max(network.sizes) == largest
    assert (amax["a"], choice.samples["minmax"]) == (HISTOGRAMS["a"].amax, 8)


def test_without_floating_point_outputs_the_squared_error_decides():
    feeds = [{"x": np.ones((1, 2), np.int64)}]
    amax, choice, network = chosen(lambda found: 0.1, feeds)
    assert (amax, choice) == plain_ranges(HISTOGRAMS) and not network.sizes
    assert amax == {name: mse(histogram) for name, histogram in HISTOGRAMS.items()}
    assert choice == RangeChoice("mse", {}, {})


def test_no_more_samples_are_run_at_once_than_fit():
    network = Noisy(lambda found: 0.1 / found)
    choose(network, rows=3)
    assert max(network.sizes) == 3


@pytest.mark.parametrize(("separate", "references"), [(False, [4, 1, 4]), (True, [4, 4])])
def test_a_network_that_is_known_to_take_batches_is_not_asked(separate, references):
    network = Noisy(lambda found: 0.1 / found)
    feeds = [{"x": np.full((1, 256), row + 1, np.float32)} for row in range(8)]
    seen, reference = [], network.reference
    network.reference = lambda feed: (seen.append(len(feed["x"])), reference(feed))[1]
    _, choice = choose(network, feeds, separate=separate)
    assert seen == references and choice.rule == "minmax"


def test_an_output_without_a_row_per_sample_is_compared_sample_by_sample():
    network = Noisy(lambda found: 0.1 / found)
    network.reference = lambda feed: [feed["x"].sum(axis=0)]
    network.outputs = lambda feed, scales: [feed["x"].sum(axis=0) * np.float32(1 + 0.1 / scales["a"])]
    _, choice = choose(network)
    assert (choice.rule, choice.samples["minmax"]) == ("minmax", 8)
