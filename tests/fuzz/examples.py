"""Real files of every kind that the project reads."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from calibrators.tables.choice import FloatLayers, RangeChoice
from calibrators.tables.files import FORMATS
from tests.trtint8.integer_models import Integers
from tests.trtint8.onnx_models import Shaped, conv_relu_conv, save_external
from tests.trtint8.quantization import attention_models
from tests.trtint8.report import samples

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")

_GOLDEN = Path(__file__).parents[1] / "golden" / "0.1"

_RANGES = {"images": 1.0, "étage/relu:0": 3.0660367012023926, "a::b": 0.25}


def golden(name: str) -> list[bytes]:
    """A file of version 0.1."""
    return [(_GOLDEN / name).read_bytes()]


@cache
def report_files() -> Mapping[str, bytes]:
    """Every file of a model called ``net``."""
    with tempfile.TemporaryDirectory() as name:
        samples.write_all(Path(name))
        return {path.name: path.read_bytes() for path in Path(name).iterdir()}


def printed_tunings() -> list[bytes]:
    """What `trtint8 tune --json` prints."""
    with tempfile.TemporaryDirectory() as name:
        samples.write_json(Path(name) / "t.json", samples.printed_tuning())
        return [(Path(name) / "t.json").read_bytes()]


def tables() -> list[bytes]:
    """Tables with histograms, ranges by hand, and a choice of the method ``auto``."""
    choice = RangeChoice("mse", {"mse": 30.5, "entropy": 12.0}, {"mse": 8, "entropy": 2})
    layers = FloatLayers(("conv",), 0.01, 0.004, 3, 30.5, 33.0, 16)
    chosen = replace(
        samples.table(), choice=choice, float_layers=layers, method="auto", overridden=frozenset({"silent"})
    )
    with tempfile.TemporaryDirectory() as name:
        return [*golden("model.table.json"), chosen.save(Path(name) / "t.json").read_bytes()]


def ranges(format_name: str) -> list[bytes]:
    """Tables of another tool's format."""
    return [FORMATS[format_name].render(values) for values in (_RANGES, {"x": 0.0})]


def onnxruntime_json() -> list[bytes]:
    """ONNX Runtime's JSON as the library writes it and as ONNX Runtime does, with arrays for ends."""
    end = {"data": [-1.5], "dtype": "float32", "CLS": "numpy.array"}
    tensor = {"lowest": end, "highest": {**end, "data": 2.0}, "CLS": "TensorData"}
    return [*ranges("onnxruntime-json"), json.dumps({"CLS": "TensorsData", "data": {"x": tensor}}).encode()]


def _saved(save: Callable[..., None], *arrays: Any, **named: Any) -> bytes:
    stream = io.BytesIO()
    save(stream, *arrays, **named)
    return stream.getvalue()


_VALUES = np.arange(120, dtype=np.float32).reshape(2, 3, 4, 5)


def arrays() -> list[bytes]:
    """.npy files, in both orders of axes and bytes."""
    return [_saved(np.save, form) for form in (_VALUES, np.asfortranarray(_VALUES), _VALUES.astype(">f4"))]


def archives() -> list[bytes]:
    """.npz files, stored and packed."""
    return [
        _saved(np.savez, images=_VALUES, labels=np.array([1, 2])),
        _saved(np.savez_compressed, images=_VALUES),
        _saved(np.savez, images=_VALUES.astype(np.float64), other=np.array("x")),
    ]


def labels() -> list[bytes]:
    """.npy files with labels."""
    return [_saved(np.save, np.array([1, 2])), _saved(np.save, _VALUES)]


def pictures() -> list[bytes]:
    """Images of every format, and of modes that need a conversion."""
    forms = [(name, "RGB") for name in ("PNG", "JPEG", "BMP", "WEBP", "PPM", "TIFF")]
    forms += [("PNG", "P"), ("PNG", "RGBA"), ("PNG", "I;16"), ("JPEG", "CMYK"), ("TIFF", "L")]
    return [_picture(form, mode) for form, mode in forms]


def _picture(form: str, mode: str) -> bytes:
    stream = io.BytesIO()
    pixels = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)
    deep = mode == "I;16"
    image = Image.fromarray(pixels[..., 0].astype(np.uint16) if deep else pixels)
    (image if deep else image.convert(mode)).save(stream, form)
    return stream.getvalue()


def _inferred(model: onnx.ModelProto) -> bytes:
    """A model with the shape of its output, which ONNX's checker wants."""
    return onnx.shape_inference.infer_shapes(model).SerializeToString()


def models() -> list[bytes]:
    """Float models."""
    g = Shaped(False)
    x = g.op("Conv", ["x", g.weights(2, 3, 3, 3), g.weights(2)], "conv")
    ones = g.constant(np.ones(2, np.float32))
    x = g.op("BatchNormalization", [x, ones, ones, ones, ones], "norm")
    x = g.op("Reshape", [x, g.constant(np.array([0, -1], np.int64))], "flat")
    x = g.op("Gemm", [x, g.weights(8, 5), g.weights(5)], "gemm")
    mixed = g.model({"x": ["N", 3, 4, 4]}, g.op("Softmax", [x], "softmax", axis=1))
    small = _inferred(conv_relu_conv(False, channels=4))
    attention = _inferred(attention_models.constant_mask())
    hidden = _inferred(attention_models.hidden_by_infinity())
    return [small, mixed.SerializeToString(), _model_of_sizes().SerializeToString(), attention, hidden]


