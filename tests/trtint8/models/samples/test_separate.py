"""Networks that compute every sample by itself, and others."""

import re

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from tests.trtint8.onnx_models import conv_relu_conv, normal, parsed
from trtint8.data import DEMO_MODEL
from trtint8.models.model import load_model, prepare
from trtint8.models.samples.separate import OF_BATCH, BatchSizes, joined_by_graph
from trtint8.models.session import open_graph_model
from trtint8.models.shapes import declared_sizes

BRANCH = """y = If (yes) <then_branch = t () => (float[] a) { a = Relu (x) },
    else_branch = e () => (float[] b) { b = Neg (x) }>"""


def graph_of(message, **options):
    """The graph with inferred shapes."""
    return ir.from_proto(onnx.shape_inference.infer_shapes(message, **options))


@pytest.mark.parametrize(
    ("inputs", "body", "separate", "has_rows"),
    [
        ("float[N, 4] x", "y = Relu (x)", True, True),
        ("float[N, 4] x", "y = Relu (constant)", True, False),
        # A fixed batch cannot be divided.
        ("float[3, 4] x", "y = Relu (x)", False, False),
        # An axis as long as there are samples.
        ("float[N, 4] a, float[N, M] b", "y = ReduceMean <axes = [1]> (b)", True, None),
        ("float[N, 4] a, float[N, N] b", "y = ReduceMean <axes = [1]> (b)", False, None),
        ("float[N, 4] a, float[M, N] b", "y = ReduceMean <axes = [1]> (b)", False, None),
        # Two inputs, combined sample by sample, or all with all.
        ("float[N, 4, 4] a, float[N, 4, 4] b", "y = MatMul (a, b)", True, None),
        ("float[N, 4, 4] a, float[N, 4, 4] b", "y = NoSuchOperator (a, b)", False, None),
        ("float[N, 4] a, float[N, 4] b", "y = MatMul (a, b)", False, None),
        ("float[N, 6] x", BRANCH, False, None),
    ],
)
def test_inputs_and_outputs(inputs, body, separate, has_rows):
    constants = {"constant": np.ones((1, 4), np.float32), "yes": np.array(True)}
    constants = {name: array for name, array in constants.items() if name in body}
    found = joined_by_graph(graph_of(parsed(inputs, "float[] y", body, **constants)))
    assert found.separate == separate
    assert has_rows is None or found.has_rows == has_rows


def test_convolutional_networks():
    assert joined_by_graph(prepare(load_model(DEMO_MODEL)).graph_model).separate
    graph_model = graph_of(conv_relu_conv(quantized=False))
    assert joined_by_graph(graph_model).separate
    graph_model.graph.node(1).domain = "com.example"
    assert not joined_by_graph(graph_model).separate


#: Values of x, of shape (samples, 4, 6, 6) or (samples, 6).
IMAGES = normal(3, 4, 6, 6)
ROWS = IMAGES[:, 0, 0]

#: How a constant is written: "#(1, 2)" integers, "#(: 1)" a number, "#(f 1 2)" floats, "#(w 2 3)" weights of
#: a shape, "#(same 4)" equal floats, "#(int8 4)" zeros, "#(square 1 2 3 4)" a matrix.
CONSTANTS = {
    ":": lambda number: np.int64(int(number)),
    "f": lambda *numbers: np.array(numbers, np.float32),
    "w": lambda *shape: 0.1 * normal(*map(int, shape)),
    "same": lambda *shape: np.full([int(size) for size in shape], 0.25, np.float32),
    "int8": lambda *shape: np.zeros([int(size) for size in shape], np.int8),
    "square": lambda *numbers: np.array(numbers, np.int64).reshape(2, 2),
}


def network(shape, body):
    """A model of nodes that make y of x, with constants written inside."""
    constants = {}

    def name(match):
        kind, *numbers = match[1].replace(",", " ").split()
        array = CONSTANTS[kind](*numbers) if kind in CONSTANTS else np.array([kind, *numbers], np.int64)
        constants[f"constant{len(constants)}"] = array
        return f"constant{len(constants) - 1}"

    body = re.sub(r"#\(([^()]*)\)", name, body)
    dims = ", ".join(map(str, shape))
    return parsed(f"float[{dims}] x", "float[] y", body, **constants)


