"""What onnx and onnx_ir raise becomes one sentence."""

import onnx
import onnx_ir as ir
import pytest

from calibrators.errors import ModelError, TableError
from trtint8.models.graph import as_model_errors, run_passes


class Failing(ir.passes.InPlacePass):
    """A pass that raises."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def call(self, model):
        """Raises the error."""
        raise self.error


@pytest.mark.parametrize(
    "error",
    [
        onnx.checker.ValidationError("bad\n\nnode"),
        ir.passes.PassError("bad node"),
        ValueError("bad node"),
        RuntimeError("/project/onnx/convert.h:96: check: Assertion `version > 0` failed: bad node"),
    ],
)
def test_errors_of_others_are_told_without_their_places(error):
    with pytest.raises(ModelError, match=r"^'m' .*: bad node;") as caught, as_model_errors("m", "is bad"):
        raise error
    assert caught.value.__cause__ is error


def test_errors_of_ours_stay_as_they_are():
    error = TableError("a sentence")
    with pytest.raises(TableError) as caught, as_model_errors("m", "is bad"):
        raise error
    assert caught.value is error


def test_passes():
    model, ours = ir.Model(ir.Graph([], [], nodes=[]), ir_version=8), ModelError("a sentence")
    with pytest.raises(ModelError, match=r"^'m' .*'x'"):
        run_passes(model, "m", Failing(KeyError("x")))
    with pytest.raises(ModelError) as caught:
        run_passes(model, "m", Failing(ours))
    assert caught.value is ours
