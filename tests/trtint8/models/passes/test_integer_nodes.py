"""Nodes of constant integers, beside onnx's reference evaluator."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.trtint8.onnx_models import Graph
from trtint8.models.passes.integer_nodes import compute_integers

OPSET = 17


def computed(operator, *arrays, **attributes):
    """What we compute, and what the reference does; None for an input that is left out."""
    names = ["" if array is None else f"i{index}" for index, array in enumerate(arrays)]
    proto = helper.make_node(operator, names, ["y"], **attributes)
    found = compute_integers(ir.from_proto(proto), arrays)
    feed = {name: array for name, array in zip(names, arrays, strict=True) if name}
    (wanted,) = ReferenceEvaluator(proto, opsets={"": OPSET}).run(None, feed)
    return found, np.asarray(wanted)


def check(operator, *arrays, **attributes):
    """Compares values and types."""
    found, wanted = computed(operator, *arrays, **attributes)
    assert found is not None and found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)


integers = st.integers(-9, 9)
types = st.sampled_from([np.int32, np.int64, np.uint8, np.int8])


@st.composite
def tensors(draw):
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    return np.arange(np.prod(shape)).astype(draw(types)).reshape(shape)


@given(tensors(), st.booleans(), st.data())
def test_transpose(tensor, plain, data):
    order = data.draw(st.permutations(range(tensor.ndim)))
    check("Transpose", tensor, **({} if plain else {"perm": order}))


@given(tensors(), st.data())
def test_slice(tensor, data):
    axes = data.draw(st.lists(st.integers(0, tensor.ndim - 1), min_size=1, unique=True))
    bounds = st.lists(
        integers | st.sampled_from([-(1 << 63) + 1, (1 << 63) - 1]), min_size=len(axes), max_size=len(axes)
    )
    starts, ends = data.draw(bounds), data.draw(bounds)
    steps = data.draw(st.lists(st.sampled_from([-2, -1, 1, 2]), min_size=len(axes), max_size=len(axes)))
    signed = [axis - tensor.ndim if data.draw(st.booleans()) else axis for axis in axes]
    check("Slice", tensor, *(np.array(values, np.int64) for values in (starts, ends, signed, steps)))


def test_slice_without_axes_and_steps():
    tensor = np.arange(12, dtype=np.int64).reshape(3, 4)
    check("Slice", tensor, np.array([1, 1]), np.array([3, 3]))
    check("Slice", tensor, np.array([0, 3]), np.array([3, 0]), None, np.array([1, -1]))


@given(tensors(), st.data())
def test_concat(tensor, data):
    axis = data.draw(st.integers(-tensor.ndim, tensor.ndim - 1))
    check("Concat", tensor, tensor + 1, axis=axis)


@given(tensors(), types)
def test_reshape(tensor, index_type):
    check("Reshape", tensor, np.array([-1], np.int64))
    check("Reshape", tensor, np.array([0] * tensor.ndim, np.int64))
    check("Reshape", tensor, np.array([0, -1], np.int64), allowzero=0)
    check("Reshape", tensor.astype(index_type), np.array([tensor.size, 1], np.int64))


def test_reshape_of_nothing():
    check("Reshape", np.zeros((0, 3), np.int64), np.array([3, 0]), allowzero=1)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=3), types)
def test_constant_of_shape(shape, kind):
    check("ConstantOfShape", np.array(shape, np.int64))
    value = numpy_helper.from_array(np.array([3], kind))
    check("ConstantOfShape", np.array(shape, np.int64), value=value)


@given(tensors(), st.sampled_from([ir.DataType.INT32, ir.DataType.INT64]))
def test_cast(tensor, kind):
    check("Cast", tensor, to=int(kind))
    check("Cast", np.array([1 << 40, -1]), to=int(kind))


@given(tensors(), st.data())
def test_gather(tensor, data):
    axis = data.draw(st.integers(-tensor.ndim, tensor.ndim - 1))
    size = tensor.shape[axis]
    index = data.draw(st.integers(-size, size - 1))
    check("Gather", tensor, np.array(index), axis=axis)
    check("Gather", tensor, np.array([[index, 0]]), axis=axis)
    check("Gather", tensor, np.array([0]))


@given(tensors(), st.data())
def test_unsqueeze(tensor, data):
    axes = data.draw(st.lists(st.integers(0, tensor.ndim), min_size=1, max_size=2, unique=True))
    check("Unsqueeze", tensor, np.array(axes))
    check("Unsqueeze", np.array(3), np.array([0]))


@given(tensors(), st.sampled_from(["Add", "Sub", "Mul"]))
def test_arithmetic(tensor, operator):
    check(operator, tensor, tensor[:1])
    check(operator, np.array(3), np.array(5))


@pytest.mark.parametrize(
    ("operator", "arrays", "attributes"),
    [
        ("Transpose", [np.ones((2, 3), np.float32)], {}),
        ("Cast", [np.ones(2, np.int64)], {"to": int(ir.DataType.FLOAT16)}),
        ("Max", [np.ones(2, np.int64), np.ones(2, np.int64)], {}),
        ("Add", [np.ones(2, np.float32), np.ones(2, np.float32)], {}),
    ],
)
def test_others_are_left_to_the_reference_evaluator(operator, arrays, attributes):
    assert computed(operator, *arrays, **attributes)[0] is None


def test_a_padding_of_pytorch_is_folded_without_the_reference_evaluator(tmp_path):
    """The chain in which PyTorch's exporter writes F.pad(x, (0, 0, 0, 0, 2, 2))."""
    g = Graph()
    given_pads, missing = g.constant(np.array([0, 0, 0, 0, 2, 2])), g.constant(np.array([2]))
    zeros = g.op("ConstantOfShape", [missing], "zeros", value=numpy_helper.from_array(np.array([0])))
    pads = g.op("Concat", [given_pads, zeros], "pads", axis=0)
    pairs = g.op("Reshape", [pads, g.constant(np.array([-1, 2]))], "pairs")
    bounds = [g.constant(np.array([value])) for value in (-1, -(1 << 63) + 1, 0, -1)]
    turned = g.op("Transpose", [g.op("Slice", [pairs, *bounds], "turned")], "columns", perm=[1, 0])
    flat = g.op("Cast", [g.op("Reshape", [turned, g.constant(np.array([-1]))], "flat")], "integers", to=7)
    model = g.model({"x": ["N", 3, 4, 4]}, g.op("Pad", ["x", flat], "padded"))
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    script = (
        "import sys; from trtint8.models.model import load_model, prepare; "
        f"graph = prepare(load_model({str(tmp_path / 'model.onnx')!r})).graph_model.graph; "
        "print([n.op_type for n in graph], graph.node(0).inputs[1].const_value.numpy().tolist(), "
        "'onnx.reference' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.split("\n")[0] == "['Pad'] [0, 2, 0, 0, 0, 2, 0, 0] False"