def _model_of_sizes() -> onnx.ModelProto:
    """A model with operators that make large constants of small ones."""
    g = Shaped(False)
    sizes, one = g.constant(np.array([2, 3])), g.constant(np.ones((1, 1), np.float32))
    x = g.op("Gemm", ["x", g.weights(3, 3)], "gemm")
    for operator in ("Expand", "Tile"):
        x = g.op("Add", [x, g.op(operator, [one, sizes], operator.lower())], f"add_{operator.lower()}")
    x = g.op("Add", [x, g.op("ConstantOfShape", [sizes], "zeros")], "add_zeros")
    numbers = [g.constant(np.float32(number)) for number in (0, 3, 1)]
    x = g.op("Add", [x, g.op("Range", numbers, "steps")], "add_steps")
    pads = g.constant(np.array([0, 1, 1, 1]))
    x = g.op("Add", [x, g.op("Pad", [g.constant(np.ones((1, 1), np.float32)), pads], "pad")], "add_pad")
    return g.model({"x": [2, 3]}, x)


def models_with_functions() -> list[bytes]:
    """Models whose nodes call functions: in each other, in branches, with attributes and without inputs."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]

    def function(name: str, inputs: list[str], nodes: list[onnx.NodeProto], **options: Any) -> Any:
        return helper.make_function("own", name, inputs, ["c"], nodes, opsets, **options)

    def call(name: str, inputs: list[str], output: str, **attributes: Any) -> onnx.NodeProto:
        return helper.make_node(name, inputs, [output], domain="own", **attributes)

    leaky = helper.make_node("LeakyRelu", ["a"], ["b"])
    leaky.attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    clip = helper.make_node("Clip", ["b", "low"], ["c"])
    default = helper.make_attribute("slope", 0.1)
    inner = function("Inner", ["a", "low"], [leaky, clip], attribute_protos=[default])
    branch = helper.make_graph([call("Inner", ["a"], "t")], "branch", [], [_ends("t", [2, 4])])
    values = numpy_helper.from_array(np.array(True))
    condition = helper.make_node("Constant", [], ["k"], value=values)
    chosen = helper.make_node("If", ["k"], ["c"], then_branch=branch, else_branch=branch)
    twice = [call("Inner", ["a", ""], "h", slope=0.5), call("Inner", ["h"], "c")]
    weights = numpy_helper.from_array(np.ones((4, 4), np.float32), "w")
    product = helper.make_node("MatMul", ["h", "w"], ["y"], "product")
    found = []
    for outer in (function("Outer", ["a"], twice), function("Outer", ["a"], [condition, chosen])):
        nodes = [call("Outer", ["x"], "h"), product]
        graph = helper.make_graph(nodes, "g", [_ends("x", [2, 4])], [_ends("y", [2, 4])], [weights])
        model = helper.make_model(graph, functions=[outer, inner], opset_imports=opsets, ir_version=8)
        found.append(model.SerializeToString())
    return found


def _ends(name: str, shape: list[int]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)


@cache
def external_function() -> Mapping[str, bytes]:
    """A model with functions, one of which has a constant in another file, by the names of both files."""
    with tempfile.TemporaryDirectory() as name:
        model = onnx.ModelProto.FromString(models_with_functions()[0])
        values = numpy_helper.from_array(np.zeros((2, 4), np.float32))
        inner = next(function for function in model.functions if function.name == "Inner")
        constant = helper.make_node("Constant", [], ["low"], value=values)
        maximum = helper.make_node("Max", ["b", "low"], ["c"])
        del inner.input[1:], inner.node[1:]
        inner.node.extend([constant, maximum])
        for function in model.functions:
            for node in function.node:
                del node.input[1 if node.op_type == "Inner" else len(node.input) :]
        path = Path(name) / "model.onnx"
        onnx.save(
            model,
            path,
            save_as_external_data=True,
            location="weights.bin",
            size_threshold=0,
            convert_attribute=True,
        )
        return {path.name: path.read_bytes() for path in Path(name).iterdir()}


@cache
def external_model() -> Mapping[str, bytes]:
    """A model whose weights are in another file, by the names of both files."""
    with tempfile.TemporaryDirectory() as name:
        save_external(onnx.ModelProto.FromString(models()[0]), Path(name))
        return {path.name: path.read_bytes() for path in Path(name).iterdir()}


def quantized_models() -> list[bytes]:
    """Models with Q/DQ pairs, and with operators on integers."""
    g = Integers()
    weights = [g.random_integers(4, 3, 3, 3), *g.parameters(np.full(4, 0.01), np.zeros(4, np.int8))]
    result = g.parameters(0.1, np.uint8(100))
    bias = g.constant(np.zeros(4, np.int32))
    out = g.op("QLinearConv", [*g.quantize("x"), *weights, *result, bias], "conv")
    integers = g.proto({"x": ["N", 3, 8, 8]}, g.dequantize(out, result), 4)
    return [_inferred(conv_relu_conv(True, channels=4)), integers.SerializeToString()]
