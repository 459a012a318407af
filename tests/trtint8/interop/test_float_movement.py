"""Operators that move integers, brought back to float."""

import numpy as np
import pytest

from tests.trtint8.integer_models import applied, operators, run
from tests.trtint8.interop.pairs_by_hand import proto_of
from trtint8.interop.integer_models import FloatOperatorsPass, move_in_float

X = np.random.default_rng(1).uniform(-5, 5, (3, 4, 8, 8)).astype(np.float32)

#: Integers and their parameters, and those with parameters that are computed.
QUANTIZED = "q = QuantizeLinear (x, s, z) "
DYNAMIC = "q, c, p = DynamicQuantizeLinear (x) "

#: Operator to the one that moves integers.
CASES = {
    "MaxPool": "MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]> (q)",
    "GlobalMaxPool": "GlobalMaxPool (q)",
    "Reshape": "Reshape (q, sizes)",
    "Flatten": "Flatten (q)",
    "Transpose": "Transpose <perm = [0, 2, 3, 1]> (q)",
    "Unsqueeze": "Unsqueeze (q, two)",
    "Slice": "Slice (q, one, three, one)",
    "Gather": "Gather <axis = 1> (q, places)",
    "GatherElements": "GatherElements <axis = 3> (q, zeros)",
    "GatherND": "GatherND (q, column)",
    "ReduceMax": "ReduceMax <axes = [2, 3]> (q)",
    "ReverseSequence": "ReverseSequence <time_axis = 1, batch_axis = 0> (q, lengths)",
    "Compress": "Compress <axis = 1> (q, chosen)",
    "Tile": "Tile (q, repeats)",
    "DepthToSpace": "DepthToSpace <blocksize = 2> (q)",
    "Pad": "Pad (q, pads, seven)",
}

#: What ONNX Runtime computes on 8-bit data.
RUNNABLE = [name for name in CASES if name != "GlobalMaxPool"]

ARRAYS = {
    "sizes": np.array([0, 32, -1]),
    "one": np.array([1]),
    "two": np.array([2]),
    "three": np.array([3]),
    "parts": np.array([1, 3]),
    "places": np.array([2, 0]),
    "zeros": np.zeros((3, 4, 8, 8), np.int64),
    "column": np.array([[1], [0]]),
    "lengths": np.array([3, 1, 2]),
    "chosen": np.array([True, False, True, True]),
    "repeats": np.array([1, 2, 1, 1]),
    "pads": np.array([0, 0, 1, 1, 0, 0, 2, 2]),
    "seven": np.uint8(7),
    "flat": np.array([0, -1]),
}


def movement(body, inputs="float[3, 4, 8, 8] x", same=True, atol=0, **options):
    """What became of a model: its operators, the pass, and the new model, which computes the same."""
    graph_pass = FloatOperatorsPass(move_in_float)
    model = proto_of(body, inputs, **{"s": 0.05, "z": np.uint8(120), **ARRAYS, **options})
    made, modified = applied(graph_pass, model)
    if modified and same:
        x = X if "3, 4" in inputs else np.arange(6, dtype=np.float32)
        np.testing.assert_allclose(run(made, x=x), run(model, x=x), rtol=0, atol=atol)
    return operators(made) if modified else None, graph_pass, made


@pytest.mark.parametrize("operator", CASES)
def test_it_moves_floats_between_pairs(operator):
    body = f"{QUANTIZED} node = {CASES[operator]} y = DequantizeLinear (node, s, z)"
    made, graph_pass, _ = movement(body, same=operator in RUNNABLE)
    assert graph_pass.replaced == {"node": "integer-data"}
    assert [name for name in made if name != "DequantizeLinear"] == [
        "QuantizeLinear",
        operator,
        "QuantizeLinear",
    ]


def test_data_without_a_zero_point_keeps_the_type_that_its_quantizer_names():
    body = "q = QuantizeLinear <output_dtype = 3> (x, s) node = Flatten (q) y = DequantizeLinear (node, s)"
    assert movement(body, opset=21)[0]


