import pytest

from calibrators.errors import EngineError
from calibrators.tensorrt.flavor import Flavor
from trtint8.engine.file import EngineInfo
from trtint8.engine.plan import check_capability, check_version, plan_flavor


def rtx_plan(size=200):
    return b"vtrt" + bytes(12) + size.to_bytes(8, "little") + bytes(size - 24)


def info(**changes):
    fields = {
        "flavor": "tensorrt",
        "tensorrt_version": "10.16.1.11",
        "compute_capabilities": ("8.9",),
        "inputs": (),
        "outputs": (),
        "profiles": (),
        "layers": None,
        "quantized_nodes": (),
        "weights_bytes": None,
        "model_fingerprint": "",
    }
    return EngineInfo(**{**fields, **changes})


def test_whose_plan_it_is():
    assert plan_flavor(rtx_plan(), "it") == "rtx"
    assert plan_flavor(b"ftrt" + bytes(100), "it") == "tensorrt"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "^it is empty; give a file"),
        (b"\x08\x08\x12\x07pytorch" + bytes(100), "^it is not a TensorRT engine"),
        (b"PK\x03\x04" + bytes(100), "^it is not a TensorRT engine"),
        (b"ftrt" + bytes(20), "^it is truncated"),
        (rtx_plan()[:-1], "^it is truncated"),
        (rtx_plan() + b"x", "^it is truncated"),
    ],
)
def test_what_is_no_plan(data, message):
    with pytest.raises(EngineError, match=message):
        plan_flavor(data, "it")


@pytest.mark.parametrize("here", ["10.16.1.11", "10.16.1.99", "10.16.1"])
def test_the_same_release_runs_it(here):
    check_version(info(), Flavor("tensorrt", here), "it")


@pytest.mark.parametrize("here", ["10.16.2.1", "10.15.1.11", "8.6.1", "11.4.0.106"])
def test_another_release_does_not(here):
    with pytest.raises(EngineError, match=r"it was built with version 10\.16\.1\.11 and this is TensorRT"):
        check_version(info(), Flavor("tensorrt", here), "it")


def test_unless_it_was_built_to():
    portable = info(version_compatible=True)
    check_version(portable, Flavor("tensorrt", "10.17.0"), "it")
    with pytest.raises(EngineError, match="was built with version"):
        check_version(portable, Flavor("tensorrt", "10.15.0"), "it")


@pytest.mark.parametrize(
    ("built", "here", "runs", "more"),
    [
        (("8.0", "8.6"), "8.6", True, {"flavor": "rtx"}),
        (("8.0",), "8.9", True, {"flavor": "rtx"}),
        (("8.9",), "8.6", False, {"flavor": "rtx"}),
        (("8.0", "12.0"), "9.0", False, {"flavor": "rtx"}),
        (("12.0",), "12.1", True, {"flavor": "rtx"}),
        (("current",), "9.0", True, {"flavor": "rtx"}),
        (("8.9",), "8.9", True, {}),
        (("8.0",), "8.9", False, {}),
        (("8.0",), "8.9", True, {"hardware_compatibility": "ampere_plus"}),
        (("8.0",), "7.5", False, {"hardware_compatibility": "ampere_plus"}),
        (("8.0",), "9.0", True, {"hardware_compatibility": "ampere_plus"}),
        (("8.9",), "8.6", False, {"hardware_compatibility": "same_compute_capability"}),
        (("8.9",), "8.9", True, {"hardware_compatibility": "same_compute_capability"}),
    ],
)
def test_compute_capabilities(built, here, runs, more):
    origin = info(compute_capabilities=built, **more)
    if runs:
        check_capability(origin, here, "it")
    else:
        with pytest.raises(EngineError, match=f"built for compute capability .*, and this GPU has {here}"):
            check_capability(origin, here, "it")
