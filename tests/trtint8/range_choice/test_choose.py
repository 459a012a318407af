"""The samples that ranges are tried on, and how they are run."""

import numpy as np
import pytest

from calibrators.histograms.thresholds import mse
from calibrators.tables.choice import RangeChoice
from tests.trtint8.range_choice.noisy import HISTOGRAMS, Noisy, choose, chosen
from trtint8.range_choice.choose import plain_ranges, samples_to_try


@pytest.mark.parametrize(("rows", "largest"), [(16, 4), (1, 1)])
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


@pytest.mark.parametrize(
    ("calibrated", "elements", "tried"),
    [
        (1, 10, 1),
        (4, 1000, 4),
        (16, 1000, 6),
        (16, 255, 16),
        (11, 255, 11),
        (17, 10, 16),
        (272, 255, 17),
        (10**6, 10, 64),
        (17, 256, 6),
        (112, 1000, 7),
        (10**6, 1000, 24),
    ],
)
def test_how_many_samples_are_tried(calibrated, elements, tried):
    assert samples_to_try(calibrated, elements) == tried


def test_no_more_samples_are_run_at_once_than_fit():
    network = Noisy(lambda found: 0.1 / found)
    choose(network, rows=3)
    assert max(network.sizes) == 3


@pytest.mark.parametrize(("separate", "references"), [(False, [3, 1, 3]), (True, [3, 3])])
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
