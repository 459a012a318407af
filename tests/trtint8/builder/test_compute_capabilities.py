"""Which GPUs an engine of TensorRT for RTX is built for."""

import pytest

from calibrators.errors import UnsupportedError
from calibrators.tensorrt import flavor
from tests.trtint8.builder.building import build
from tests.trtint8.onnx_models import conv_relu_conv
from trtint8.builder.compute_capabilities import nearest_capability, resolve_capabilities
from trtint8.quantization.targets import TARGETS

AMPERE_ON = ("8.0", "8.6", "8.9", "12.0", "12.1")


def test_chosen_capabilities(rtx):
    engine = build(conv_relu_conv(), rtx, compute_capabilities=["SM86", "12.0", "8.6", "sm_89"])
    assert engine.compute_capabilities == ("8.6", "12.0", "8.9")
    assert engine.report.precision_of("first") == "INT8"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "9.0",
            "cannot build for compute capability '9.0'; choose among 8.0, 8.6, 8.9, 12.0, 12.1, or current",
        ),
        (
            "fast",
            "cannot build for compute capability 'fast'; choose among 8.0, 8.6, 8.9, 12.0, 12.1, or current",
        ),
        ("7.5", "has no INT8 kernels for compute capability 7.5; choose among 8.0, 8.6, 8.9, 12.0, 12.1"),
    ],
)
def test_capabilities_that_cannot_be_built_for(rtx, name, message):
    with pytest.raises(UnsupportedError) as caught:
        resolve_capabilities(rtx, [name])
    assert str(caught.value) == f"{rtx} {message}"


def test_default_capabilities(rtx, monkeypatch):
    monkeypatch.setattr("trtint8.builder.compute_capabilities.gpu_problem", lambda: "there is none")
    assert resolve_capabilities(rtx, []) == AMPERE_ON
    with pytest.raises(
        UnsupportedError, match=r"the current GPU, because there is none; choose among 8.0, 8.6"
    ):
        resolve_capabilities(rtx, ["current"])
    monkeypatch.setattr("trtint8.builder.compute_capabilities.gpu_problem", lambda: None)
    monkeypatch.setattr("trtint8.builder.compute_capabilities.compute_capability", lambda _device: "8.9")
    assert resolve_capabilities(rtx, []) == ("current",)
    assert resolve_capabilities(rtx, ["Current"]) == ("current",)


@pytest.mark.parametrize("wanted", [[], ["current"], ["8.6", "current"]])
def test_a_gpu_of_a_capability_that_cannot_be_built_for(rtx, monkeypatch, wanted):
    capabilities = {0: "8.9", 1: "7.5"}
    monkeypatch.setattr("trtint8.builder.compute_capabilities.gpu_problem", lambda: None)
    monkeypatch.setattr(
        "trtint8.builder.compute_capabilities.compute_capability", lambda device: capabilities[device]
    )
    assert "current" in resolve_capabilities(rtx, wanted)
    with pytest.raises(UnsupportedError) as caught:
        resolve_capabilities(rtx, wanted, 1)
    assert str(caught.value) == (
        f"{rtx} has no INT8 kernels for compute capability 7.5; choose among 8.0, 8.6, 8.9, 12.0, 12.1"
    )


def test_tensorrt_has_no_choice_of_capabilities():
    tensorrt = flavor.Flavor("tensorrt", "10.1")
    assert resolve_capabilities(tensorrt, []) == ()
    with pytest.raises(
        UnsupportedError, match=r"^TensorRT 10\.1 builds for the GPU it runs on, .*\(8\.6\) cannot be"
    ):
        resolve_capabilities(tensorrt, ["8.6"])
    assert nearest_capability(tensorrt, "8.6") is None


@pytest.mark.parametrize(
    ("wanted", "nearest"),
    [("7.5", "8.0"), ("8.0", "8.0"), ("8.7", "8.6"), ("8.9", "8.9"), ("9.0", "8.9"), ("12.0", "12.0")],
)
def test_the_nearest_capability(rtx, wanted, nearest):
    assert nearest_capability(rtx, wanted) == nearest


def test_models_are_quantized_for_what_engines_are_built_for(rtx):
    assert TARGETS["rtx"].capabilities == AMPERE_ON
    assert resolve_capabilities(rtx, AMPERE_ON) == AMPERE_ON
