"""Constants computed once: what changes, what stays."""

import itertools
import math
import subprocess
import sys
import tracemalloc

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from calibrators.errors import ModelError
from tests.trtint8.models.passes.applying import applied, operators, run
from tests.trtint8.onnx_models import normal, parsed
from trtint8.models.model import load_model, prepare
from trtint8.models.passes.fold_constants import FoldConstantsPass, compute_integers, compute_node


def test_transposed_weights_are_folded():
    body = "t = Transpose <perm = [1, 0]> (w) y = MatMul (x, t)"
    model = parsed("float[N, 4] x", "float[] y", body, w=normal(5, 4))
    folded, modified = applied(FoldConstantsPass(), model)
    assert modified and operators(folded) == ["MatMul"]
    assert "t" in [tensor.name for tensor in folded.graph.initializer]
    x = normal(3, 4, seed=1)
    np.testing.assert_allclose(run(folded, x=x)[0], run(model, x=x)[0], rtol=1e-5, atol=1e-5)


def standardized(read=False):
    """A Conv whose weights a BatchNormalization in training mode standardizes, as NFNets have them."""
    more = "s = Reshape (mean, channels) y = Add (c, s)" if read else "y = Identity (c)"
    return parsed(
        "float[N, 2, 8, 8] x",
        "float[] y",
        f"""flat = Reshape (w, rows)
        n, mean, variance = BatchNormalization <training_mode = 1, momentum = 1.0>
            (flat, ones, zeros, zeros, ones)
        weights = Reshape (n, kernels) c = Conv (x, weights) {more}""",
        w=normal(4, 2, 3, 3),
        ones=np.ones(4, np.float32),
        zeros=np.zeros(4, np.float32),
        rows=np.array([1, 4, 18]),
        kernels=np.array([4, 2, 3, 3]),
        channels=np.array([1, 4, 1, 1]),
    )


def test_a_batch_normalization_of_weights_is_folded_unless_another_output_of_it_is_read():
    model = standardized()
    folded, _ = applied(FoldConstantsPass(), model)
    assert operators(folded) == ["Conv", "Identity"]
    x = normal(3, 2, 8, 8, seed=1)
    np.testing.assert_allclose(run(folded, x=x)[0], run(model, x=x)[0], rtol=1e-4, atol=1e-4)
    weights = next(t for t in folded.graph.initializer if t.name == "weights")
    rows = onnx.numpy_helper.to_array(weights).reshape(4, 18)
    np.testing.assert_allclose([rows.mean(1), rows.var(1)], [np.zeros(4), np.ones(4)], atol=5e-3)
    folded, _ = applied(FoldConstantsPass(), standardized(read=True))
    assert operators(folded) == ["BatchNormalization", "Reshape", "Conv", "Reshape", "Add"]


def test_a_constant_that_would_inflate_the_model_is_not_folded():
    ends = "float[1024, 1024] x", "float[] y"
    model = parsed(*ends, "huge = ConstantOfShape (s) y = Add (x, huge)", s=np.array([1024, 1024]))
    folded, modified = applied(FoldConstantsPass(), model)
    assert not modified and operators(folded) == ["ConstantOfShape", "Add"]


@pytest.mark.parametrize(
    "huge",
    [
        "ConstantOfShape (sizes)",
        "Expand (one, sizes)",
        "Tile (one, sizes)",
        "MatMul (column, row)",
        "Add (column, row)",
    ],
)
def test_what_would_be_gigabytes_is_not_even_computed(huge):
    constants = {
        name: np.ones(shape, np.float32)
        for name, shape in (("one", (1, 1)), ("row", (1, 50_000)), ("column", (100_000, 1)))
    }
    ends = "float[100000, 50000] x", "float[] y"
    model = parsed(*ends, f"huge = {huge} y = Add (x, huge)", sizes=np.array([100_000, 50_000]), **constants)
    tracemalloc.start()
    folded, modified = applied(FoldConstantsPass(), model)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert not modified and operators(folded) == [huge.split()[0], "Add"]
    assert peak < 50_000_000


def ranged(numbers, inputs):
    names = zip(("first", "last", "step"), numbers, strict=True)
    constants = {name: np.float32(number) for name, number in names}
    return parsed(inputs, "float[?] y", "[steps] r = Range (first, last, step) y = Add (x, r)", **constants)


