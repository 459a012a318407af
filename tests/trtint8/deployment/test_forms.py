"""Every form of model that is built can be deployed, with what it computes."""

import warnings

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

import trtint8
from calibrators.host.session import open_session
from tests.trtint8.engines import build_rtx
from tests.trtint8.onnx_models import constants_of, conv_relu_conv, parsed

IMAGES = np.random.default_rng(0).uniform(-1, 1, (2, 3, 16, 16)).astype(np.float32)


def trained(opset=17):
    """A network whose float weights are behind QuantizeLinear, as exports of trained pairs have them."""
    model = conv_relu_conv()
    for node in model.graph.node:
        if node.op_type == "Conv":
            node.attribute.append(onnx.helper.make_attribute("kernel_shape", [3, 3]))
    model.opset_import[0].version = opset
    return model


def floating():
    return conv_relu_conv(quantized=False)


def ours(**options):
    """A network that trtint8 quantized."""
    table = trtint8.calibrate(floating(), IMAGES, method="minmax")
    return trtint8.quantize(floating(), table, **options)


def changed(model, change):
    """The model with other constants, which a function makes of their arrays."""
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(tensor)), tensor.name))
    return model


def of_one_element(model):
    return changed(model, lambda array: array.reshape(array.shape or (1,)))


def with_constant_nodes(model):
    for tensor in model.graph.initializer:
        model.graph.node.insert(0, onnx.helper.make_node("Constant", [], [tensor.name], value=tensor))
    del model.graph.initializer[:]
    return model


def with_stored_integers(model):
    """The integers of weights in place of the floats before their pairs."""
    arrays = constants_of(model)
    for node in [one for one in model.graph.node if one.op_type == "QuantizeLinear"]:
        if node.input[0] in arrays:
            weights, scale = arrays[node.input[0]], arrays[node.input[1]].reshape(-1, 1, 1, 1)
            whole = np.clip(np.rint(weights / scale), -128, 127).astype(np.int8)
            model.graph.initializer.append(numpy_helper.from_array(whole, node.output[0]))
            model.graph.node.remove(node)
    return model


def with_listed_initializers(model):
    model.graph.input.extend(
        onnx.helper.make_tensor_value_info(one.name, one.data_type, list(one.dims))
        for one in model.graph.initializer
    )
    return model


def pruned(model):
    """Weights of which one channel is 0, with the scale 0."""

    def first_is_zero(array):
        if array.dtype != np.float32 or array.ndim not in (1, 4):
            return array
        scales = array.ndim == 1 and (array == array[0]).all()
        return np.concatenate([array[:1] * 0, array[1:]]) if scales or array.ndim == 4 else array

    return changed(model, first_is_zero)


def of_integer_operators():
    return ir.to_proto(
        trtint8.mend(
            parsed(
                "float[N, 3, 16, 16] images", "float[N, 16, 16, 16] y",
                "q = QuantizeLinear (images, s, z)"
                "p = QLinearConv <pads = [1, 1, 1, 1]> (q, s, z, w, s, z, s, z)"
                "y = DequantizeLinear (p, s, z)",
                s=np.float32(0.02), z=np.int8(0),
                w=np.random.default_rng(0).integers(-127, 128, (16, 3, 3, 3)).astype(np.int8),
            )
        ).graph_model
    )  # fmt: skip


def with_integers_at_its_ends():
    return parsed(
        "int8[N, 3, 16, 16] images", "int8[N, 16, 16, 16] y",
        "x = DequantizeLinear (images, s, z) w = DequantizeLinear (stored, s, z)"
        "c = Conv <pads = [1, 1, 1, 1], kernel_shape = [3, 3]> (x, w) y = QuantizeLinear (c, s, z)",
        s=np.array([0.02], np.float32), z=np.zeros(1, np.int8),
        stored=np.random.default_rng(0).integers(-30, 30, (16, 3, 3, 3)).astype(np.int8),
    )  # fmt: skip


FORMS = {
    "trained": (trained, {}),
    "trained, FP16": (trained, {"fp16": True}),
    "trained, opset 13": (lambda: trained(13), {}),
    "trained, opset 25": (lambda: trained(25), {}),
    "scales of one element": (lambda: of_one_element(trained()), {}),
    "constants are nodes": (lambda: with_constant_nodes(of_one_element(trained())), {}),
    "integers are stored": (lambda: with_stored_integers(trained()), {}),
    "integers are stored, FP16": (lambda: with_stored_integers(trained()), {"fp16": True}),
    "initializers are inputs": (lambda: with_listed_initializers(trained()), {}),
    "pruned": (lambda: pruned(trained()), {}),
    "integer operators": (of_integer_operators, {}),
    "integers at its ends": (with_integers_at_its_ends, {}),
    "float": (floating, {"keep_int8": ["*"]}),
    "cut": (floating, {"keep_int8": ["*"], "cut_at": ["relu_out"]}),
    "ours": (ours, {}),
    "ours, FP16": (ours, {"fp16": True}),
    "ours, integers are stored": (lambda: with_stored_integers(ours()), {}),
    "ours, mended": (lambda: ir.to_proto(trtint8.mend(ours()).graph_model), {}),
}


def outputs(path):
    session = open_session(path.read_bytes(), optimize=False)
    integers = session.get_inputs()[0].type == "tensor(int8)"
    images = np.rint(IMAGES * 50).astype(np.int8) if integers else IMAGES
    (found, *_) = session.run(None, {"images": images})
    return found.astype(np.float64)


def quantized_layers(path):
    return len(trtint8.mend(path).quantized_nodes)


@pytest.mark.parametrize("form", FORMS)
def test_engines_of_every_form_are_deployed(rtx, tmp_path, form):
    make, options = FORMS[form]
    given = make()
    has_pairs = any(node.op_type == "QuantizeLinear" for node in given.graph.node)
    engine = tmp_path / "net.engine"
    data = None if has_pairs else IMAGES
    build_rtx(data, engine, model=given, **options)
    wanted = outputs(tmp_path / "net.qdq.onnx")
    layers = 1 if form in ("cut", "integer operators", "integers at its ends") else 2
    for target in (None, "tensorrt-8.6", "tensorrt-10", "tensorrt-11"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # nothing is left that TensorRT refuses
            trtint8.deploy(engine, "triton", tmp_path / f"{target}", target=target)
        (path,) = (tmp_path / f"{target}").rglob("*.onnx")
        noise = ((outputs(path) - wanted) ** 2).sum()
        assert noise < 1e-4 * (wanted**2).sum()  # that of FP16, if it is in one of them
        assert quantized_layers(path) == layers
        types = {one.data_type for one in onnx.load(path).graph.initializer}
        assert target == "tensorrt-11" or onnx.TensorProto.FLOAT16 not in types
