import base64
import zlib

import numpy as np
import pytest

from calibrators.errors import CalibrationDataError, TableError
from calibrators.histograms.histogram import Histogram
from calibrators.host.checkpoint import Checkpoint
from calibrators.host.counted import CALIBRATION, Counted
from tests.calibrators.host.checkpoint_files import change, document_of


def _checkpoint(path):
    return Checkpoint(path, {"model": "abc"}, CALIBRATION, resume=True)


def test_a_file_holds_identity_and_progress_exactly(tmp_path):
    histogram = Histogram()
    histogram.observe(np.array([1e-44, 0.1, 3e38, np.inf, np.nan, 0], np.float32))
    counted = Counted(3, "fingerprint", {"a/b:0": histogram, "nothing seen": Histogram()})
    _checkpoint(tmp_path / "c").save(counted)
    assert _checkpoint(tmp_path / "c").load() == counted
    assert document_of(tmp_path / "c")["identity"] == {"model": "abc"}


def test_other_data_and_other_tensors_are_refused():
    counted = Counted(3, "fingerprint", {"x": Histogram()})
    counted.check_data("fingerprint")
    counted.check_tensors(["x"])
    with pytest.raises(CalibrationDataError, match="first 3 samples of the data are not those"):
        counted.check_data("another")
    with pytest.raises(TableError, match="another set of tensors"):
        counted.check_tensors(["x", "y"])


def _number(name, value):
    return lambda progress: progress["histograms"]["x"]["histogram"].update({name: value})


def _counts(work, packed=zlib.compress):
    def changed(progress):
        stored = progress["histograms"]["x"]["histogram"]
        counts = np.frombuffer(zlib.decompress(base64.b64decode(stored["counts"])), "<i8")
        stored["counts"] = base64.b64encode(packed(work(counts).tobytes())).decode()

    return changed


@pytest.mark.parametrize(
    "work",
    [
        *(_number("bin_width", width) for width in (1e-300, 1.0, 1e300, -1.0, 0, None, "nan")),
        *(_number("amax", amax) for amax in (1e30, 1e-30, 0.0, 3.0000001, 10**400, "nan", "inf")),
        *(
            _number(name, count)
            for name in ("zeros", "infs")
            for count in (10**30, 1 << 62, 1 << 50, -1, 0.5, None)
        ),
        _number("counts", ""),
        _number("counts", "AAAA"),
        lambda progress: progress["histograms"]["x"]["histogram"].pop("counts"),
        *(
            lambda progress, count=count: progress["histograms"]["x"].update(nans=count)
            for count in (10**30, 1 << 50, -1, 0.5, None)
        ),
        lambda progress: progress["histograms"].update(x=None),
        lambda progress: progress.update(histograms=[]),
        lambda progress: progress.update(samples=1 << 70),
        lambda progress: progress.update(samples=-3),
        lambda progress: progress.update(samples=0),
        lambda progress: progress.update(samples=4.5),
        lambda progress: progress.update(data=5),
        lambda progress: progress.pop("data"),
        lambda progress: progress.update(more=1),
        _counts(lambda counts: -counts),
        _counts(lambda counts: counts[:1024]),
        _counts(lambda counts: counts[:-1]),
        _counts(lambda counts: np.concatenate([counts, counts])),
        _counts(lambda counts: np.roll(counts, 1)),
        _counts(lambda counts: counts, packed=lambda raw: zlib.compress(raw)[:-5]),
        _counts(lambda counts: counts, packed=bytes),
        _counts(lambda counts: np.zeros(1 << 24, np.int64)),  # a small file that fills memory
    ],
)
def test_a_file_that_no_calibration_has_written_is_refused(work, tmp_path):
    histogram = Histogram()
    histogram.observe(np.array([0, 0.25, 3.0], np.float32))
    checkpoint = _checkpoint(tmp_path / "c")
    checkpoint.save(Counted(3, "fingerprint", {"x": histogram, "y": Histogram(zeros=3)}))
    assert checkpoint.load().samples == 3
    change(tmp_path / "c", lambda document: work(document["progress"]))
    with pytest.raises(TableError, match=r"cannot read the checkpoint '.*c' \(.*\); remove it"):
        checkpoint.load()
