import numpy as np
import pytest

from calibrators.errors import CalibrationDataError, TableError
from calibrators.histograms.histogram import Histogram
from calibrators.host.counted import Counted, CountedFormat


def test_a_file_holds_identity_and_progress_exactly():
    histogram = Histogram()
    histogram.observe(np.array([1e-44, 0.1, 3e38, np.inf, np.nan, 0], np.float32))
    counted = Counted(3, "fingerprint", {"a/b:0": histogram})
    content = CountedFormat().encode({"model": "abc"}, counted)
    assert CountedFormat().decode(content) == ({"model": "abc"}, counted)


def test_other_data_and_other_tensors_are_refused():
    counted = Counted(3, "fingerprint", {"x": Histogram()})
    counted.check_data("fingerprint")
    counted.check_tensors(["x"])
    with pytest.raises(CalibrationDataError, match="first 3 samples of the data are not those"):
        counted.check_data("another")
    with pytest.raises(TableError, match="another set of tensors"):
        counted.check_tensors(["x", "y"])


@pytest.mark.parametrize(
    "change",
    [
        {"counts": np.full(2048, -1)},
        {"counts": np.zeros(2048)},
        {"counts": np.zeros(3, np.int64)},
        {"zeros": -1},
        {"nans": 1.5},
        {"bin_width": float("nan")},
        {"amax": float("inf")},
        {"amax": 1.0, "bin_width": 0.0},
    ],
    ids=str,
)
def test_numbers_that_no_calibration_counts_are_refused(change):
    content = CountedFormat().encode({}, Counted(3, "fingerprint", {"x": Histogram(**change)}))
    with pytest.raises(ValueError, match="the histogram of 'x' holds numbers that no calibration counts"):
        CountedFormat().decode(content)