def test_a_chain_moves_floats_throughout():
    body = """pool = MaxPool <kernel_shape = [2, 2]> (q) transpose = Transpose <perm = [0, 2, 3, 1]> (pool)
        flatten = Flatten (transpose) y = DequantizeLinear (flatten, s, z)"""
    assert list(movement(QUANTIZED + body)[1].replaced) == ["pool", "transpose", "flatten"]


def test_split_quantizes_all_that_it_makes():
    body = """first, second = Split <axis = 1> (q, parts) a = DequantizeLinear (second, s, z)
        b = DequantizeLinear (first, s, z) y = Concat <axis = 1> (a, b)"""
    assert movement(QUANTIZED + body)[0].count("QuantizeLinear") == 3


def test_indices_stay_what_they_are():
    body = "argmax = ArgMax <axis = 1, keepdims = 0> (q) y = Cast <to = 1> (argmax)"
    assert movement(QUANTIZED + body)[0] == ["QuantizeLinear", "DequantizeLinear", "ArgMax", "Cast"]


def test_a_stored_table_takes_the_parameters_of_what_reads_it():
    body = "ids = Cast <to = 7> (x) rows = Gather (w, ids) y = DequantizeLinear (rows, s, z)"
    table = np.random.default_rng(0).integers(0, 256, (6, 5)).astype(np.uint8)
    made = movement(body, "float[N] x", w=table, z=np.uint8(130), atol=1e-6)[0]
    assert made == ["Cast", "DequantizeLinear", "Gather", "QuantizeLinear", "DequantizeLinear"]


def test_data_with_a_computed_scale_passes_unquantized():
    made = movement(DYNAMIC + "pad = Pad (q, pads, p) y = DequantizeLinear (pad, c, p)")[2]
    assert next(node for node in made.graph.node if node.op_type == "Pad").input[0] == "x"


@pytest.mark.parametrize("zero", [np.int8(0), np.int8(20), np.uint8(0), np.uint8(130)])
def test_a_pad_with_the_raw_zero_writes_what_that_represents(zero):
    assert movement(QUANTIZED + "node = Pad (q, pads) y = DequantizeLinear (node, s, z)", z=zero, atol=1e-6)[
        0
    ]


@pytest.mark.parametrize(
    ("second", "moves"),
    [
        ("(x, s)", True),
        ("(x, vector, zero)", True),
        ("(x, other)", False),
        ("(x, s, three8)", False),
    ],
)
def test_a_concat_moves_floats_where_its_parameters_are_the_same_numbers(second, moves):
    # Only with a zero point is the type that of the other operand, which ONNX demands.
    body = f"""q = QuantizeLinear <output_dtype = 3> (x, s) r = QuantizeLinear <output_dtype = 3> {second}
        node = Concat <axis = 1> (q, r) y = DequantizeLinear (node, s)"""
    numbers = {"vector": [0.05], "other": 0.07, "zero": np.int8(0), "three8": np.int8(3)}
    assert bool(movement(body, opset=21, **numbers)[0]) == moves


@pytest.mark.parametrize(
    ("body", "moves"),
    [
        # Computed parameters are the same only as values.
        ("node = Concat <axis = 1> (q, q) y = DequantizeLinear (node, c, p)", True),
        (
            """r, d, o = DynamicQuantizeLinear (x) node = Concat <axis = 1> (q, r)
            y = DequantizeLinear (node, c, p)""",
            False,
        ),
        ("node = Pad (q, pads) y = DequantizeLinear (node, c, p)", False),  # with the raw zero
        ("node = Transpose <perm = [0, 2, 3, 1]> (x) y = Reshape (node, flat)", False),  # no integers
    ],
)
def test_what_else_is_moved_or_left_alone(body, moves):
    assert bool(movement(DYNAMIC + body)[0]) == moves


def test_the_ends_of_a_clip_of_integers_become_floats():
    body = QUANTIZED + "clip = Clip (q, low, high) y = DequantizeLinear (clip, s, z)"
    ends = {"s": 0.5, "z": np.uint8(100), "low": np.uint8(90), "high": np.uint8(104)}
    _, graph_pass, made = movement(body, **ends)
    assert list(graph_pass.replaced) == ["clip"]
    found = run(made, x=3 * X)
    assert found.min() == -5 and found.max() == 2
