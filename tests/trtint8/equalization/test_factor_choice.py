"""The state of the choice of factors."""

import numpy as np

from tests.trtint8.equalization.choosing import begin
from tests.trtint8.equalization.transformers import SIZE, Blocks, samples
from tests.trtint8.tuning.networks import array, run


def two_layers():
    g = Blocks()
    x = g.op("Relu", [g.linear("x", SIZE, 12, "up")], "relu")
    return g.finish(g.linear(x, 12, SIZE, "down"))


def test_it_begins_with_factors_of_1_and_the_ranges_of_readers():
    model, feed = two_layers(), samples()
    choice, forms = begin(model, feed)
    assert (choice.factors == 1).all()
    assert list(choice.observed.folds[0].found_with.values) == ["relu_out"]
    (read,) = run(model.clone(), feed)[:1]
    assert read.shape == (2, 3, SIZE)
    assert choice.observed.peaks["relu_out"].shape == (1, 1, 12)
    assert "down" in choice.layers and "relu" not in choice.layers
    assert list(forms) == ["'up' to 'down'"]


def test_weights_with_the_factors_so_far():
    model = two_layers()
    choice, forms = begin(model, samples())
    choice.factors[forms["'up' to 'down'"].representatives] = np.arange(1, 13)
    np.testing.assert_allclose(choice.weights_of("up"), array(model, "up", 1) / np.arange(1, 13), rtol=1e-6)
    np.testing.assert_allclose(
        choice.weights_of("down"), array(model, "down", 1) * np.arange(1, 13)[:, None], rtol=1e-6
    )
    reading = forms["'up' to 'down'"].readings[0]
    np.testing.assert_array_equal(choice.factors_of(reading.labels).reshape(-1), np.arange(1, 13))
