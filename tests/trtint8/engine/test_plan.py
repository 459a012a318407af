import json
import sys

import pytest

from calibrators.errors import EngineError
from calibrators.tensorrt.flavor import Flavor
from trtint8.builder.build import build_engine
from trtint8.data import DEMO_MODEL
from trtint8.engine.file import EngineInfo
from trtint8.engine.plan import (
    allow_code_of_plans,
    check_capability,
    check_plan_version,
    check_version,
    plan_flavor,
    plan_version,
    without_metadata,
)
from trtint8.models.model import load_model, prepare
from trtint8.models.serialization import runnable


@pytest.fixture(scope="module")
def plan(rtx):
    prepared = prepare(load_model(DEMO_MODEL))
    with runnable(prepared.graph_model) as serialized:
        return build_engine(serialized, prepared.inputs, flavor=rtx, progress=False).plan


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


def versioned(*version, header=0):
    return b"ftrt" + header.to_bytes(4, "little") + bytes(16) + bytes(version) + bytes(100)


def test_the_version_in_a_plan():
    assert plan_version(versioned(8, 6, 1, 6)) == "8.6.1.6"
    assert plan_version(versioned(10, 16, 1, 11)) == "10.16.1.11"
    # Headers of another form are TensorRT's business.
    assert plan_version(versioned(8, 6, 1, 6, header=1)) is None
    assert plan_version(versioned(0, 0, 0, 0)) is None


def test_the_version_in_a_plan_that_tensorrt_wrote(rtx, plan):
    assert plan_version(plan) == rtx.version
    check_plan_version(plan, rtx, "it")
    # The library is what loads it, whatever version the package of the bindings has.
    check_plan_version(plan, Flavor("rtx", "1.6.0.1"), "it")
    other = plan[:24] + bytes((1, 6, 0, 1)) + plan[28:]
    with pytest.raises(
        EngineError, match=r"it was built with version 1\.6\.0\.1 and this is TensorRT for RTX"
    ):
        check_plan_version(other, rtx, "it")


@pytest.mark.parametrize("here", ["8.6.1", "8.6.1.6", "8.6.1.99"])
def test_a_plan_of_the_same_release(here):
    check_plan_version(versioned(8, 6, 1, 6), Flavor("tensorrt", here), "it")


@pytest.mark.parametrize("here", ["8.6.0", "8.5.1", "10.16.1.11"])
def test_a_plan_of_another_release(here, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorrt", None)  # whose library would be asked
    message = rf"^it was built with version 8\.6\.1\.6 and this is TensorRT {here}; install that version or"
    with pytest.raises(EngineError, match=message):
        check_plan_version(versioned(8, 6, 1, 6), Flavor("tensorrt", here), "it")


def with_metadata(metadata, plan):
    text = json.dumps(metadata).encode()
    return len(text).to_bytes(4, "little") + text + plan


@pytest.mark.parametrize("metadata", [{}, {"stride": 32, "task": "detect", "names": {"0": "person"}}])
def test_metadata_before_the_plan_is_passed_over(metadata):
    plan = versioned(8, 6, 1, 6)
    assert without_metadata(with_metadata(metadata, plan)) == plan
    assert plan_flavor(without_metadata(with_metadata(metadata, rtx_plan())), "it") == "rtx"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x02",
        rtx_plan(),
        versioned(8, 6, 1, 6),
        with_metadata({"a": 1}, b"no plan at all"),
        with_metadata([1, 2], versioned(8, 6, 1, 6)),
        b"\x04\x00\x00\x00{...ftrt" + bytes(100),
        b"\xff\xff\xff\xff" + bytes(100),
        (100_000).to_bytes(4, "little") + b"[" * 100_000 + versioned(8, 6, 1, 6),
    ],
)
def test_everything_else_stays_as_it_is(data):
    assert without_metadata(data) == data


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


class Plain:
    """As a runtime of TensorRT 8.5, it takes no attribute that it does not know."""

    __slots__ = ()


class WithCode:
    __slots__ = ("engine_host_code_allowed",)


def test_code_of_plans_is_allowed_where_they_can_have_it():
    allow_code_of_plans(Plain(), Flavor("tensorrt", "8.5.3"))
    runtime = WithCode()
    allow_code_of_plans(runtime, Flavor("tensorrt", "8.6.1"))
    assert runtime.engine_host_code_allowed is True
