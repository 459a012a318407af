"""Values of inputs that decide shapes, in real builds; shapes are tested with the build itself."""

import pytest
from onnx import TensorProto

from calibrators.errors import BuildError
from tests.trtint8.onnx_models import Graph, specs
from trtint8.builder.build import build_engine
from trtint8.builder.options import BuildOptions
from trtint8.engine.profiles import ShapeRange


def resized():
    """A Resize whose size is an input."""
    g = Graph()
    output = g.op("Resize", ["x", "", "", "size"], "resize", mode="nearest")
    model = g.model({"x": [1, 3, 8, 8], "size": [4]}, output)
    model.graph.input[1].type.tensor_type.elem_type = TensorProto.INT64
    return model


SIZES = ShapeRange((1, 3, 4, 4), (1, 3, 8, 8), (1, 3, 16, 16))


def build_resized(rtx, values):
    model, options = resized(), BuildOptions(shape_values=values)
    return build_engine(model.SerializeToString(), specs(model), flavor=rtx, options=options)


def test_values_of_an_input_that_decides_shapes(rtx):
    engine = build_resized(rtx, {"size": SIZES})
    assert engine.plan
    # No shape of an input is dynamic.
    assert engine.profiles == ()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"x": SIZES}, "shape_values has 'x', which is no input that decides shapes; the network has 'size'"),
        ({"y": SIZES}, "shape_values has 'y', which is no input that decides shapes; the network has 'size'"),
        (
            {"size": ShapeRange((4, 4), (8, 8), (16, 16))},
            "input 'size' has 4 elements, and shape_values",
        ),
        ({"size": ShapeRange(SIZES.max, SIZES.opt, SIZES.min)}, "values must grow from min over opt to max"),
    ],
)
def test_values_that_do_not_fit(rtx, values, message):
    with pytest.raises(BuildError, match=message):
        build_resized(rtx, values)


def test_without_values_tensorrt_says_what_is_missing(rtx):
    with pytest.raises(BuildError, match=r"could not build the engine: .*[Pp]rofile"):
        build_resized(rtx, {})