def sizes(*parts):
    """Sizes that are computed from the shape of x: numbers stand for themselves, strings for an axis of x."""
    axes = [part for part in parts if isinstance(part, str)]
    gathered = " ".join(f"size{axis} = Gather (shape, #({axis}))" for axis in axes)
    pieces = ", ".join(f"size{part}" if isinstance(part, str) else f"#({part})" for part in parts)
    return f"shape = Shape (x) {gathered} sizes = Concat <axis = 0> ({pieces})"


def pair(scale, axis=1):
    """x through a Q/DQ pair."""
    parameters = f"#(same {scale}), #(int8 {scale})"
    return f"""q = QuantizeLinear <axis = {axis}> (x, {parameters})
        y = DequantizeLinear <axis = {axis}> (q, {parameters})"""


#: Two maps of numbers, computed from each sample, as places of a GridSample.
PLACES = """part = Slice (x, #(0), #(2), #(1)) numbers = Tanh (part)
    places = Transpose <perm = [0, 2, 3, 1]> (numbers)"""
#: As many copies of each sample as there are samples, along axis 1.
COPIES = """all = Shape (x) wanted = Gather (all, #(0, 0, 1, 2, 3)) one = Unsqueeze (x, #(1))
    copies = Expand (one, wanted)"""
#: What PyTorch exports for ``expand`` of a token, where -1 keeps a size: 1 takes its place.
EXPANDED = """rank = Shape (sizes) ones = ConstantOfShape <value = int64[1] {1}> (rank)
    minus = Mul (ones, #(: -1)) keeps = Equal (sizes, minus) kept = Where (keeps, ones, sizes)
    token = Expand (#(w 1 1 6 6), kept) y = Concat <axis = 1> (x, token)"""
#: What PyTorch exports for the first of three chunks of the last axis.
THIRD = f"""{sizes("3")} two = Add (sizes, #(2)) length = Div (two, #(3))
    third = Slice (x, #(0), length, #(3))"""

