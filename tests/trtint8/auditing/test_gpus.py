from dataclasses import astuple
from pathlib import Path

import pytest

from calibrators.errors import UnsupportedError
from trtint8.auditing import gpus
from trtint8.auditing.gpus import GPUS, Gpu, capability_of, find_gpu, gpus_of

PAGE = (Path(__file__).parents[3] / "docs" / "audit.md").read_text()


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("RTX 4090", "RTX 4090"),
        ("rtx4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("4090", "RTX 4090"),
        ("Tesla T4", "T4"),
        ("nvidia-a100", "A100"),
        ("Orin", "Jetson AGX Orin"),
    ],
)
def test_names(name, found):
    assert find_gpu(name).name == found


def test_a_gpu_that_is_not_in_the_table():
    """The nearest are named first."""
    for lookup in (find_gpu, capability_of):
        with pytest.raises(
            UnsupportedError, match=r"^there are no figures for a GPU 'RTX 4080'; .* RTX 40.0, RTX 40.0, "
        ):
            lookup("RTX 4080")
        with pytest.raises(UnsupportedError, match=r"MI300.*T4.*, or give a compute capability, like 8\.9$"):
            lookup("MI300")


@pytest.mark.parametrize(
    ("name", "capability"),
    [
        ("NVIDIA GeForce RTX 4090", "8.9"),
        ("rtx-5090", "12.0"),
        ("4090", "8.9"),
        ("Orin", "8.7"),
        ("Jetson Orin Nano", "8.7"),
        ("AGX Xavier", "7.2"),
        ("8.6", "8.6"),
        ("sm_120", "12.0"),
        ("Current", "current"),
    ],
)
def test_a_gpu_is_named_or_numbered(name, capability):
    assert capability_of(name) == capability


@pytest.mark.parametrize(
    ("capabilities", "found"),
    [
        ([], []),
        (["8.6"], ["RTX 3090"]),
        (["8.9", "12.1", "8.0", "8.9"], ["RTX 4090", "A100"]),
        (["12.1"], []),
        (["RTX 4070", "8.6", "a10"], ["RTX 4070", "RTX 3090", "A10"]),
    ],
)
def test_the_gpu_that_stands_for_a_compute_capability(capabilities, found):
    assert [gpu.name for gpu in gpus_of(capabilities)] == found


@pytest.mark.parametrize(
    ("name", "capability", "found"),
    [
        ("NVIDIA A10", "8.6", ["A10"]),
        ("NVIDIA A100-SXM4-80GB", "8.0", ["A100"]),
        ("NVIDIA GB10", "12.1", []),
    ],
)
def test_the_gpu_of_this_machine(name, capability, found, monkeypatch):
    monkeypatch.setattr(gpus, "compute_capability", {1: capability}.__getitem__)
    monkeypatch.setattr(gpus, "gpu_name", {1: name}.__getitem__)
    assert [gpu.name for gpu in gpus_of(["current"], device=1)] == found


def test_names_are_unambiguous():
    assert [find_gpu(gpu.name) for gpu in GPUS] == list(GPUS)


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_figures_that_belong_together(gpu):
    # On tensor cores of these generations a type of half the width is twice as fast.
    assert gpu.int8_tops == pytest.approx(2 * gpu.fp16_tflops, rel=0.02)
    assert gpu.fp32_tflops < gpu.fp16_tflops
    assert gpu.operations_per_second("INT8") == 1e12 * gpu.int8_tops
    assert gpu.operations_per_second("BF16") == gpu.operations_per_second("FP16") == 1e12 * gpu.fp16_tflops
    assert gpu.operations_per_second(None) == gpu.operations_per_second("FP32") == 1e12 * gpu.fp32_tflops
    *figures, _source, cache = astuple(gpu)
    row = " | ".join(map(str, (*figures, cache)))
    assert f"| {row} |" in PAGE


FIGURES = {"bandwidth_gbs": 600, "fp32_tflops": 62, "fp16_tflops": 125, "int8_tops": 250, "cache_mb": 6}


@pytest.mark.parametrize("value", [0, -600, float("nan"), float("inf"), "600", True])
@pytest.mark.parametrize("figure", FIGURES)
def test_a_figure_is_a_positive_number(figure, value):
    with pytest.raises(UnsupportedError, match=f"^{figure} of 'mine' is .*; give a positive number$"):
        Gpu("mine", "8.6", **{**FIGURES, figure: value}, source="")


@pytest.mark.parametrize("capability", ["x", "86", "", 8.65j])
def test_a_compute_capability_has_two_numbers(capability):
    with pytest.raises(UnsupportedError, match=r"compute capability of 'mine' is .*; write it like 8\.9"):
        Gpu("mine", capability, **FIGURES, source="")


@pytest.mark.parametrize("gpu", [None, 5])
def test_what_is_no_gpu_is_refused(gpu):
    with pytest.raises(UnsupportedError, match=f"^there are no figures for a GPU '{gpu}'; choose among "):
        find_gpu(gpu)
    assert find_gpu(GPUS[0]) is GPUS[0]
    assert find_gpu("8.9").name == "RTX 4090"