@pytest.mark.parametrize("limit", [2e9, 1e30, math.inf])
def test_a_range_of_gigabytes_is_refused_before_its_shape_is_inferred(limit):
    with pytest.raises(ModelError, match=r"'r' has [0-9,]+ bytes"):
        prepare(load_model(ranged((0, limit, 1), "float[N] x")))


@pytest.mark.parametrize("numbers", [(0, 5, 1), (5, 0, -2), (0, 5, -1), (0, math.nan, 1)])
def test_small_ranges_are_folded(numbers):
    folded, modified = applied(FoldConstantsPass(), ranged(numbers, "float[1] x"))
    assert operators(folded) == (["Add"] if modified else ["Range", "Add"])
    assert modified == (not math.isnan(numbers[1]))


def stored_as_integers(quantize_input):
    """A Conv and a MatMul with int8 weights, scaled by block and by column, and the same with float weights.

    The float weights of the MatMul have over a megabyte more than the integers.
    """
    random = np.random.default_rng(0)
    kernels, matrix = (random.integers(-127, 128, shape).astype(np.int8) for shape in ((8, 6), (8, 60_000)))
    kernels = kernels.reshape(8, 6, 1, 1)
    blocks, columns = (random.uniform(0.01, 0.02, shape).astype(np.float32) for shape in ((8, 2), 60_000))
    blocks = blocks.reshape(8, 2, 1, 1)
    stored = {"kernels": kernels, "blocks": blocks, "matrix": matrix, "columns": columns}
    stored |= {"step": np.float32(0.1), "zero": np.int8(0)}
    dequantized = """k = DequantizeLinear <axis = 1, block_size = 3> (kernels, blocks)
        m = DequantizeLinear <axis = 1> (matrix, columns)"""
    pair = "q = QuantizeLinear (x, step, zero) i = DequantizeLinear (q, step, zero)"
    layers = f"c = Conv ({'i' if quantize_input else 'x'}, k) flat = Flatten (c) y = MatMul (flat, m)"
    ends, version = ("float[N, 6, 1, 1] x", "float[] y"), {"opset": 21, "ir_version": 10}
    floats = {"k": kernels * blocks.repeat(3, axis=1), "m": matrix * columns}
    return (
        parsed(*ends, f"{pair if quantize_input else ''} {dequantized} {layers}", **version, **stored),
        parsed(*ends, layers.replace("(i", "(x"), **version, **floats),
    )


def test_weights_stored_as_integers_become_float_where_there_are_no_pairs():
    model, wanted = stored_as_integers(quantize_input=False)
    folded, _ = applied(FoldConstantsPass(), model)
    assert operators(folded) == operators(wanted) == ["Conv", "Flatten", "MatMul"]
    x = normal(2, 6, 1, 1, seed=1)
    assert np.array_equal(run(folded, x=x)[0], run(wanted, x=x)[0])
    folded, modified = applied(FoldConstantsPass(), stored_as_integers(quantize_input=True)[0])
    assert not modified and operators(folded).count("DequantizeLinear") == 3


INTEGERS, FLOATS = np.arange(6).reshape(2, 3), np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize(
    ("operator", "arrays", "wanted"),
    [
        ("Identity", [FLOATS], FLOATS),
        ("Transpose", [INTEGERS], INTEGERS.T),
        ("Transpose", [FLOATS], FLOATS.T),
        ("Neg", [INTEGERS], -INTEGERS),
        ("Clip", [FLOATS, None, np.float32(2)], np.minimum(FLOATS, 2)),
        ("Log", [np.float32([0, 1])], np.float32([-np.inf, 0])),  # without a warning
    ],
)
def test_the_first_output(operator, arrays, wanted):
    names = ["" if array is None else f"i{index}" for index, array in enumerate(arrays)]
    node = ir.from_proto(helper.make_node(operator, names, ["y"]))
    found = compute_node(node, {name: one for name, one in zip(names, arrays, strict=True) if name}, 17)
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)


ALIGNED = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
HALVES = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
POOL = {"kernel_shape": [2, 2], "auto_pad": "SAME_LOWER"}