#: What is done with images, and whether samples stay apart.
WITH_IMAGES = {
    "Conv": ("y = Conv <pads = [1, 1, 1, 1]> (x, #(w 5 4 3 3))", True),
    "ConvTranspose": ("y = ConvTranspose (x, #(w 4 5 3 3))", True),
    "neighbouring channels": ("y = LRN <size = 3> (x)", True),
    "divided by neighbouring channels": ("y = LRN <size = 3, alpha = 2.0> (x)", True),
    "values at computed places": (f"{PLACES} y = GridSample <align_corners = 1> (x, places)", True),
    "values of one constant map for each sample": (
        f"{PLACES} y = GridSample (#(w 3 4 6 6), places)",
        False,
    ),
    "values at the same places in all samples": ("y = GridSample (x, #(w 3 5 5 2))", False),
    "pooling": ("y = MaxPool <kernel_shape = [2, 2]> (x)", True),
    "places of the largest values": (
        "largest, places = MaxPool <kernel_shape = [2, 2]> (x) y = Cast <to = 1> (places)",
        False,
    ),
    "activation": ("y = Relu (x)", True),
    "sum with itself": ("r = Relu (x) y = Add (x, r)", True),
    "slope per channel": ("y = PRelu (x, #(same 4 1 1))", True),
    "constant of one sample": ("y = Mul (x, #(same 1 4 1 1))", True),
    "constant of three samples": ("y = Mul (x, #(same 3 1 1 1))", False),
    "softmax of channels": ("y = Softmax <axis = 1> (x)", True),
    "softmax of samples": ("y = Softmax <axis = 0> (x)", False),
    "softmax of samples from the end": ("y = Softmax <axis = -4> (x)", False),
    "turned in a sample": ("y = Transpose <perm = [0, 2, 3, 1]> (x)", True),
    "turned": ("y = Transpose <perm = [1, 0, 2, 3]> (x)", False),
    "turned without a word": ("y = Transpose (x)", False),
    "joined channels": ("y = Concat <axis = 1> (x, x)", True),
    "joined samples": ("y = Concat <axis = 0> (x, x)", False),
    "mean of places": ("y = ReduceMean <axes = [2, 3]> (x)", True),
    "mean of samples": ("y = ReduceMean <axes = [0]> (x)", False),
    "mean of all": ("y = ReduceMean (x)", False),
    "sum of channels": ("y = ReduceSum (x, #(-3))", True),
    "sum of samples": ("y = ReduceSum (x, #(0))", False),
    "flat": ("y = Flatten (x)", True),
    "flat across samples": ("y = Flatten <axis = 2> (x)", False),
    "same number of rows": ("y = Reshape (x, #(0, -1))", True),
    "rows as long as samples": ("y = Reshape (x, #(-1, 144))", True),
    "rows as long as samples, where zeros are sizes": (
        "y = Reshape <allowzero = 1> (x, #(-1, 144))",
        True,
    ),
    "rows by the shape, where zeros are sizes": (
        f"{sizes('0', -1)} y = Reshape <allowzero = 1> (x, sizes)",
        True,
    ),
    "no rows": ("y = Reshape <allowzero = 1> (x, #(0, 144))", False),
    "shorter rows": ("y = Reshape (x, #(-1, 36))", False),
    "rows by the shape": (f"{sizes('0', -1)} y = Reshape (x, sizes)", True),
    "heads by the shape": (f"{sizes('0', 2, 2, '2', '3')} y = Reshape (x, sizes)", True),
    "another axis first": (f"{sizes('2', -1)} y = Reshape (x, sizes)", False),
    "as many copies of a sample as there are samples": (f"{COPIES} y = ReduceSum (copies, #(1))", False),
    "rows that grow with the samples": (
        f"""{sizes("0")} all = Shape (x) n = Gather (all, #(0)) two = Mul (n, #(2))
        target = Concat <axis = 0> (sizes, #(-1), two) y = Reshape (x, target)""",
        False,
    ),
    "samples as a number": (f"{sizes('0')} n = Cast <to = 1> (sizes) y = Div (x, n)", False),
    "divided by a size of every sample": (
        f"{sizes('2')} n = Cast <to = 1> (sizes) r = Sqrt (n) y = Div (x, r)",
        True,
    ),
    "rows of as many as samples": (f"{sizes(-1, '0')} y = Reshape (x, sizes)", False),
    "as many columns as samples": (
        f"""{sizes(3, "0")} table = ConstantOfShape <value = int64[1] {{1}}> (sizes)
        columns = Shape <start = 1> (table) n = Cast <to = 1> (columns) y = Div (x, n)""",
        False,
    ),
    "part by the shape": (f"{THIRD} y = Identity (third)", True),
    "heads of a part by the shape": (f"{THIRD} y = Reshape (third, #(-1, 4, 3, 2, 2))", True),
    "shorter rows of a part by the shape": (f"{THIRD} y = Reshape (third, #(-1, 12))", False),
    "as many parts as samples": (f"{sizes('0')} y = Slice (x, #(0), sizes, #(1))", False),
    "part of the channels": ("y = Slice (x, #(1), #(3), #(1))", True),
    "part of the samples": ("y = Slice (x, #(1), #(3), #(0))", False),
    "every second channel": ("y = Gather <axis = 1> (x, #(0, 2))", True),
    "the first sample": ("y = Gather (x, #(0))", False),
    "larger": ("y = Resize (x, , #(f 1 1 2 2))", True),
    "edges": ("y = Pad (x, #(0, 0, 1, 1, 0, 0, 1, 1))", True),
    "another sample at the end": ("y = Pad (x, #(0, 0, 0, 0, 1, 0, 0, 0))", False),
    "a new axis": ("y = Unsqueeze (x, #(1))", True),
    "a new axis before samples": ("y = Unsqueeze (x, #(0))", False),
    "product of matrices": ("y = MatMul (x, #(w 6 5))", True),
    "product of a sample with itself": ("y = MatMul (x, x)", True),
    "a token that is expanded": (f"{sizes('0', -1, -1, -1)} {EXPANDED}", True),
    "a token for each of the rows": (f"{sizes('2', 4, 6, 6)} {EXPANDED}", False),
    "a token for every sample": (
        f"{sizes('0', 1, 6, 6)} token = Expand (#(w 1 1 6 6), sizes) y = Concat <axis = 1> (x, token)",
        True,
    ),
    "Q/DQ pair": (pair(""), True),
    "Q/DQ pair with a scale per channel": (pair(4), True),
    "Q/DQ pair with a scale per column": (pair(6, axis=-1), True),
    "Q/DQ pair with a scale per sample": (pair(3, axis=0), False),
    "Q/DQ pair with a scale per sample, from the end": (pair(3, axis=-4), False),
    "length of each channel": ("y = GlobalLpPool (x)", True),
    "largest channels": ("y, at = TopK <axis = 1> (x, #(2))", True),
    "largest samples": ("y, at = TopK <axis = 0> (x, #(2))", False),
    "place of the largest channel": ("at = ArgMax <axis = 1> (x) y = Cast <to = 1> (at)", True),
    "number of the largest sample": ("at = ArgMax <axis = 0> (x) y = Cast <to = 1> (at)", False),
    "divided by lengths": ("y = LpNormalization <axis = 1> (x)", True),
    "divided by lengths of samples": ("y = LpNormalization <axis = 0> (x)", False),
    "running sum of samples": ("y = CumSum (x, #(0))", False),
}

