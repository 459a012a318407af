"""The grid of attentions: INT8 keeps the fused kernel that FP16 has, in every form and at every limit."""

import itertools

import attention_grid
import onnx
import pytest
from attention_grid import Case, Result

from calibrators.tensorrt import flavor
from tests.sampling import sample
from tests.trtint8.quantization.attention_models import FORMS

CORNERS = list(attention_grid.grid(smallest=True))

#: Masks on GPUs of several compute capabilities.
MASKED = list(itertools.product(["8.0", "8.9", "12.0"], ["added", "chosen", "guarded", "infinite"]))


@pytest.fixture(autouse=True)
def rtx():
    pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")
    return flavor.load("rtx")


@pytest.mark.slow
@pytest.mark.parametrize("case", sample(CORNERS, CORNERS[::3]), ids=str)
def test_int8_keeps_the_fusion(case):
    result = attention_grid.measure(case)
    in_int8 = case.keys <= 512 and case.head in (32, 64)
    assert (result.float16, result.mixed, result.in_int8) == (1, 1, int(in_int8))


@pytest.mark.slow
@pytest.mark.parametrize(("capability", "mask"), sample(MASKED, MASKED[::5]))
def test_other_masks_on_other_gpus(capability, mask):
    result = attention_grid.measure(Case(65, 65, 16, mask, capability))
    assert (result.float16, result.mixed, result.in_int8) == (1, 1, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", sample(sorted(FORMS), sorted(FORMS)[::3]))
def test_every_form_keeps_the_fusion(name):
    result = attention_grid.measure_model(FORMS[name](), "8.6")
    assert result.mixed >= result.float16
    assert result.in_int8 == (name not in {"as_output", "guarded", "returned_softmax"})


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [{"heads": 1}, {"length": 600, "keys": 64}, {"length": 64, "keys": 600}])
def test_unusual_sizes(sizes):
    result = attention_grid.measure_model(FORMS["plain"](**sizes), "8.6")
    assert result.mixed == 1 >= result.float16


@pytest.mark.slow
@pytest.mark.parametrize(("heads", "in_int8"), [(3, 1), (4, 0)])
def test_one_query(heads, in_int8):
    """The attention of a class token, for which FP16 has a kernel of its own from four heads on."""
    result = attention_grid.measure_model(FORMS["plain"](length=1, keys=50, heads=heads), "8.6")
    assert (result.float16, result.mixed, result.in_int8) == (1, 1, in_int8)


def test_the_grid_has_every_combination_once():
    cases = list(attention_grid.grid(smallest=False))
    assert len(set(cases)) == len(cases) == 7 * 10 * 6 * 4 + 4 * 3


@pytest.mark.parametrize("mask", ["none", "added", "causal", "chosen", "guarded", "infinite"])
def test_models_are_valid(mask):
    onnx.checker.check_model(attention_grid.attention(Case(8, 12, 16, mask, "8.6")), full_check=True)


def test_a_table_says_what_was_kept():
    fused = Result(1, 1, 1)
    results = {
        Case(8, 8, 16, "none", "8.6"): fused,
        Case(8, 8, 16, "added", "8.6"): Result(1, 1, 0),
        Case(8, 8, 48, "none", "8.6"): Result(1, 0, 0),
    }
    assert attention_grid.table_of(results).splitlines()[-1] == "| 8 x 8 | 1 + 1 of 2 | 0 + 0 of 1 |"
    assert [result.kept for result in results.values()] == [True, True, False]
