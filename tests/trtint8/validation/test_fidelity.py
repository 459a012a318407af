"""How far outputs are from the reference's, by hand."""

import math

import numpy as np
import pytest

from calibrators.histograms.losses import decibels
from trtint8.validation.fidelity import (
    Fidelity,
    FidelityMeter,
    inner_product,
    least_faithful,
    row_cosines,
)


def measured(*batches, tokens=False):
    """The fidelity of ``y`` over batches of (output, reference), each measured by a meter of its own."""
    meter = FidelityMeter(["y"], tokens=tokens)
    for output, reference in batches:
        one = FidelityMeter(["y"], tokens=tokens)
        one.add({"y": np.asarray(output, np.float32)}, {"y": np.asarray(reference, np.float32)})
        meter.merge(one)
    (found,) = meter.value()
    return found


def test_by_hand():
    found = measured(([[3.0, 4.0]], [[3.0, 3.0]]), ([[0.0, 0.0]], [[1.0, 1.0]]))
    # Signal 9 + 9 + 1 + 1, noise 1 + 1 + 1, product 9 + 12, norm of the output 9 + 16.
    assert found.sqnr_db == pytest.approx(10 * math.log10(20 / 3))
    assert found.cosine == pytest.approx(21 / math.sqrt(20 * 25))
    assert (found.max_error, found.token_cosine) == (1.0, None)


def test_batches_do_not_matter():
    random = np.random.default_rng(0)
    reference = random.standard_normal((6, 4))
    output = reference + 0.1 * random.standard_normal((6, 4))
    whole = measured((output, reference), tokens=True)
    parts = measured(*((output[i : i + 2], reference[i : i + 2]) for i in (0, 2, 4)), tokens=True)
    for name in ("sqnr_db", "cosine", "max_error", "token_cosine"):
        assert getattr(parts, name) == pytest.approx(getattr(whole, name), rel=1e-12)


def test_equal_outputs_and_zeros():
    found = measured(([[1.0, -2.0]], [[1.0, -2.0]]))
    assert (found.sqnr_db, found.cosine, found.max_error) == (math.inf, pytest.approx(1.0), 0.0)
    assert measured(([[0.0]], [[0.0]])).cosine == 1.0
    zeros = measured(([[1.0]], [[0.0]]))
    assert (zeros.sqnr_db, zeros.cosine) == (-math.inf, 0.0)


def test_vectors_along_the_last_axis_count_alike():
    output, reference = [[[1.0, 0.0], [5.0, 5.0]]], [[[0.0, 1.0], [1.0, 1.0]]]
    assert measured((output, reference), tokens=True).token_cosine == pytest.approx(0.5)
    assert measured(([1.0, 2.0], [1.0, 2.0]), tokens=True).token_cosine is None
    rows = row_cosines(np.array([[0.0, 0], [0, 0], [2, 0]]), np.array([[0.0, 0], [1, 0], [1, 0]]))
    assert rows.tolist() == [1.0, 0.0, 1.0]


def test_ratios_and_products():
    assert decibels(100.0, 1.0) == 20.0
    assert (decibels(1.0, 0.0), decibels(0.0, 1.0), decibels(0.0, 0.0)) == (math.inf, -math.inf, math.inf)
    assert inner_product(np.array([[1.0, 2.0]]), np.array([[3.0, 4.0]])) == 11.0


@pytest.mark.parametrize(
    ("levels", "lowest"),
    [((30.0, 20.0, 25.0), 1), ((math.nan, 20.0), 1), ((math.inf,), 0), ((math.nan,), None), ((), None)],
)
def test_the_output_with_the_lowest_sqnr(levels, lowest):
    outputs = [Fidelity(str(index), level, 1.0, 0.0) for index, level in enumerate(levels)]
    assert least_faithful(outputs) == (None if lowest is None else outputs[lowest])


def test_an_output_that_a_model_does_not_give():
    meter = FidelityMeter(["a", "b"], tokens=False)
    meter.add({"a": np.ones((2, 3))}, {"a": np.ones((2, 3)), "b": np.ones((2, 3))})
    first, second = meter.value()
    assert first.sqnr_db == math.inf and first.cosine == pytest.approx(1)
    assert all(math.isnan(value) for value in (second.sqnr_db, second.cosine, second.max_error))