#: The same of rows.
WITH_ROWS = {
    "fully connected": ("y = Gemm (x, #(w 6 5), #(w 5))", True),
    "a bias per sample": ("y = Gemm (x, #(w 6 5), #(w 3 5))", False),
    "turned product": ("y = Gemm <transA = 1> (x, #(w 3 5))", False),
    "product from the left": ("y = MatMul (#(w 2 3), x)", False),
    "normalization": ("y = LayerNormalization (x, #(w 6), #(w 6))", True),
    "parts": ("y, rest = Split <axis = 1> (x)", True),
    "parts of the batch": ("y, rest = Split <axis = 0> (x)", False),
}


@pytest.mark.parametrize(
    ("values", "body", "separate"),
    [
        pytest.param(values, *case, id=name)
        for values, cases in ((IMAGES, WITH_IMAGES), (ROWS, WITH_ROWS))
        for name, case in cases.items()
    ],
)
def test_operators(values, body, separate):
    graph_model = graph_of(network(["N", *values.shape[1:]], body), data_prop=True)
    assert joined_by_graph(graph_model).separate == separate
    if separate:  # then a sample alone gives what it gives among others
        session = open_graph_model(graph_model)
        (together,) = session.run({"x": values})[:1]
        alone = [session.run({"x": values[i : i + 1]})[0] for i in range(len(values))]
        np.testing.assert_allclose(np.concatenate(alone), together, rtol=1e-5, atol=1e-6)


OPEN = ("N", "length", 6)
#: One of two lengths, chosen by the number of samples.
LENGTH = """l = Gather (s, #(0)) three = Equal (l, #(3)) m = Gather (s, #(1)) n = Gather (s, #(2))
    y = Where (three, m, n)"""
ROOT = "c = Gather (s, #({})) f = Cast <to = 1> (c) y = Sqrt (f)"


