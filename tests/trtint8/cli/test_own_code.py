"""Code of the user's by name."""

import importlib.util
import json
import math
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import trtint8
from calibrators.data.feeds import BatchAxes
from calibrators.data.inputs import InputSpec
from calibrators.data.opening import open_batches
from calibrators.data.sequences import StateSequences
from calibrators.errors import CalibrationDataError
from calibrators.tables.table import CalibrationTable
from tests.trtint8.validation.small_models import shifted
from trtint8.cli.main import main
from trtint8.cli.own_code import data_from, metric_from, named_object
from trtint8.data import DEMO_MODEL


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_code_wrong.py").write_text("1 / 0\n")


def test_an_object_of_an_installed_module():
    assert named_object("math:pi", "data", "a file", "a number") == math.pi


def test_text_of_another_form_names_nothing():
    for text in ("random:3", "data.npz", "folder/a:b", "a:b:c", "1a:b", "a:", ":b", ""):
        assert named_object(text, "data", "a file", "a function") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("math:tau2", "'math:tau2'.*'math'.*'tau2'"),
        ("own_code_none.part:f", "'own_code_none.part:f'.*'own_code_none'"),
        ("own_code_wrong:f", "'own_code_wrong'"),
    ],
)
def test_mistakes_are_named(text, message):
    with pytest.raises(CalibrationDataError, match=message):
        named_object(text, "metric", "a name", "a function of it")


@pytest.mark.parametrize("status", [0, 1])
def test_a_module_that_ends_the_program_is_named(status, tmp_path, monkeypatch, capsys):
    """With its status 0 a budget would seem to be kept, with 1 to be missed."""
    module = tmp_path / f"own_code_ends_{status}.py"
    module.write_text(f"import sys\n\nsys.exit({status})\n")
    monkeypatch.chdir(tmp_path)
    arguments = [str(DEMO_MODEL), "random:4", "--reference", str(DEMO_MODEL), "--metric", f"{module.stem}:f"]
    assert main(["validate", *arguments, "--min", "1"]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.splitlines()[-1] == (
        f"trtint8 validate: '{module}' ends the program in line 3 (SystemExit: {status}); remove that from "
        "what is imported and called here"
    )


def test_files_beside_a_named_module_are_imported_by_nothing_else(tmp_path):
    """They would come in place of what is installed, and of what is not."""
    traps = ("rich", "numpy", "json", "onnx", "onnxruntime", "cupy", "torch", "sympy", "pandas", "psutil")
    for name in traps:
        (tmp_path / f"{name}.py").write_text(f"open('trap', 'a').write('{name} ')\nraise ImportError\n")
    (tmp_path / "own_beside.py").write_text("COUNT = 4\n")
    (tmp_path / "own_named.py").write_text(
        "import numpy\nimport own_beside\n"
        "def images():\n    return [numpy.ones((1, 1, 8, 8), 'f4') * k for k in range(own_beside.COUNT)]\n"
    )
    for program in ([Path(sys.executable).with_name("trtint8")], [sys.executable, "-m", "trtint8"]):
        command = [*program, "calibrate", DEMO_MODEL, "own_named:images", "-o", "t.json"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        assert not (tmp_path / "trap").exists()


@pytest.mark.parametrize("name", ["rich", "sqlite3", "lib2to3"])
def test_a_file_with_the_name_of_an_installed_module_is_not_run(name, tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place != str(tmp_path)])
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"there is no {name}")
    (tmp_path / f"{name}.py").write_text("raise SystemExit\n")
    with pytest.raises(CalibrationDataError, match=f"'{name}'.* rename"):
        named_object(f"{name}:f", "data", "a file", "a function")


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
def own_data_folder(tmp_path, monkeypatch):
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
def test_what_a_function_returns_is_read_again_for_each_pass(own_data_folder, name):
    feeds, labels = read(f"own_loaders:{name}")
    assert feeds == [[0, 0], [1, 1], [2, 2]]
    assert labels.tolist() == [0, 0]


def test_what_is_no_loader_is_passed_on(own_data_folder):
    assert read("own_loaders:arrays")[0] == [[1, 1, 1, 1]]
    assert data_from("own_loaders:path", PLAIN) == "data.npz"


def test_other_text_stays_as_it_is(own_data_folder):
    for text in (None, "random:3", "data.npz", "folder/a:b", "a:b:c", "own_loaders.py"):
        assert data_from(text, PLAIN) == text
    (own_data_folder / "own_loaders:batches").touch()
    assert data_from("own_loaders:batches", PLAIN) == "own_loaders:batches"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("missing_one:f", "'missing_one:f'"),
        ("own_loaders.part:f", r"'own_loaders\.part'"),
        ("own_broken:f", "'own_broken'"),
        ("own_wrong:f", "'own_wrong'"),
        ("own_loaders:typo", "'own_loaders'.*'typo'"),
        ("own_loaders:takes", "'one'"),
        ("own_loaders:raises", "'split'"),
        ("own_loaders:nothing", "the function returned None; return a data loader"),
        ("own_loaders:breaks", "item 1"),
    ],
)
def test_every_failure_is_one_sentence(own_data_folder, text, message):
    with pytest.raises(CalibrationDataError, match=message):
        read(text)


