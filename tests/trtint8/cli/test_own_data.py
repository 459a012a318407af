"""Data from a function of the user's."""

from argparse import Namespace

import numpy as np
import onnx
import pytest
from onnx import helper

from calibrators.data.feeds import BatchAxes
from calibrators.data.inputs import InputSpec
from calibrators.data.opening import open_batches
from calibrators.data.sequences import StateSequences
from calibrators.errors import CalibrationDataError
from calibrators.tables.table import CalibrationTable
from trtint8.cli.main import main
from trtint8.cli.own_data import data_from
from trtint8.data import DEMO_MODEL

PLAIN = Namespace(batch_axis=[], state=[])
X = (InputSpec("x", np.dtype(np.float32), ("n", 2)),)

LOADERS = """
import numpy as np

def batches():
    for i in range(3):
        yield np.full((2, 2), i, np.float32), np.full(2, i)

def listed():
    return list(batches())

def arrays():
    return {"x": np.ones((4, 2), np.float32)}

def path():
    return "data.npz"

def nothing():
    pass

def takes(one):
    pass

def breaks():
    yield np.zeros((2, 2), np.float32)
    raise ValueError("no such\\nimage.")

def raises():
    raise KeyError("split")

ready = listed()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_loaders.py").write_text(LOADERS)
    (tmp_path / "own_broken.py").write_text("import no_such_package\n")
    (tmp_path / "own_wrong.py").write_text("1 / 0\n")
    return tmp_path


def read(text):
    batches = open_batches(data_from(text, PLAIN), X)
    passes = [[(one.feed["x"][:, 0].tolist(), one.labels) for one in batches.labelled()] for _ in range(2)]
    assert [feed for feed, _ in passes[0]] == [feed for feed, _ in passes[1]]
    return [feed for feed, _ in passes[0]], passes[0][0][1]


@pytest.mark.parametrize("name", ["batches", "listed", "ready"])
def test_what_a_function_returns_is_read_again_for_each_pass(folder, name):
    feeds, labels = read(f"own_loaders:{name}")
    assert feeds == [[0, 0], [1, 1], [2, 2]]
    assert labels.tolist() == [0, 0]


def test_what_is_no_loader_is_passed_on(folder):
    assert read("own_loaders:arrays")[0] == [[1, 1, 1, 1]]
    assert data_from("own_loaders:path", PLAIN) == "data.npz"


def test_other_text_stays_as_it_is(folder):
    for text in (None, "random:3", "data.npz", "folder/a:b", "a:b:c", "own_loaders.py"):
        assert data_from(text, PLAIN) == text
    (folder / "own_loaders:batches").touch()
    assert data_from("own_loaders:batches", PLAIN) == "own_loaders:batches"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "missing_one:f",
            "'missing_one:f' is neither a file nor a function: there is no module 'missing",
        ),
        (
            "own_loaders.part:f",
            r"is neither a file nor a function: there is no module 'own_loaders\.part'",
        ),
        (
            "own_broken:f",
            "the module 'own_broken' cannot be imported: ModuleNotFoundError: No module",
        ),
        (
            "own_wrong:f",
            "the module 'own_wrong' cannot be imported: ZeroDivisionError: division",
        ),
        (
            "own_loaders:typo",
            "the module 'own_loaders' has no 'typo'; name a function of it",
        ),
        ("own_loaders:takes", "the function failed: TypeError: .*'one'; it is called without arguments"),
        ("own_loaders:raises", "the function failed: KeyError: 'split'; it is called without arguments"),
        ("own_loaders:nothing", "the function returned None; return a data loader"),
        ("own_loaders:breaks", "failed at item 1: ValueError: no such image; correct the function"),
    ],
)
def test_every_failure_is_one_sentence(folder, text, message):
    with pytest.raises(CalibrationDataError, match=message):
        read(text)


def test_on_the_command_line(folder, capsys):
    from trtint8.data import DEMO_MODEL
    from trtint8.models.model import load_model

    (spec,) = load_model(DEMO_MODEL).inputs
    shape = (6, *spec.shape[1:])
    values = np.random.default_rng(0).random(shape, np.float32)
    np.savez(folder / "data.npz", **{spec.name: values})
    (folder / "own_digits.py").write_text(
        "import numpy as np\n"
        "def loader():\n"
        f"    values = np.load('data.npz')['{spec.name}']\n"
        "    return [(values[:3], np.arange(3)), (values[3:], np.arange(3))]\n"
    )
    for data, table in (("own_digits:loader", "a.json"), ("data.npz", "b.json")):
        assert main(["calibrate", str(DEMO_MODEL), data, "-o", table, "--method", "entropy"]) == 0
    assert CalibrationTable.load("a.json").amax == CalibrationTable.load("b.json").amax
    assert main(["calibrate", str(DEMO_MODEL), "own_digits:typo", "-o", "c.json"]) == 2
    assert "has no 'typo'" in capsys.readouterr().err


def test_batch_axes():
    options = Namespace(batch_axis=["state=1", "a=b=0"], state=[])
    found = data_from("d.npz", options)
    assert isinstance(found, BatchAxes)
    assert (found.data, found.axes) == ("d.npz", {"state": 1, "a=b": 0})
    # A table has none.
    assert data_from("table.json", options) == "table.json"
    assert data_from(None, options) is None
    for entry in ("state", "=1", "state=", "state=-1", "state=x"):
        with pytest.raises(CalibrationDataError, match=f"--batch-axis: '{entry}' is not NAME=K; write"):
            data_from("d.npz", Namespace(batch_axis=[entry], state=[]))
    with pytest.raises(CalibrationDataError, match="--batch-axis gives 'x' twice; give each name once"):
        data_from("d.npz", Namespace(batch_axis=["x=1", "x=0"], state=[]))
    for place in ("images", "random:3", "d.npy"):
        with pytest.raises(CalibrationDataError, match=f"for a .npz, and the data is '{place}'"):
            data_from(place, options)


def test_states():
    options = Namespace(batch_axis=["sound=1"], state=["h=a=b", "c=c1"])
    found = data_from("d.npz", options)
    assert isinstance(found, StateSequences)
    assert (found.data, found.states, found.axes) == ("d.npz", {"h": "a=b", "c": "c1"}, {"sound": 1})
    assert data_from("table.json", options) == "table.json"
    assert data_from(None, options) is None
    for entry in ("state", "=out", "state="):
        with pytest.raises(CalibrationDataError, match=f"--state: '{entry}' is not INPUT=OUTPUT; write for"):
            data_from("d.npz", Namespace(batch_axis=[], state=[entry]))
    with pytest.raises(CalibrationDataError, match="--state gives 'h' twice; give each name once"):
        data_from("d.npz", Namespace(batch_axis=[], state=["h=a", "h=b"]))


def test_states_of_what_a_function_returns(folder):
    found = data_from("own_loaders:listed", Namespace(batch_axis=[], state=["h=h1"]))
    assert [labels.tolist() for _, labels in found.data()] == [[0, 0], [1, 1], [2, 2]]


@pytest.fixture
def detector(tmp_path):
    """A voice activity detector as far as its inputs go: sound, a state along axis 1, and the sample rate."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Cast", ["rate"], ["rate_float"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Div", ["input", "rate_float"], ["scaled"]),
        helper.make_node("MatMul", ["scaled", "weights"], ["hidden"]),
        helper.make_node("ReduceSum", ["state", "axes"], ["summed"], keepdims=0),
        helper.make_node("Add", ["hidden", "summed"], ["both"]),
        helper.make_node("Relu", ["both"], ["positive"]),
        helper.make_node("MatMul", ["positive", "last"], ["speech"]),
        helper.make_node("Unsqueeze", ["positive", "axes"], ["one"]),
        helper.make_node("Concat", ["one", "one"], ["next_state"], axis=0),
    ]
    make = helper.make_tensor_value_info
    float_type, int_type = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
    graph = helper.make_graph(
        nodes,
        "detector",
        [
            make("input", float_type, ["batch", 16]),
            make("state", float_type, [2, "batch", 32]),
            make("rate", int_type, []),
        ],
        [make("speech", float_type, ["batch", 2]), make("next_state", float_type, [2, "batch", 32])],
        [
            onnx.numpy_helper.from_array(rng.standard_normal((16, 32), np.float32), "weights"),
            onnx.numpy_helper.from_array(rng.standard_normal((32, 2), np.float32), "last"),
            onnx.numpy_helper.from_array(np.array([0]), "axes"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, tmp_path / "detector.onnx")
    np.savez(
        tmp_path / "steps.npz",
        input=rng.standard_normal((12, 16), np.float32),
        state=rng.standard_normal((2, 12, 32), np.float32),
        rate=np.array(2),
        labels=np.arange(12) % 2,
    )
    return tmp_path


def test_a_stateful_model_on_the_command_line(detector, capsys, monkeypatch):
    monkeypatch.chdir(detector)
    axis = ["--batch-axis", "state=1"]
    calibrate = ["calibrate", "detector.onnx", "steps.npz", "--method", "minmax"]
    assert main([*calibrate, "-o", "table.json", *axis]) == 0
    table = CalibrationTable.load("table.json")
    with np.load("steps.npz") as arrays:
        assert table.amax["input"] == pytest.approx(np.abs(arrays["input"]).max())
        assert table.amax["state"] == pytest.approx(np.abs(arrays["state"]).max())
    assert table.provenance.samples == 12
    assert main(["quantize", "detector.onnx", "table.json", "-o", "int8.onnx"]) == 0
    capsys.readouterr()
    command = ["validate", "int8.onnx", "steps.npz", "--reference", "detector.onnx", "--json", *axis]
    assert main(command) == 0
    assert '"samples": 12' in capsys.readouterr().out
    assert main(["sensitivity", "detector.onnx", "table.json", "steps.npz", *axis]) == 0
    tune = ["tune", "detector.onnx", "steps.npz", "steps.npz", "-o", "tuned.onnx", "--metric", "sqnr"]
    assert main([*tune, "--no-round-weights", *axis]) == 0
    assert main([*calibrate, "-o", "other.json"]) == 2
    assert "say with --batch-axis NAME=K" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--batch-axis", "--batch-axis: 'state' is not NAME=K; write for example 'state=1'"),
        ("--state", "--state: 'state' is not INPUT=OUTPUT; write for example 'state=next_state'"),
    ],
)
def test_advice_on_axes_and_states_is_what_the_option_takes(option, message, tmp_path, capsys):
    np.savez(tmp_path / "d.npz", images=np.zeros((4, 1, 8, 8), np.float32))
    arguments = [str(DEMO_MODEL), str(tmp_path / "d.npz"), "--reference", str(DEMO_MODEL), option, "state"]
    assert main(["validate", *arguments]) == 2
    assert capsys.readouterr().err == f"trtint8 validate: {message}\n"
