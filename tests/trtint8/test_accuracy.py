import math

import numpy as np
import pytest

from calibrators.batches import open_batches
from calibrators.inputs import InputSpec
from trtint8.accuracy import Share, compare

INPUTS = (InputSpec("x", np.dtype(np.float32), ("n", 6)),)
LOGITS = np.eye(6, dtype=np.float32) * 2 + np.arange(6, dtype=np.float32) * 0.1


def _compare(judged, labels=None, batch_size=2):
    batches = open_batches({"x": LOGITS}, INPUTS, batch_size=batch_size, labels=labels)
    return compare(
        lambda feed: [judged(feed["x"])],
        lambda feed: [feed["x"]],
        ["y"],
        INPUTS,
        batches,
        description="a test",
        progress=False,
    )


def test_wilson_interval_of_eight_of_ten():
    low, high = Share(8, 10).interval
    assert (low, high) == pytest.approx((0.49016, 0.94331), abs=1e-5)


def test_the_interval_stays_within_zero_and_one():
    assert Share(0, 5).interval[0] == 0.0
    assert Share(5, 5).interval[1] == 1.0


def test_equal_outputs():
    result = _compare(lambda x: x, labels=np.arange(6))
    assert result.outputs[0].sqnr_db == math.inf
    assert result.outputs[0].cosine == pytest.approx(1.0)
    assert (result.top1, result.top5, result.agreement) == (Share(6, 6), Share(6, 6), Share(6, 6))


@pytest.mark.parametrize("batch_size", [1, 4, 6])
def test_a_tenth_of_the_amplitude_as_noise_is_twenty_decibels(batch_size):
    result = _compare(lambda x: x * np.float32(1.1), batch_size=batch_size)
    assert result.outputs[0].sqnr_db == pytest.approx(20.0, abs=1e-4)
    assert result.top1 is None and result.agreement == Share(6, 6)


def test_top1_counts_against_labels_and_agreement_against_fp32():
    result = _compare(lambda x: np.roll(x, 1, axis=1), labels=np.array([1, 1, 3, 3, 4, 5]))
    assert result.reference_top1 == Share(4, 6)  # samples 1, 3, 4 and 5
    assert result.top1 == Share(2, 6)  # samples 0 and 2
    assert result.agreement == Share(0, 6)