def test_on_the_command_line(own_data_folder, capsys):
    from trtint8.data import DEMO_MODEL
    from trtint8.models.model import load_model

    (spec,) = load_model(DEMO_MODEL).inputs
    shape = (6, *spec.shape[1:])
    values = np.random.default_rng(0).random(shape, np.float32)
    np.savez(own_data_folder / "data.npz", **{spec.name: values})
    (own_data_folder / "own_digits.py").write_text(
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
    with pytest.raises(CalibrationDataError, match=r"--batch-axis.*'x'"):
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
    with pytest.raises(CalibrationDataError, match=r"--state.*'h'"):
        data_from("d.npz", Namespace(batch_axis=[], state=["h=a", "h=b"]))


def test_states_of_what_a_function_returns(own_data_folder):
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


METRICS = """
import numpy as np

def smallest(feeds, outputs):
    return outputs["y"].min(axis=(1, 2, 3))

def shift(feeds, outputs, reference_outputs):
    return float((outputs["y"] - reference_outputs["y"]).mean())

def divides(feeds, outputs):
    return 1 / 0

class Largest:
    name = "largest"

    def __init__(self):
        self.values = []

    def fresh(self):
        return Largest()

    def update(self, feeds, outputs, labels):
        self.values.append(float(outputs["y"].max()))

    def value(self):
        return max(self.values)

class Raised(Largest):
    name = "raised"

    def fresh(self):
        return self

    def update(self, feeds, outputs, labels):
        raise KeyError("z")

class Late(Largest):
    name = "late"

    def fresh(self):
        return self

    def value(self):
        raise RuntimeError("no values")

class Needs(Largest):
    def __init__(self, count):
        pass

ready = Largest()
number = 3
"""


@pytest.fixture
def arguments(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("own_metrics_here.py").write_text(METRICS)
    onnx.save(shifted(0.0), "fp32.onnx")
    onnx.save(shifted(0.25), "int8.onnx")
    np.save("held.npy", np.arange(6 * 3 * 4 * 4, dtype=np.float32).reshape(6, 3, 4, 4))
    return ["validate", "int8.onnx", "held.npy", "--reference", "fp32.onnx"]


def test_names_stay_names():
    for name in ("top1", "top3:logits", "psnr:y", "sqnr", "map50", "detections", "ssim", "a:b:c"):
        assert metric_from(name) == name


@pytest.mark.parametrize(
    ("name", "fp32", "int8"),
    [
        ("smallest", 120.0, 120.25),
        ("shift", None, 0.25),
        ("Largest", 287.0, 287.25),
        ("ready", 287.0, 287.25),
    ],
)
def test_validate_measures_them(arguments, name, fp32, int8, capsys):
    assert main([*arguments, "--metric", f"own_metrics_here:{name}", "--json"]) == 0
    (measure,) = json.loads(capsys.readouterr().out)["measures"]
    assert measure["name"] == name.replace("ready", "largest").lower()
    assert measure["value"] == pytest.approx(int8)
    assert (measure["reference"] is None) if fp32 is None else measure["reference"] == fp32


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "own_metrics_here:divides",
            "metric 'divides' failed on the batch that begins with sample 0: ZeroDiv",
        ),
        (
            "own_metrics_here:Raised",
            "the method update of metric 'raised' failed on the batch that begins with",
        ),
        (
            "own_metrics_here:Late",
            "the method value of metric 'late' failed: RuntimeError: no values; correct",
        ),
        ("own_metrics_here:Needs", "the class cannot be called without arguments: TypeError: "),
        ("own_metrics_here:number", "3 is not a metric; give a name, a function of feeds and outputs, or an"),
        (
            "own_metrics_here:other",
            "the module 'own_metrics_here' has no 'other'; name a function or a metric",
        ),
        (
            "no_such_module:f",
            "the metric 'no_such_module:f' is neither a metric of trtint8 nor a function: th",
        ),
    ],
)
def test_mistakes_are_one_sentence(arguments, name, message, capsys):
    assert main([*arguments, "--metric", name]) == 2
    (said,) = (line for line in capsys.readouterr().err.splitlines() if not line.startswith("warning: "))
    assert message in said


def test_the_error_of_a_function_is_the_cause(arguments):
    def divides(_feeds, _outputs):
        return 1 / 0

    with pytest.raises(trtint8.CalibrationDataError) as caught:
        trtint8.validate("int8.onnx", "held.npy", reference="fp32.onnx", metrics=[divides])
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
