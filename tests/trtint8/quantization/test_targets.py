"""The targets: what each of them runs in INT8, and which GPUs have it."""

from pathlib import Path
from typing import get_args

import pytest

import trtint8
from calibrators.errors import UnsupportedError
from calibrators.tensorrt.flavor import Flavor
from trtint8.quantization.targets import (
    DEFAULT,
    JETSONS,
    TARGETS,
    AttentionLimits,
    TargetName,
    target_named,
)

DOCS = Path(__file__).parents[3] / "docs"


def test_names():
    assert tuple(TARGETS) == get_args(TargetName)
    assert all(target_named(name).name == name for name in TARGETS)


def test_every_target_is_what_a_tensorrt_builds_for():
    """But for that of a model whose TensorRT is not known yet, and for the DLA, which an option chooses."""
    flavors = (Flavor("rtx", "1.7"), *(Flavor("tensorrt", f"{major}.6") for major in range(8, 30)))
    assert {flavor.quantization_target for flavor in flavors} == TARGETS.keys() - {DEFAULT.name, "dla"}


@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda target: target.name)
def test_every_target_is_documented(target):
    assert f"``{target.name}``" in trtint8.quantize.__doc__
    if target.loads_plans:
        assert f"``{target.name}``" in trtint8.deploy.__doc__
        assert f"\n| `{target.name}` |" in (DOCS / "how-to" / "deploy.md").read_text()
    if target.name != "dla":
        assert f"`{target.name}`" in (DOCS / "explanation" / "placement.md").read_text()


def test_no_such_target():
    with pytest.raises(
        UnsupportedError, match=r"there is no target 'tpu'; use one of tensorrt, tensorrt-8.6, "
    ):
        target_named("tpu")


@pytest.mark.parametrize(
    ("name", "oldest", "older"),
    [("tensorrt-10", "7.5", "7.0"), ("tensorrt-8.6", "6.1", "5.3")],
)
def test_gpus_without_int8_are_refused(name, oldest, older):
    assert target_named(name, oldest) is TARGETS[name]
    assert target_named(name, "12.0") is TARGETS[name]
    with pytest.raises(
        UnsupportedError, match=f"has no INT8 for compute capability {older}; it needs {oldest}"
    ):
        target_named(name, older)


@pytest.mark.parametrize(
    ("other", "place"),
    [
        ("7.5", "the machine that has it"),
        ("9.0", "the machine that has it"),
        ("10.0", "the machine that has it"),
        *((jetson, r"the Jetson \(docs/how-to/jetson.md\)") for jetson in JETSONS),
    ],
)
def test_gpus_that_no_engine_is_built_for_are_told_the_way(other, place):
    message = (
        rf"^target 'rtx' .* {other}.*; choose among 8.0, 8.6, 8.9, 12.0, .*'trtint8 quantize'.* {place}$"
    )
    with pytest.raises(UnsupportedError, match=message):
        target_named("rtx", other)
    assert (Path(__file__).parents[3] / "docs/how-to/jetson.md").exists()


@pytest.mark.parametrize("text", ["sm86", "86", "8.", ""])
def test_a_compute_capability_has_two_numbers(text):
    with pytest.raises(UnsupportedError, match=f"'{text}' is no compute capability; write it like 8.6"):
        target_named("rtx", text)


def test_limits_of_attention():
    assert TARGETS["tensorrt-10"].attention == AttentionLimits((16, 32, 64), 512, 512)
    assert TARGETS["rtx"].attention == AttentionLimits((16, 32, 64), 512, None, True, most_vectors=3)
    assert TARGETS["dla"].attention is None
