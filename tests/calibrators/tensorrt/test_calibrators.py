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
    monkeypatch.setattr(flavor, "load", lambda _target: Flavor("tensorrt", version))
    with pytest.raises(
        UnsupportedError,
        match=rf"TensorRT {version} has no calibrators.*trtint8\.calibrate.*'trtint8 quantize'",
    ):
        getattr(module, name)("data.npz", [])


def test_rtx_has_none():
    with pytest.raises(UnsupportedError, match=r"TensorRT for RTX 1\.7 has no calibrators"):
        calibrator_class("MinMaxCalibrator", Flavor("rtx", "1.7"))


def test_no_tensorrt_at_all(monkeypatch):
    monkeypatch.setattr(flavor, "installed", list)
    with pytest.raises(UnsupportedError, match=r"TensorRT is not installed; run pip install"):
        module.EntropyCalibrator2("data.npz", [])


def test_other_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="has no attribute 'Nonsense'"):
        _ = module.Nonsense
