"""Networks whose noise is known."""

import numpy as np

from tests.trtint8.range_choice import networks
from trtint8.range_choice.auto import MOST_ROWS, choose_ranges

HISTOGRAMS = networks.histograms_of({"a": networks.normal(20), "unquantized": networks.normal(9, seed=1)})
FEEDS = [{"x": np.full((1, 2), row + 1, np.float32)} for row in range(8)]


class Noisy:
    """A network that returns its input; quantized with noise that the range of ``a`` decides.

    Args:
        noise: Called with the range; gives the share of the signal that is added to it.
        rows: How many samples it takes at most.
    """

    runs_at_once = 1
    outputs_compared = ("x",)
    one_at_a_time = False

    def __init__(self, noise, rows=16):
        self._noise, self._rows = noise, rows
        self.sizes = []

    def scales(self, amax):
        return {"a": np.float32(amax["a"])}

    def reference(self, feed):
        if len(feed["x"]) > self._rows:
            raise ValueError("too many")
        return [feed["x"]]

    def outputs(self, feed, scales):
        self.sizes.append(len(feed["x"]))
        return [feed["x"] * np.float32(1 + self._noise(float(scales["a"])))]


def choose(network, feeds=FEEDS, calibrated=None, *, rows=MOST_ROWS, separate=False):
    """The ranges that are chosen for a network, and how; calibrated with these samples, if not with more."""
    return choose_ranges(
        network,
        HISTOGRAMS,
        ["a"],
        feeds,
        calibrated or len(feeds),
        rows=rows,
        separate=separate,
        known=(),
        progress=False,
    )


def chosen(noise, feeds=FEEDS, **options):
    network = Noisy(noise, **options)
    return *choose(network, feeds), network


class NoisyInTurn(Noisy):
    """A network whose noise depends on the sample's number as well."""

    def outputs(self, feed, scales):
        noise = self._noise(float(scales["a"]), int(feed["x"][0, 0]) - 1)
        return [feed["x"] * np.float32(1 + noise)]
