import onnx
import pytest

from calibrators.errors import ModelError
from tests.trtint8.onnx_models import conv_relu_conv, save_external
from trtint8.models.loading.names import check_names
from trtint8.models.model import load_model

PLACES = {
    "node": b"first",
    "tensor": b"relu_out",
    "input": b"images",
    "constant": b"constant0",
    "operator": b"Relu",
    "attribute": b"pads",
    "dimension": b"M",
}


@pytest.mark.parametrize("name", PLACES.values(), ids=PLACES)
def test_a_name_that_is_no_text_is_refused(name):
    model = conv_relu_conv(False)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "M"
    damaged = bytes([0xFF]) + name[1:]
    content = model.SerializeToString()
    assert name in content
    content = content.replace(bytes([len(name)]) + name, bytes([len(name)]) + damaged)
    message = onnx.ModelProto.FromString(content)
    with pytest.raises(
        ModelError, match=r"'m.onnx' holds the name b'.*', which is not UTF-8; export it again"
    ):
        check_names(message, "m.onnx")
    with pytest.raises(ModelError, match="which is not UTF-8"):
        load_model(content)


def test_text_passes():
    model = conv_relu_conv(names=("étage", "второй"))
    check_names(model, "m.onnx")


def test_a_place_of_weights_that_is_no_text_is_refused(tmp_path):
    path = save_external(conv_relu_conv(False), tmp_path)
    path.write_bytes(path.read_bytes().replace(b"weights.bin", b"weights.b\xffn", 1))
    with pytest.raises(ModelError, match=r"'m.*' holds the name b'weights.b\\xffn', which is not UTF-8"):
        load_model(path)
