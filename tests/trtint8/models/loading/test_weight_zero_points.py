"""Products of integers get the zero point of their weights, which ONNX Runtime before 1.30 needs."""

import numpy as np
import onnx
import pytest

import trtint8
from trtint8.models.loading.weight_zero_points import write_zero_points
from trtint8.models.model import load_model
from trtint8.models.session import open_model

WEIGHTS = np.random.default_rng(1).integers(-127, 128, (64, 8)).astype(np.int8)
X = np.random.default_rng(0).integers(0, 256, (16, 64)).astype(np.float32)

#: Operator to a network of it, whose weights have the scale 1 / 64.
NETWORKS = {
    "MatMulInteger": "i = MatMulInteger (q, w)\nf = Cast <to = 1> (i)\ny = Mul (f, scale)",
    "with an empty name": "i = MatMulInteger (q, w, zero, )\nf = Cast <to = 1> (i)\ny = Mul (f, scale)",
    "transposed": """v = Transpose <perm = [1, 0]> (w)
        t = Transpose <perm = [1, 0]> (v)
        i = MatMulInteger (q, t)
        f = Cast <to = 1> (i)
        y = Mul (f, scale)""",
    "cut off": """t = Slice (w, start, end)
        i = MatMulInteger (q, t)
        f = Cast <to = 1> (i)
        y = Mul (f, scale)""",
    "MatMulIntegerToFloat": "y = com.microsoft.MatMulIntegerToFloat (q, w, one, scale)",
    "DynamicQuantizeMatMul": "y = com.microsoft.DynamicQuantizeMatMul (x, w, scale)",
}


def model(body, weights=WEIGHTS, **constants):
    made = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["": 17, "com.microsoft": 1]>
        integers (float[N, 64] x) => (float[N, 8] y) {{
            q = Cast <to = 2> (x)
            {body}
        }}""")
    constants |= {"w": weights, "one": np.float32(1), "zero": np.uint8(0), "scale": np.float32(1 / 64)}
    constants |= {"start": np.array([0]), "end": np.array([64])} if "start" in body else {}
    for name, array in constants.items():
        made.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    return made


def written(made):
    """The inputs of the products after zero points were written, and the names of the constants."""
    write_zero_points(made)
    graphs = [made.graph, *(one.g for node in made.graph.node for one in node.attribute if one.HasField("g"))]
    nodes = [node for graph in graphs for node in graph.node if "MatMul" in node.op_type]
    return [list(node.input) for node in nodes], [tensor.name for tensor in made.graph.initializer]


@pytest.mark.parametrize("network", NETWORKS)
def test_sums_are_exact(network):
    (found,) = open_model(load_model(model(NETWORKS[network]))).run({"x": X})
    np.testing.assert_array_equal(found, X @ WEIGHTS.astype(np.float32) / 64)


def test_the_zero_point_is_written_where_it_is_missing():
    constants = ["w", "one", "zero", "scale", "weight_zero_point"]
    places = {
        "MatMulInteger": ["q", "w", "", "weight_zero_point"],
        "with an empty name": ["q", "w", "zero", "weight_zero_point"],
        "transposed": ["q", "t", "", "weight_zero_point"],
        "cut off": ["q", "t", "", "weight_zero_point"],
        "MatMulIntegerToFloat": ["q", "w", "one", "scale", "", "weight_zero_point"],
        "DynamicQuantizeMatMul": ["x", "w", "scale", "weight_zero_point"],
    }
    for kind, inputs in places.items():
        made = model(NETWORKS[kind])
        parts = ["start", "end"] if kind == "cut off" else []
        assert written(made) == ([inputs], [*constants[:-1], *parts, constants[-1]])
        assert onnx.numpy_helper.to_array(made.graph.initializer[-1]) == np.int8(0)


def test_an_attention_of_integers():
    made = model("y = com.microsoft.QAttention <num_heads = 1> (q, w, bias, one, scale)")
    write_zero_points(made)
    assert list(made.graph.node[1].input) == ["q", "w", "bias", "one", "scale", "", "", "weight_zero_point"]


def test_one_zero_point_serves_branches_and_constant_nodes_too_under_a_free_name():
    made = model("""yes = Constant <value = bool {1}> ()
        inner = Constant <value = int8[64, 8] {0}> ()
        i = If (yes) <
            then_branch = first () => (int32[N, 8] a) { a = MatMulInteger (q, w) },
            else_branch = second () => (int32[N, 8] b) { b = MatMulInteger (q, inner, zero) }>
        weight_zero_point = Cast <to = 1> (i)
        y = Mul (weight_zero_point, scale)""")
    inputs, constants = written(made)
    assert inputs == [["q", "w", "", "weight_zero_point_"], ["q", "inner", "zero", "weight_zero_point_"]]
    assert constants == ["w", "one", "zero", "scale", "weight_zero_point_"]


@pytest.mark.parametrize(
    ("body", "weights"),
    [
        ("i = MatMulInteger (q, w, zero, known)\ny = Cast <to = 1> (i)", WEIGHTS),
        ("i = MatMulInteger (q, w)\ny = Cast <to = 1> (i)", WEIGHTS.view(np.uint8)),
        ("i = MatMulInteger (w, q)\ny = Cast <to = 1> (i)", WEIGHTS),
        ("y = Cast <to = 1> (q)", WEIGHTS),
    ],
    ids=["a zero point", "uint8", "computed", "no product"],
)
def test_other_models_stay_as_they_are(body, weights):
    made = model(body, weights, known=np.int8(3))
    before = made.SerializeToString()
    write_zero_points(made)
    assert made.SerializeToString() == before


@pytest.mark.filterwarnings("ignore:input 'x' has only integers from 0 to 255")
def test_a_model_without_zero_points_is_calibrated():
    table = trtint8.calibrate(model(NETWORKS["MatMulInteger"]), X, method="minmax", progress=False)
    assert table.amax["y"] == np.abs(X @ WEIGHTS.astype(np.float32) / 64).max()
