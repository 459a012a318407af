"""Models that draw random numbers."""

import warnings

import numpy as np
import onnx
import pytest

import trtint8
from trtint8.cli.main import main
from trtint8.models.loading.random_nodes import random_nodes
from trtint8.models.model import load_model

X = np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32)


def model(body, functions=""):
    """Noise is added to what a product reads."""
    made = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 17, "own": 1]>
        noisy (float[N, 8] x) => (float[N, 8] y) {{
            {body}
            sum = Add (x, noise)
            y = MatMul (sum, w)
        }}{functions}"""
    )
    weights = np.random.default_rng(1).standard_normal((8, 8)).astype(np.float32)
    made.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return made


PLAIN = model("noise = RandomNormalLike (x)")
BRANCH = """yes = Constant <value = bool {1}> ()
    noise = If (yes) <
        then_branch = drawn () => (float[N, 8] a) { a = RandomUniformLike (x) },
        else_branch = kept () => (float[N, 8] b) { b = Identity (x) }>"""
FUNCTION = """
    <domain: "own", opset_import: ["": 17]>
    Noise (value) => (out) { out = RandomNormalLike (value) }"""


@pytest.mark.parametrize(
    ("made", "found"),
    [
        (PLAIN, ["noise"]),
        (model(BRANCH), ["a"]),
        (model("noise = own.Noise (x)", FUNCTION), ["out"]),
        (model("p = Sigmoid (x)\nnoise = Bernoulli (p)\nb = Bernoulli (p)"), ["noise"]),
        (model("noise = RandomNormal <shape = [8]> ()\nb = Add (noise, x)"), ["noise"]),
        (model("unread = RandomNormalLike (x)\nnoise = Dropout (x)"), []),
    ],
    ids=["plain", "branch", "function", "unread too", "no input", "none"],
)
@pytest.mark.filterwarnings("ignore:.* draws random numbers")
def test_nodes_whose_random_numbers_are_read_are_found(made, found):
    assert [node.outputs[0].name for node in random_nodes(load_model(made).graph_model)] == found


def test_a_random_model_is_said_to_be_one():
    said = r"'model' draws random numbers \('noise', from RandomNormalLike\), so two runs on the same samples"
    with pytest.warns(UserWarning, match=said):
        trtint8.calibrate(PLAIN, X, method="minmax", progress=False)
    two = model("a = RandomUniformLike (x)\nb = RandomUniformLike (x)\nnoise = Add (a, b)")
    with pytest.warns(UserWarning, match=r"\('a', from RandomUniformLike, and 1 more\)"):
        load_model(two)


def test_it_is_said_once_in_a_command(tmp_path, capsys):
    onnx.save(PLAIN, tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=X)
    names = {name: str(tmp_path / name) for name in ("m.onnx", "x.npz", "t.json", "q.onnx")}
    calibrate = ["calibrate", names["m.onnx"], names["x.npz"], "-o", names["t.json"]]
    quantize = ["quantize", names["m.onnx"], names["t.json"], "-o", names["q.onnx"]]
    validate = ["validate", names["q.onnx"], names["x.npz"], "--reference", names["m.onnx"]]
    for command in (calibrate, quantize, validate):
        assert main(command) == 0
        assert capsys.readouterr().err.count("'m.onnx' draws random numbers") == 1


def test_a_model_without_random_numbers_gets_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_model(model("noise = Dropout (x)"))
