"""Calibration in ONNX Runtime on a GPU: what is counted there, and how far its ranges are from the CPU's."""

import os
from pathlib import Path

import numpy as np
import pytest

from calibrators.errors import GpuUnavailableError, TrtInt8Error
from calibrators.histograms.counting import OnDevice, histogram_of
from calibrators.histograms.histogram import Histogram
from calibrators.host.cuda_session import Gpu, open_device
from tests.gpu.conftest import NORMALIZED
from trtint8 import calibrate
from trtint8.data import DEMO_MODEL, load_digits_split


@pytest.fixture(scope="module")
def gpu():
    try:
        found = open_device("cuda")
        found.open_session(DEMO_MODEL, optimize=True)
    except TrtInt8Error as reason:
        pytest.skip(str(reason))
    return found


@pytest.fixture(scope="module", params=["digits", "resnet20"])
def subject(request, gpu):
    """A model, its calibration data and options."""
    if request.param == "digits":
        return DEMO_MODEL, load_digits_split().calibration_images, {}
    folder = Path(os.environ.get("TRTINT8_CIFAR10", "missing"))
    if not (folder / "resnet20.onnx").is_file():
        pytest.skip("the environment variable TRTINT8_CIFAR10 names no folder with resnet20.onnx")
    return folder / "resnet20.onnx", folder / "calibration.npz", {"preprocessing": NORMALIZED}


def _calibrated(subject, **options):
    model, data, more = subject
    return calibrate(model, data, batch_size=32, progress=False, **more, **options)


def _upload(library, array):
    if library.__name__ == "cupy":
        return library.asarray(array)
    return library.from_numpy(array).cuda()


def _download(values):
    return values.get() if hasattr(values, "get") else values.cpu().numpy()


def test_counts_are_those_of_the_same_activations_on_the_host(gpu, subject, monkeypatch):
    run, on_host = Gpu.run, {}

    def watched(self, session, names, feed):
        outputs = run(self, session, names, feed)
        for name, output in zip(names, outputs, strict=True):
            assert isinstance(output, OnDevice), name
            on_host.setdefault(name, Histogram()).observe(_download(output.values))
        return outputs

    monkeypatch.setattr(Gpu, "run", watched)
    table = _calibrated(subject, device="cuda")
    assert len(on_host) >= 10
    kept = {name: histogram.kept() for name, histogram in on_host.items()}
    assert {name: table.histograms[name] for name in on_host} == kept


def test_values_of_every_kind(gpu):
    random = np.random.default_rng(0)
    values = (random.standard_normal(5_000_000) * 10.0 ** random.uniform(-45, 37, 5_000_000)).astype(
        np.float32
    )
    values[random.random(values.size) < 0.1] = 0
    values[:3], values[-3:], values[3:6] = np.nan, -np.inf, -0.0
    subnormal = np.array([1e-45, -1e-40, 0.0], np.float32)
    for array in (values, values[6:-3], subnormal, values[:3], values[:0]):
        expected = Histogram()
        expected.observe(array)
        with gpu.entered():
            assert histogram_of(gpu.library, _upload(gpu.library, array.copy())) == expected


def test_ranges_are_close_to_the_cpus(gpu, subject, record_property):
    there, here = _calibrated(subject, device="cuda").peaks, _calibrated(subject).peaks
    assert there.keys() == here.keys()
    ratios = np.array([there[name] / here[name] for name in here])
    record_property("ratios", f"peaks, GPU over CPU: {ratios.min():.6f} to {ratios.max():.6f}")
    np.testing.assert_allclose(ratios, 1, rtol=1e-3)


def test_twice_the_same(gpu, subject):
    assert _calibrated(subject, device="cuda").histograms == _calibrated(subject, device="cuda:0").histograms


def test_an_index_that_is_not_there(gpu):
    with pytest.raises(GpuUnavailableError, match="there is no GPU with index 9999"):
        open_device("cuda:9999")
