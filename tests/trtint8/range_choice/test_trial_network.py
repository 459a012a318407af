"""The network that ranges are tried on computes what the quantized model computes."""

import gc
import threading

import numpy as np
import onnxruntime as ort
import pytest

import trtint8
from calibrators.errors import CalibrationDataError
from tests.trtint8.detectors import detector, images
from tests.trtint8.range_choice import networks
from trtint8.range_choice.trial_network import Noise, References, difference, mean_level


def run(model, feed):
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, feed)


def distance(got, wanted):
    return np.linalg.norm(got - wanted) / np.linalg.norm(wanted)


@pytest.mark.parametrize("build", [networks.convolutions, networks.branches, networks.two_inputs_and_outputs])
@pytest.mark.parametrize("factor", [1.0, 0.3])
def test_it_computes_what_the_quantized_model_computes(build, factor):
    model = build()
    feed = {value.name: networks.normal(3, seed=seed) for seed, value in enumerate(model.graph.input)}
    table = trtint8.calibrate(model, feed, method="minmax", tensors="placed", progress=False)
    table = table.override({name: factor * value for name, value in table.amax.items()})
    with networks.trial_network(model) as (_, _, network):
        wanted = run(trtint8.quantize(model, table), feed)
        got = network.outputs(feed, network.scales(table.amax))
        exact = network.reference(feed)
        assert len(got) == len(exact) == len(wanted) == len(model.graph.output)
        for tried, quantized, unquantized, outside in zip(got, wanted, exact, run(model, feed), strict=True):
            np.testing.assert_allclose(unquantized, outside, rtol=1e-4, atol=1e-5)
            assert distance(tried, quantized) < 1e-3 < distance(quantized, unquantized)


def test_tensors_that_share_a_scale_get_the_widest_range():
    with networks.trial_network(networks.branches()) as (_, placement, network):
        amax = {name: float(number + 1) for number, name in enumerate(placement.tensors)}
        (group,) = placement.shared
        widest = max(amax[name] for name in group)
        wanted = {
            name: np.float32((widest if name in group else value) / 127) for name, value in amax.items()
        }
        assert network.scales(amax) == wanted


def test_a_tensor_that_was_zero_has_a_scale_and_no_warning(recwarn):
    with networks.trial_network(networks.convolutions()) as (_, placement, network):
        assert set(network.scales(dict.fromkeys(placement.tensors, 0.0)).values()) == {np.float32(1 / 127)}
        assert not recwarn.list


def test_no_thread_works_on_after_its_end():
    before = set(threading.enumerate())
    with networks.trial_network(networks.branches()):
        pass
    assert set(threading.enumerate()) <= before
    assert gc.isenabled()


def test_a_float_network_that_is_open_already_is_used():
    with networks.trial_network(networks.convolutions()) as (_, _, network):
        network.open_float(lambda feed: [2 * feed["x"]])
        (found,) = network.reference({"x": networks.normal(1)})
        np.testing.assert_array_equal(found, 2 * networks.normal(1))


def test_a_sample_that_the_model_refuses():
    with (
        networks.trial_network(networks.convolutions()) as (_, _, network),
        pytest.raises(CalibrationDataError, match="the model fails on a sample: "),
    ):
        network.reference({"x": networks.normal(1, 5, 8, 8)})


def test_the_parts_of_an_output_are_told_apart():
    with networks.trial_network(detector()) as (_, placement, network):
        feed = {"images": images(3)}
        (whole,) = run(detector(), feed)
        boxes, scores = network.reference(feed)
        np.testing.assert_allclose(boxes, whole[:, :4], rtol=1e-4, atol=1e-3)
        np.testing.assert_allclose(scores, whole[:, 4:], rtol=1e-4, atol=1e-5)
        quantized = network.outputs(feed, network.scales(dict.fromkeys(placement.tensors, 4.0)))
        assert [array.shape for array in quantized] == [boxes.shape, scores.shape]


class Doubling:
    """A network that doubles its input and remembers the sizes of the batches that it was given."""

    def __init__(self, most=16):
        self.sizes, self._most = [], most

    def __call__(self, feed):
        self.sizes.append(len(feed["x"]))
        if len(feed["x"]) > self._most:
            raise CalibrationDataError("the model fails on a sample: too many")
        return [2 * feed["x"]]


def samples(count, width=2):
    return [{"x": np.full((1, width), row, np.float32)} for row in range(count)]


def opened(network, feeds, rows=4, first=3, separate=True):
    return References(network, feeds, rows, first=first, separate=separate)


