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
def test_errors_of_others(error):
    with (
        pytest.raises(ModelError, match=r"^'m' cannot be read: bad node; export it again$") as caught,
        as_model_errors("m", "cannot be read"),
    ):
        raise error
    assert caught.value.__cause__ is error


def test_errors_of_ours_stay_as_they_are():
    error = TableError("a sentence")
    with pytest.raises(TableError, match=r"^a sentence$"), as_model_errors("m", "cannot be read"):
        raise error


def test_passes():
    model = ir.Model(ir.Graph([], [], nodes=[]), ir_version=8)
    with pytest.raises(ModelError, match=r"^'m' cannot be prepared: 'x'; export it again$"):
        run_passes(model, "m", Failing(KeyError("x")))
    with pytest.raises(ModelError, match=r"^a sentence$"):
        run_passes(model, "m", Failing(ModelError("a sentence")))
