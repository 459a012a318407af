import io
import json

import numpy as np
import pytest

from calibrators.errors import CalibrationDataError, TableError
from calibrators.histograms.histogram import Histogram
from calibrators.host.checkpoint import Checkpoint
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


def _file(change=lambda fields, arrays: None, *, save=np.savez):
    """A file of two histograms, whose fields and arrays ``change`` may exchange."""
    histogram = Histogram()
    histogram.observe(np.array([0, 0.25, 3.0], np.float32))
    counted = Counted(3, "fingerprint", {"x": histogram, "y": Histogram(zeros=3)})
    with np.load(io.BytesIO(CountedFormat().encode({"model": "abc"}, counted))) as loaded:
        arrays = dict(loaded)
    fields = json.loads(arrays["fields"].tobytes())
    change(fields, arrays)
    stream = io.BytesIO()
    arrays["fields"] = np.frombuffer(json.dumps(fields).encode(), np.uint8)
    save(stream, **arrays)
    return stream.getvalue()


def _number(place, value):
    return lambda fields, arrays: fields["histograms"][0].__setitem__(place, value)


@pytest.mark.parametrize(
    "change",
    [
        *(_number(1, width) for width in (1e-300, 1.0, 1e300, -1.0, 0, None, "1")),
        *(_number(2, amax) for amax in (1e30, 1e-30, 0.0, 3.0000001, 10**400, float("nan"))),
        *(
            _number(place, count)
            for place in (3, 4, 5)
            for count in (10**30, 1 << 62, 1 << 50, -1, 0.5, True)
        ),
        _number(0, "y"),
        _number(0, None),
        lambda fields, arrays: fields["histograms"].pop(),
        lambda fields, arrays: fields["histograms"].append(fields["histograms"][0]),
        lambda fields, arrays: fields["histograms"][0].pop(),
        lambda fields, arrays: fields["histograms"][0].append(0),
        lambda fields, arrays: fields.update(samples=1 << 70),
        lambda fields, arrays: fields.update(samples=True),
        lambda fields, arrays: fields.update(samples=0),
        lambda fields, arrays: fields.update(version=True),
        lambda fields, arrays: fields.update(data=5),
        lambda fields, arrays: fields.pop("data"),
        lambda fields, arrays: fields.update(more=1),
        lambda fields, arrays: fields.pop("octaves"),
        lambda fields, arrays: fields["octaves"].pop(),
        lambda fields, arrays: fields.update(octaves=[0, 0]),
        lambda fields, arrays: fields.update(octaves=[1 << 40, 0]),
        lambda fields, arrays: fields.update(octaves=[None, None]),
        lambda fields, arrays: arrays.pop("octaves0"),
        lambda fields, arrays: arrays.update(octaves0=arrays["octaves0"] * 2),
        lambda fields, arrays: arrays.update(octaves0=arrays["octaves0"][0]),
        lambda fields, arrays: arrays.update(octaves0=arrays["octaves0"].astype(np.int64)),
        lambda fields, arrays: arrays.pop("counts1"),
        lambda fields, arrays: arrays.update(counts2=arrays["counts1"]),
        lambda fields, arrays: arrays.update(counts0=arrays["counts1"]),
        lambda fields, arrays: arrays.update(counts0=arrays["counts0"][:1024]),
        lambda fields, arrays: arrays.update(counts0=arrays["counts0"].astype(object)),
        lambda fields, arrays: arrays.update(counts0=arrays["counts0"].astype(">i8")),
    ],
)
def test_a_file_that_no_calibration_has_written_is_refused(change, tmp_path):
    assert CountedFormat().decode(_file())[1].samples == 3
    (tmp_path / "c").write_bytes(_file(change))
    with pytest.raises(TableError, match=r"cannot read the checkpoint '.*c' \(.*\); remove it"):
        Checkpoint(tmp_path / "c", {"model": "abc"}, CountedFormat(), resume=True).load()


def test_a_file_of_the_first_version_goes_on_without_octaves():
    def older(fields, arrays):
        fields["version"] = 1
        del fields["octaves"], arrays["octaves0"], arrays["octaves1"]

    found = CountedFormat().decode(_file(older))[1].histograms["x"]
    assert (found.octaves, found.counts.sum(), found.amax) == (None, 2, 3.0)


def test_an_archive_that_may_fill_memory_is_refused():
    with pytest.raises(ValueError, match="its arrays are packed"):
        CountedFormat().decode(_file(save=np.savez_compressed))