def test_batches_of_any_samples():
    network = Doubling()
    references = opened(network, samples(12))
    assert (references.rows, references.elements, network.sizes) == (4, 2, [3])
    for start, stop in ((0, 4), (4, 8), (2, 6), (0, 12)):
        feed, (output,) = references.batch(start, stop)
        np.testing.assert_array_equal(feed["x"][:, 0], np.arange(start, stop))
        np.testing.assert_array_equal(output, 2 * feed["x"])
    assert network.sizes == [3, 1, 4, 4]


def test_what_runs_ahead_is_not_run_again():
    network = Doubling()
    references = opened(network, samples(9))
    references.run_ahead(7)
    _, (output,) = references.batch(5, 8)
    np.testing.assert_array_equal(output[:, 0], [10, 12, 14])
    assert network.sizes == [3, 4, 1]


def test_what_fails_ahead_fails_where_it_is_asked_for():
    network = Doubling(most=3)
    references = opened(network, samples(9))
    references.run_ahead(8)
    with pytest.raises(CalibrationDataError, match="too many"):
        references.batch(0, 4)


@pytest.mark.parametrize(
    ("network", "feeds", "sizes"),
    [
        (Doubling(most=1), samples(3), [3, 1]),
        (Doubling(), [*samples(2), *samples(1, width=3)], [1]),
        (Doubling(), samples(1), [1]),
    ],
)
def test_sample_by_sample_where_they_cannot_be_joined(network, feeds, sizes):
    references = opened(network, feeds)
    assert (references.rows, network.sizes) == (1, sizes)
    for number, feed in enumerate(feeds):
        got, (output,) = references.batch(number, number + 1)
        np.testing.assert_array_equal(got["x"], feed["x"])
        np.testing.assert_array_equal(output, 2 * feed["x"])


def test_a_network_that_is_not_known_to_take_batches_is_asked_with_one_sample_too():
    network = Doubling()
    assert opened(network, samples(6), separate=False).rows == 4 and network.sizes == [3, 1]
    assert opened(lambda feed: [feed["x"][:1]], samples(6)).rows == 1


class TestKnown:
    """Outputs that others computed are not computed again."""

    def known(self, feeds, missing=()):
        return [None if number in missing else [2 * feed["x"]] for number, feed in enumerate(feeds)]

    def test_nothing_is_run(self):
        network, feeds = Doubling(), samples(9)
        references = References(network, feeds, 4, first=3, separate=True, known=self.known(feeds))
        references.run_ahead(8)
        _, (output,) = references.batch(2, 6)
        assert (references.rows, references.elements, network.sizes) == (4, 2, [])
        np.testing.assert_array_equal(output[:, 0], [4, 6, 8, 10])

    def test_except_what_is_missing(self):
        network, feeds = Doubling(), samples(12)
        known = self.known(feeds, missing=(1, 2, 4, 5, 7, 8, 9, 11))
        references = References(network, feeds, 4, first=3, separate=True, known=known)
        assert network.sizes == [2]
        _, (output,) = references.batch(3, 12)
        np.testing.assert_array_equal(output[:, 0], 2 * np.arange(3, 12))
        assert network.sizes == [2, 4, 2]

    def test_samples_of_different_shapes_are_run_one_by_one(self):
        network, feeds = Doubling(), [*samples(2), *samples(1, width=3)]
        references = References(network, feeds, 4, first=3, separate=True, known=self.known(feeds, (1, 2)))
        references.batch(2, 3)
        assert (references.rows, network.sizes) == (1, [1, 1])


ONES = np.ones((2, 4), np.float32)
#: One row with a hundredth of the signal's energy as noise, one with as much noise as signal.
NOISY = np.float32([[1.1, 0.9, 1.1, 0.9], [2, 0, 2, 0]])
BAD = np.float32([[1.1, 0.9, 1.1, np.nan], [2, 0, np.inf, 0]])


@pytest.mark.parametrize(
    ("wanted", "got", "levels"),
    [
        ([ONES], [NOISY], [-20, 0]),
        ([10 * ONES], [10 * NOISY], [-20, 0]),
        ([ONES.astype(np.float16)], [NOISY.astype(np.float16)], [-20, 0]),
        ([ONES, ONES], [NOISY, NOISY[::-1]], [-10, -10]),
        ([ONES], [ONES], [-140, -140]),
        ([ONES], [ONES + np.float32([[0], [10]])], [-140, 20]),
    ],
    ids=["known", "scaled", "float16", "mean of two outputs", "no error", "noise above signal"],
)
def test_levels_of_every_row(wanted, got, levels):
    assert Noise.of(wanted, got, 2).levels == pytest.approx(levels, abs=0.02)


def test_several_axes_belong_to_a_row():
    shape = (2, 2, 2)
    found = Noise.of([ONES.reshape(shape)], [NOISY.reshape(shape)], 2)
    assert found.levels == pytest.approx([-20, 0], abs=1e-4)