@pytest.mark.parametrize(
    ("operator", "others", "attributes", "computed"),
    [
        ("Resize", ["", "scales"], ALIGNED, False),
        ("Resize", ["", "scales"], HALVES, True),
        ("Resize", ["", "", "sizes"], ALIGNED, True),
        ("Resize", ["", "", "sizes"], {**ALIGNED, "antialias": 1}, False),
        ("LpNormalization", [], {"p": 1}, False),
        ("LpNormalization", [], {"p": 2}, True),
        ("MaxPool", [], POOL, False),
        ("AveragePool", [], POOL, False),
        ("LpPool", [], POOL, False),
        # The reference takes the places of a MaxUnpool for those in the size that the node would have.
        ("MaxUnpool", ["places", "larger"], {"kernel_shape": [2, 2]}, False),
    ],
)
def test_what_the_reference_computes_otherwise_than_onnx_runtime_is_not_computed(
    operator, others, attributes, computed
):
    node = ir.from_proto(helper.make_node(operator, ["x", *others], ["y"], **attributes))
    arrays = {
        "x": normal(1, 1, 2, 2) if "larger" in others else normal(1, 1, 5, 6),
        "scales": np.float32([1, 1, 0.7, 0.7]),
        "sizes": np.array([1, 1, 3, 4]),
        "places": np.array([[[[5, 7], [13, 15]]]]),
        "larger": np.array([1, 1, 5, 5]),
    }
    arrays = {name: array for name, array in arrays.items() if name in ("x", *others)}
    if computed:
        found = compute_node(node, arrays, 18)
        np.testing.assert_allclose(found, by_onnx_runtime(node, arrays), rtol=1e-5, atol=1e-6)
    else:
        with pytest.raises(NotImplementedError):
            compute_node(node, arrays, 18)


LARGEST = (1 << 63) - 1


@pytest.mark.parametrize("dtype", [np.int64, np.float32])
@pytest.mark.parametrize("step", [-2, -1, 1, 2])
def test_slices_are_those_of_onnx_runtime_or_not_computed(dtype, step):
    left = []
    data = np.arange(3).astype(dtype)
    for start, end in itertools.product((-LARGEST, -4, -3, -1, 0, 2, 3, LARGEST), repeat=2):
        node = ir.from_proto(helper.make_node("Slice", ["x", "starts", "ends", "axes", "steps"], ["y"]))
        arrays = {"x": data, "starts": np.array([start]), "ends": np.array([end])}
        arrays |= {"axes": np.array([-1]), "steps": np.array([step])}
        try:
            found = compute_node(node, arrays, 18)
        except NotImplementedError:
            left.append((start, end))
            continue
        wanted = by_onnx_runtime(node, arrays, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
        np.testing.assert_array_equal(found, wanted)
    outside = [(start, end) for start, end in left if start < -3 or end >= 3]
    assert left == outside and len(left) == (28 if step < 0 else 0)


def by_onnx_runtime(node, arrays, dtype=TensorProto.FLOAT):
    stored = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    output = helper.make_tensor_value_info("y", dtype, None)
    graph = helper.make_graph([ir.to_proto(node)], "g", [], [output], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return run(model)[0]


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
    vectors = {"given": [0, 0, 0, 0, 2, 2], "missing": [2], "pairs": [-1, 2], "last": [-1], "first": [0]}
    vectors |= {"end": [-(1 << 63) + 1]}
    body = """zeros = ConstantOfShape <value = int64[1] {0}> (missing) pads = Concat <axis = 0> (given, zeros)
        p = Reshape (pads, pairs) t = Slice (p, last, end, first, last)
        columns = Transpose <perm = [1, 0]> (t) flat = Reshape (columns, last) i = Cast <to = 7> (flat)
        y = Pad (x, i)"""
    constants = {name: np.array(values) for name, values in vectors.items()}
    model = parsed("float[N, 3, 4, 4] x", "float[] y", body, **constants)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    script = (
        "import sys; from trtint8.models.model import load_model, prepare; "
        f"graph = prepare(load_model({str(tmp_path / 'model.onnx')!r})).graph_model.graph; "
        "print([n.op_type for n in graph], graph.node(0).inputs[1].const_value.numpy().tolist(), "
        "'onnx.reference' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.split("\n")[0] == "['Pad'] [0, 2, 0, 0, 0, 2, 0, 0] False"
