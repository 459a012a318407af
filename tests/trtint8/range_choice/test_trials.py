"""Runs of the quantized network, several at once."""

import threading

import numpy as np
import pytest

from calibrators.errors import CalibrationDataError
from tests.trtint8.range_choice import networks
from trtint8.range_choice.noise import noise_levels
from trtint8.range_choice.references import References
from trtint8.range_choice.trials import Trials

FEEDS = [{"x": image[None]} for image in networks.normal(5)]
AMAX = {"narrow": 1.0, "wide": 9.0}


def opened(network, advance=lambda _steps: None, rows=16):
    return Trials(network, References(network.reference, FEEDS, rows, first=3, separate=True), advance)


def scales_of(network, placement, rule):
    return network.scales(dict.fromkeys(placement.tensors, AMAX[rule]))


@pytest.mark.parametrize("at_once", [1, 2, 3])
@pytest.mark.parametrize("rows", [1, 2, 16])
def test_every_sample_has_the_noise_that_it_has_by_itself(at_once, rows):
    steps = []
    with networks.trial_network(networks.convolutions()) as (_, placement, network):
        network.runs_at_once = at_once
        with opened(network, steps.append, rows) as trials:
            for rule in AMAX:
                trials.add(rule, scales_of(network, placement, rule), 2)
            found = trials.noise(AMAX, 0, 2)
            for rule, more in trials.noise(["wide"], 2, 5).items():
                found[rule] += more
        for rule, levels in found.items():
            alone = [
                noise_levels(
                    network.reference(feed), network.outputs(feed, scales_of(network, placement, rule)), 1
                )[0]
                for feed in FEEDS[: len(levels)]
            ]
            np.testing.assert_allclose(levels, alone, atol=1e-3)
    assert {rule: len(levels) for rule, levels in found.items()} == {"narrow": 2, "wide": 5}
    assert steps == [2, 2, 3]


class Meeting:
    """A network of which several runs have to be going on at once, each of some samples."""

    def __init__(self, runs):
        self.runs_at_once = runs
        self.sizes = []
        self._all = threading.Barrier(runs, timeout=30)

    def reference(self, feed):
        return [feed["x"]]

    def outputs(self, feed, scales):
        self.sizes.append(len(feed["x"]))
        self._all.wait()
        return [feed["x"] * scales["a"]]


@pytest.mark.parametrize(("rows", "sizes"), [(16, [2, 2]), (2, [1, 1, 1, 1])])
def test_runs_at_once_share_samples_and_memory(rows, sizes):
    network = Meeting(2)
    with opened(network, rows=rows) as trials:
        trials.add("a", {"a": np.float32(1.1)}, 4)
        found = trials.noise(["a"], 0, 4)
    np.testing.assert_allclose(found["a"], [-20] * 4, atol=1e-4)
    assert network.sizes == sizes


def test_a_failing_sample_is_reported():
    network = Meeting(1)

    def fail(feed, scales):
        raise CalibrationDataError("the model fails on a sample: too large")

    network.outputs = fail
    with pytest.raises(CalibrationDataError, match="too large"), opened(network) as trials:
        trials.add("a", {}, 2)
        trials.noise(["a"], 0, 2)


@pytest.mark.parametrize(
    ("options", "at_once"),
    [
        ({"threads": 1}, 1),
        ({"threads": 2}, 2),
        ({"threads": 8}, 2),
        ({"threads": 8, "return_memory": True}, 1),
    ],
)
def test_two_runs_at_once_where_there_are_threads_and_memory_for_them(options, at_once):
    with networks.trial_network(networks.convolutions(), **options) as (_, _, network):
        assert network.runs_at_once == at_once