def test_one_row_takes_outputs_as_a_whole():
    # Noise of 0.04 and of 4, of a signal of 8.
    assert Noise.of([ONES], [NOISY], 1).levels == pytest.approx([10 * np.log10(4.04 / 8)], abs=1e-5)
    assert Noise.of([np.float32(2)], [np.float32(1)], 1).levels == pytest.approx([10 * np.log10(1 / 4)])


@pytest.mark.parametrize("other", [ONES.astype(np.int64), 0 * ONES, np.full_like(ONES, np.nan)])
def test_outputs_without_a_signal_are_left_out(other):
    assert Noise.of([ONES, other], [NOISY, ONES], 2).levels == pytest.approx([-20, 0], abs=1e-4)
    assert Noise.of([other], [ONES], 2).levels.tolist() == [-140, -140]


def test_outputs_that_are_not_finite_or_have_another_shape_have_nothing_right():
    assert Noise.of([ONES], [BAD], 2).levels.tolist() == [0, 0]
    assert Noise.of([ONES, ONES], [BAD, ONES], 2).levels.tolist() == [-70, -70]
    assert Noise.of([ONES], [ONES[:1]], 1).levels.tolist() == [0]
    assert Noise.of([np.zeros((0, 4), np.float32)], [ONES], 1).levels.tolist() == [0]


def test_outputs_that_are_empty_are_left_out():
    empty = np.zeros((0, 4), np.float32)
    assert Noise.of([empty], [empty], 1).levels.tolist() == [-140]


@pytest.mark.parametrize(
    ("levels", "mean"),
    [
        ([-30.0], -30.0),
        ([-20.0, -20.0, -20.0], -20.0),
        # Powers 1 and 1e-6, of which the cube roots are 1 and 0.01.
        ([0.0, -60.0], 30 * np.log10(0.505)),
    ],
)
def test_the_mean_of_levels(levels, mean):
    assert mean_level(levels) == pytest.approx(mean)


def test_a_ruined_sample_is_not_made_up_for_by_one_that_becomes_still_better():
    assert mean_level([-6.0, -40.0]) > mean_level([-19.0, -19.0])
    assert np.mean([-6.0, -40.0]) < np.mean([-19.0, -19.0])
    # Nor does a single sample decide alone.
    assert mean_level([*[-20.0] * 6, -3.5]) < mean_level([*[-13.0] * 6, -11.0])


def test_the_difference_of_noise_and_its_error():
    usual = [-30.0, -32.0, -28.0, -31.0]
    assert difference([level - 1 for level in usual], usual) == pytest.approx((-1, 0), abs=0.1)
    mean, error = difference([-35.0, -27.0, -33.0, -28.0], usual)
    # Powers 0.07, 0.13, 0.08 and 0.12 beside 0.1, 0.09, 0.12 and 0.09, of the exponent 1/3.
    assert (mean, error) == pytest.approx((-0.16, 2.59), abs=0.01)
    assert difference(usual, [-35.0, -27.0, -33.0, -28.0]) == pytest.approx((-mean, error))
    assert difference(usual, usual) == (0, 0)
    assert difference([-31.0], [-30.0]) == (pytest.approx(-1), np.inf)


@pytest.mark.parametrize(
    ("wanted", "got", "level"),
    [
        ([ONES], [NOISY], 10 * np.log10(4.04 / 8)),
        # The second sample has a hundredth of the signal, and so of the noise.
        ([ONES * np.float32([[1], [0.1]])], [NOISY * np.float32([[1], [0.1]])], 10 * np.log10(0.08 / 4.04)),
        ([ONES, ONES], [NOISY, ONES], (10 * np.log10(4.04 / 8) - 140) / 2),
        ([ONES, ONES.astype(np.int64)], [NOISY, ONES], 10 * np.log10(4.04 / 8)),
        ([ONES], [ONES[:, :2]], 0),
        ([0 * ONES], [ONES], -140),
    ],
    ids=["known", "small samples", "mean of two outputs", "numbers", "shape", "no signal"],
)
def test_the_noise_of_all_samples_together(wanted, got, level):
    assert Noise.of(wanted, got, 2).pooled_level == pytest.approx(level, abs=0.02)


def test_the_noise_of_parts_is_that_of_the_whole():
    both = Noise.of([ONES, ONES], [NOISY, BAD], 2)
    parts = [
        Noise.of([part, part], [noisy, bad], 1)
        for part, noisy, bad in zip(ONES[:, None], NOISY[:, None], BAD[:, None], strict=True)
    ]
    joined = Noise.joined(parts)
    assert joined.levels.tolist() == both.levels.tolist() and joined.pooled_level == both.pooled_level
