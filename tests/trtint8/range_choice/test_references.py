"""The float network's outputs for samples: each is run once, several at once where that is possible."""

import numpy as np
import pytest

from calibrators.errors import CalibrationDataError
from trtint8.range_choice.references import References


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