@pytest.mark.parametrize(
    ("body", "found", "shape", "depends"),
    [
        (body, found, *(more or [("N", 4, 6), None]))
        for body, found, *more in [
            ("y = Identity (s)", (None, 4, 6)),
            ("y = Shape <start = 1> (x)", (4, 6)),
            ("y = Shape <start = -3, end = -1> (x)", (None, 4)),
            ("y = Gather (s, #(: 0))", (None,)),
            ("y = Gather (s, #(2, -2))", (6, 4)),
            ("y = Gather (s, #(: 7))", None),
            ("y = Slice (s, #(0), #(2))", (None, 4)),
            ("y = Slice (s, #(1), #(9), #(0), #(1))", (4, 6)),
            ("y = Slice (s, #(0), #(9), #(0), #(2))", (None, 6)),
            ("y = Concat <axis = 0> (s, #(-1))", (None, 4, 6, -1)),
            ("y = Cast <to = 6> (s)", (None, 4, 6)),
            ("c = Cast <to = 9> (s) y = Cast <to = 7> (c)", None),
            ("c = Cast <to = 3> (s) y = Cast <to = 7> (c)", None),
            ("y = Mul (s, #(2))", (OF_BATCH, 8, 12)),
            ("y = Sub (s, #(5))", (OF_BATCH, -1, 1)),
            ("d = Div (s, #(4)) y = Identity (d)", (OF_BATCH, 1, 1)),
            ("d = Div (s, #(0)) y = Identity (d)", None),
            ("f = Cast <to = 1> (s) d = Div (f, #(f 4)) y = Identity (d)", None),
            ("y = Add (s, #(1, 2))", None),
            ("y = Equal (s, #(-1, 4, 5))", (0, 1, 0)),
            ("y = Equal (s, #(3))", (OF_BATCH, 0, 0)),
            ("e = Equal (s, #(-1, 4, 1)) y = Where (e, #(7), s)", (None, 7, 6)),
            ("e = Equal (s, #(3, 4, 1)) y = Where (e, #(7), s)", (OF_BATCH, 7, 6)),
            ("y = Shape (s)", (3,)),
            ("l = Shape (s) y = ConstantOfShape <value = int64[1] {1}> (l)", (1, 1, 1)),
            ("l = Shape (s) y = ConstantOfShape <value = float[1] {1}> (l)", None),
            ("y = Max (s, #(4))", None),
            # Tables are not known, nor rows of them.
            (
                """four = Concat <axis = 0> (s, #(1)) table = Reshape (four, #(2, 2))
                row = Slice (table, #(0), #(1), #(0)) y = Reshape (row, #(-1))""",
                None,
            ),
            (
                """c = Gather (s, #(1)) index = Sub (c, #(4)) row = Gather (#(square 1 2 3 4), index)
                y = Reshape (row, #(-1))""",
                None,
            ),
            # Nor numbers that are no sizes.
            ("f = Cast <to = 1> (s) y = Mul (#(f nan -inf 2), f)", None),
            # Open sizes, and what changes with the number of samples.
            ("y = Gather (s, #(0, -1))", (None, 6), OPEN, None),
            ("y = Gather (s, #(0, 2))", (None, 6), OPEN, None),
            ("y = Gather (s, #(1))", ..., OPEN, False),
            ("y = Gather (s, #(0, 1))", ..., ("N", 4, 6), True),
            ("y = Gather (s, #(1, 2))", ..., ("N", 4, 6), False),
            (ROOT.format(0), ..., ("N", 4, 6), True),
            (ROOT.format(1), ..., ("N", 4, 6), False),
            (LENGTH, (OF_BATCH,), ("N", "length", "width"), True),
            (LENGTH, (5,), ("N", 5, 5), False),
            # An open size may be any number.
            (
                """l = Gather (s, #(1)) e = Equal (l, #(224)) n = Gather (s, #(0))
                y = Where (e, #(1), n)""",
                None,
                OPEN,
                True,
            ),
            # As many zeros as there are samples: their number is that of the samples.
            (
                "n = Gather (s, #(0)) zeros = ConstantOfShape (n) y = Shape (zeros)",
                (OF_BATCH,),
                ("N", 4, 6),
                True,
            ),
            # A vector without elements.
            ("e = Shape <start = 1> (x) y = Add (e, e)", (), ("N",), False),
        ]
    ],
)
def test_what_is_known_of_sizes(body, found, shape, depends):
    model = network(shape, f"s = Shape (x) {body}")
    model.graph.output[0].ClearField("type")  # it is not always that of floats
    graph, known = graph_of(model).graph, BatchSizes(declared_sizes)
    for node in graph:
        known.follow(node)
    value = graph.outputs[0]
    assert value in known and graph.inputs[0] not in known
    assert depends is None or known.depends_on_samples(value) == depends
    assert found is ... or known.of(value) == found


def test_constants_are_known():
    graph = ir.from_proto(network(["N"], "y = Add (x, #(3, 5))")).graph
    assert BatchSizes(declared_sizes).of(graph.node(0).inputs[1]) == (3, 5)
    assert BatchSizes(declared_sizes).of(None) is None
