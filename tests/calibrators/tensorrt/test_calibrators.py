"""Calibrators where no TensorRT has any."""

import pytest

import calibrators.tensorrt as module
from calibrators.errors import UnsupportedError
from calibrators.tensorrt import flavor
from calibrators.tensorrt.calibrators import calibrator_class
from calibrators.tensorrt.flavor import Flavor

NAMES = ("EntropyCalibrator2", "EntropyCalibrator", "MinMaxCalibrator", "LegacyCalibrator")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("version", ["11.4.0.106", "12.0"])
def test_tensorrt_that_lost_them_is_explained(monkeypatch, name, version):
    found = Flavor("tensorrt", version)
    monkeypatch.setattr(flavor, "installed", lambda: [found])
    monkeypatch.setattr(flavor, "load", lambda _target: found)
    with pytest.raises(
        UnsupportedError, match=rf"TensorRT {version} .*trtint8\.calibrate.*'trtint8 migrate'"
    ):
        getattr(module, name)("data.npz", [])


@pytest.mark.parametrize("installed", [[], [Flavor("rtx", "1.7")]])
def test_without_tensorrt_a_version_is_named_that_has_calibrators(installed, monkeypatch):
    monkeypatch.setattr(flavor, "installed", lambda: installed)
    with pytest.raises(UnsupportedError, match=r"^EntropyCalibrator2 .*8\.5 .*'tensorrt<11'$"):
        module.EntropyCalibrator2("data.npz", [])
    with pytest.raises(UnsupportedError, match=r"TensorRT for RTX 1\.7 "):
        calibrator_class("MinMaxCalibrator", Flavor("rtx", "1.7"))
    with pytest.raises(AttributeError, match="'Nonsense'"):
        _ = module.Nonsense
