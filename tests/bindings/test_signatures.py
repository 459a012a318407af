"""Every member of TensorRT that the code uses is there, and takes as many arguments."""

import pytest

from calibrators.tensorrt.flavor import Flavor
from tests.signatures import Use, collect, dead_rows, problem, problems


def test_every_use_is_as_the_bindings_have_it(trt):
    assert problems(trt, Flavor("tensorrt", trt.__version__), collect()) == []


def test_the_tables_speak_of_the_code_as_it_is():
    assert dead_rows(collect()) == set()


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (Use("Builder", "nonsense", None, "x"), "x: there is no Builder.nonsense"),
        (Use("", "Runtime", 2, "x"), "x: Runtime takes [(1, 1)] arguments, not 2"),
        (Use("OnnxParser", "get_error", 0, "x"), "x: OnnxParser.get_error takes [(1, 1)] arguments, not 0"),
        (
            Use("IOptimizationProfile", "set_shape", 4, "x", ("input", "minimum")),
            "x: IOptimizationProfile.set_shape has no parameter minimum",
        ),
        (Use("IOptimizationProfile", "set_shape", 4, "x", ("input", "min")), None),
    ],
)
def test_what_does_not_fit_is_found(trt, use, message):
    assert problem(trt, Flavor("tensorrt", trt.__version__), use) == message


def test_a_gate_must_be_right_both_ways(trt):
    flavor = Flavor("tensorrt", trt.__version__)
    liar = Flavor("tensorrt", "11.4" if flavor.implicit_int8 else "8.6")
    use = Use("BuilderFlag", "INT8", None, "x")
    assert problem(trt, flavor, use) is None
    assert problem(trt, liar, use) == (
        "x: BuilderFlag.INT8 is there, though implicit_int8 says no"
        if flavor.implicit_int8
        else "x: there is no BuilderFlag.INT8"
    )
