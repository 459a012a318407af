"""One pass over calibration data: what is checked, counted and left out."""

import numpy as np
import pytest

from calibrators.data.inputs import InputSpec
from calibrators.data.opening import open_batches
from calibrators.errors import CalibrationDataError
from calibrators.tensorrt.calibration_pass import CalibrationPass

INPUTS = (InputSpec("x", np.dtype(np.float32), ("n", 3)),)
DATA = np.random.default_rng(0).standard_normal((10, 3)).astype(np.float32)


def passed(data=DATA, batch_size=4, **options):
    options = {"last_batch": "drop", "num_batches": None, **options}
    return CalibrationPass(open_batches(data, INPUTS, batch_size=batch_size), INPUTS, **options)


def test_shapes_are_known_before_and_figures_after():
    found = passed(DATA[:8])
    assert (found.shapes, found.batch_size) == ({"x": (4, 3)}, 4)
    np.testing.assert_array_equal(np.concatenate([feed["x"] for feed in found]), DATA[:8])
    assert found.samples == 8
    assert found.finish() == []


@pytest.mark.parametrize(("last_batch", "samples"), [("drop", 8), ("pad", 12)])
def test_a_last_batch_that_is_not_full(last_batch, samples):
    with pytest.warns(UserWarning, match="last"):
        found = passed(last_batch=last_batch)
        assert [len(feed["x"]) for feed in found] == [4] * (samples // 4)
    assert found.samples == samples


def test_the_same_samples_have_the_same_fingerprint_whatever_the_batches():
    fingerprints = set()
    for size in (1, 5, 10):
        found = passed(batch_size=size)
        assert sum(len(feed["x"]) for feed in found) == 10
        fingerprints.add(found.fingerprint)
    assert len(fingerprints) == 1


def test_fewer_batches_than_promised_and_more_than_asked_for():
    found = passed(DATA[:8], num_batches=3)
    assert len(list(found)) == 2
    with pytest.raises(CalibrationDataError, match="the data ended after 2 of 3 batches; give more samples"):
        found.finish()
    found = passed(DATA[:8], num_batches=1)
    assert len(list(found)) == 1
    assert found.samples == 4 and found.finish() == []


def test_no_full_batch():
    with pytest.raises(CalibrationDataError, match="the data gives no full batch; give more samples"):
        passed(lambda: iter(()), batch_size=None)


def test_a_sample_without_meaning_is_named_by_its_place_in_the_data():
    bad = DATA.copy()
    bad[7, 1] = np.nan
    batches = open_batches(bad, INPUTS, batch_size=5, shuffle=True, seed=2)
    with pytest.raises(CalibrationDataError, match="the first in sample 7;"):
        list(CalibrationPass(batches, INPUTS, last_batch="drop", num_batches=None))


def test_what_looks_odd_is_said_at_the_end():
    found = passed(np.full((8, 3), 2.5, np.float32))
    assert len(list(found)) == 2
    (finding,) = found.finish()
    assert finding.startswith("input 'x' is 2.5 in all 8 samples")
