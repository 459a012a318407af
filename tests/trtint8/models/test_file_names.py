"""By which file names models are told from engines."""

from pathlib import Path

import pytest

from calibrators.errors import OutputError
from trtint8.models.file_names import check_model_name, names_model


def test_models_are_told_from_engines():
    assert names_model("a/net.ONNX") and names_model(Path("net.int8.onnx"))
    assert not any(map(names_model, ("net.engine", "net.onnx.engine", "onnx", ".onnx")))


def test_a_name_of_an_engine_is_refused_before_any_work():
    assert check_model_name("a/net.onnx") == Path("a/net.onnx")
    with pytest.raises(OutputError) as caught:
        check_model_name("a/net.onx")
    assert str(caught.value) == (
        "the name 'a/net.onx' does not end in .onnx, as that of a model does; end it in .onnx"
    )
    with pytest.raises(OutputError, match=r"^the name 'a/\.onnx' is an ending alone; put a name before it$"):
        check_model_name("a/.onnx")
