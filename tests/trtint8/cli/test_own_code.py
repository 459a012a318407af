"""Code of the user's by name."""

import importlib.util
import math
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import numpy as np
import onnx
import pytest

import trtint8
from calibrators.data.feeds import BatchAxes
from calibrators.data.inputs import InputSpec
from calibrators.data.opening import open_batches
from calibrators.data.sequences import StateSequences
from calibrators.errors import CalibrationDataError, UnsupportedError
from calibrators.tables.table import CalibrationTable
from tests.trtint8.cli.calls import succeeds
from tests.trtint8.validation.small_models import shifted
from trtint8.cli.main import main
from trtint8.cli.own_code import data_from, metric_from, named_object
from trtint8.data import DEMO_MODEL


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_code_wrong.py").write_text("1 / 0\n")


def test_what_text_names():
    assert named_object("math:pi", "data", "a file", "a number") == math.pi
    for text in ("random:3", "data.npz", "folder/a:b", "a:b:c", "1a:b", "a:", ":b", ""):
        assert named_object(text, "data", "a file", "a function") is None
    for name in ("top1", "top3:logits", "psnr:y", "sqnr", "map50", "detections", "ssim", "a:b:c"):
        assert metric_from(name) == name


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
def test_a_module_that_ends_the_program_is_named(status, tmp_path, capsys):
    """With its status 0 a budget would seem to be kept, with 1 to be missed."""
    module = tmp_path / f"own_code_ends_{status}.py"
    module.write_text(f"import sys\n\nsys.exit({status})\n")
    arguments = [str(DEMO_MODEL), "random:4", "--reference", str(DEMO_MODEL), "--metric", f"{module.stem}:f"]
    assert main(["validate", *arguments, "--min", "1"]) == 2
    output = capsys.readouterr()
    error = output.err.splitlines()[-1]
    assert output.out == "" and f"'{module}'" in error and f"line 3 (SystemExit: {status})" in error


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
def own_data_folder(tmp_path):
    (tmp_path / "own_loaders.py").write_text(LOADERS)
    (tmp_path / "own_broken.py").write_text("import no_such_package\n")
    lacking = "from calibrators.errors import UnsupportedError\nraise UnsupportedError('install it')\n"
    (tmp_path / "own_lacking.py").write_text(lacking)
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


def test_other_text_stays_as_it_is(own_data_folder):
    assert read("own_loaders:arrays")[0] == [[1, 1, 1, 1]]
    assert data_from("own_loaders:path", PLAIN) == "data.npz"
    for text in (None, "random:3", "data.npz", "folder/a:b", "a:b:c", "own_loaders.py"):
        assert data_from(text, PLAIN) == text
    (own_data_folder / "own_loaders:batches").touch()
    assert data_from("own_loaders:batches", PLAIN) == "own_loaders:batches"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("missing_one:f", "'missing_one:f'"),
        ("own_loaders.part:f", r"'own_loaders\.part'"),
        ("own_broken:f", "'own_broken' .*ModuleNotFoundError"),
        ("own_lacking:f", "'own_lacking' .*: install it$"),
        ("own_code_wrong:f", "'own_code_wrong' .*ZeroDivisionError"),
        ("own_loaders:typo", "'own_loaders' .*'typo'"),
        ("own_loaders:takes", "TypeError: .*'one'"),
        ("own_loaders:raises", "KeyError: 'split'"),
        ("own_loaders:nothing", "None"),
        ("own_loaders:breaks", "item 1: ValueError: no such image"),
    ],
)
def test_every_failure_is_one_sentence(own_data_folder, text, named):
    with pytest.raises(CalibrationDataError, match=named):
        read(text)


def test_on_the_command_line(own_data_folder, refused):
    values = np.random.default_rng(0).random((6, 1, 8, 8), np.float32)
    np.savez(own_data_folder / "data.npz", images=values)
    (own_data_folder / "own_digits.py").write_text(
        "import numpy as np\n"
        "def loader():\n"
        "    values = np.load('data.npz')['images']\n"
        "    return [(values[:3], np.arange(3)), (values[3:], np.arange(3))]\n"
    )
    for data, table in (("own_digits:loader", "a.json"), ("data.npz", "b.json")):
        succeeds("calibrate", DEMO_MODEL, data, "-o", table, "--method entropy")
    assert CalibrationTable.load("a.json").amax == CalibrationTable.load("b.json").amax
    assert "has no 'typo'" in refused("calibrate", DEMO_MODEL, "own_digits:typo -o c.json")


def test_batch_axes():
    options = Namespace(batch_axis=["state=1", "a=b=0"], state=[])
    found = data_from("d.npz", options)
    assert isinstance(found, BatchAxes)
    assert (found.data, found.axes) == ("d.npz", {"state": 1, "a=b": 0})
    # A table has none.
    assert data_from("table.json", options) == "table.json"
    assert data_from(None, options) is None
    for entry in ("state", "=1", "state=", "state=-1", "state=x"):
        with pytest.raises(UnsupportedError, match=f"--batch-axis: '{entry}' is not NAME=K; write"):
            data_from("d.npz", Namespace(batch_axis=[entry], state=[]))
    with pytest.raises(UnsupportedError, match=r"--batch-axis.*'x'"):
        data_from("d.npz", Namespace(batch_axis=["x=1", "x=0"], state=[]))
    for place in ("images", "random:3", "d.npy"):
        with pytest.raises(CalibrationDataError, match=f"for a .npz, and the data is '{place}'"):
            data_from(place, options)


def test_states(own_data_folder):
    options = Namespace(batch_axis=["sound=1"], state=["h=a=b", "c=c1"])
    found = data_from("d.npz", options)
    assert isinstance(found, StateSequences)
    assert (found.data, found.states, found.axes) == ("d.npz", {"h": "a=b", "c": "c1"}, {"sound": 1})
    assert data_from("table.json", options) == "table.json"
    assert data_from(None, options) is None
    for entry in ("state", "=out", "state="):
        with pytest.raises(UnsupportedError, match=f"--state: '{entry}' is not INPUT=OUTPUT"):
            data_from("d.npz", Namespace(batch_axis=[], state=[entry]))
    with pytest.raises(UnsupportedError, match="--state gives 'h' twice"):
        data_from("d.npz", Namespace(batch_axis=[], state=["h=a", "h=b"]))
    found = data_from("own_loaders:listed", Namespace(batch_axis=[], state=["h=h1"]))
    assert [labels.tolist() for _, labels in found.data()] == [[0, 0], [1, 1], [2, 2]]


@pytest.fixture
def detector():
    """A voice activity detector as far as its inputs go: sound, a state along axis 1, and the sample rate."""
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 17]>
        detector (float[batch, 16] input, float[2, batch, 32] state, int64 rate)
            => (float[batch, 2] speech, float[2, batch, 32] next_state)
        <int64[1] axes = {0}> {
            rate_float = Cast <to = 1> (rate)
            scaled = Div (input, rate_float)
            hidden = MatMul (scaled, weights)
            summed = ReduceSum <keepdims = 0> (state, axes)
            both = Add (hidden, summed)
            positive = Relu (both)
            speech = MatMul (positive, last)
            one = Unsqueeze (positive, axes)
            next_state = Concat <axis = 0> (one, one)
        }"""
    )
    for name, shape in (("weights", (16, 32)), ("last", (32, 2))):
        array = rng.standard_normal(shape, np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.save(model, "detector.onnx")
    sound, state = (rng.standard_normal(shape, np.float32) for shape in ((12, 16), (2, 12, 32)))
    np.savez("steps.npz", input=sound, state=state, rate=np.array(2), labels=np.arange(12) % 2)


def test_a_stateful_model_on_the_command_line(detector, capsys, prints, refused):
    axis = ["--batch-axis", "state=1"]
    calibrate = ["calibrate detector.onnx steps.npz --method minmax"]
    succeeds(*calibrate, "-o table.json", *axis)
    table = CalibrationTable.load("table.json")
    with np.load("steps.npz") as arrays:
        assert table.amax["input"] == pytest.approx(np.abs(arrays["input"]).max())
        assert table.amax["state"] == pytest.approx(np.abs(arrays["state"]).max())
    assert table.provenance.samples == 12
    succeeds("quantize detector.onnx table.json -o int8.onnx")
    capsys.readouterr()
    command = ["validate int8.onnx steps.npz --reference detector.onnx --json", *axis]
    assert '"samples": 12' in prints(*command)
    succeeds("sensitivity detector.onnx table.json steps.npz", *axis)
    tune = ["tune detector.onnx steps.npz steps.npz -o tuned.onnx --metric sqnr"]
    succeeds(*tune, "--no-round-weights", *axis)
    assert "say with --batch-axis NAME=K" in refused(*calibrate, "-o other.json")


@pytest.mark.parametrize(
    ("option", "taken"), [("--batch-axis", "'state=1'"), ("--state", "'state=next_state'")]
)
def test_advice_on_axes_and_states_is_what_the_option_takes(option, taken, refused):
    np.savez("d.npz", images=np.zeros((4, 1, 8, 8), np.float32))
    arguments = [DEMO_MODEL, "d.npz --reference", DEMO_MODEL, option, "state"]
    error = refused("validate", *arguments)
    assert error.startswith(f"trtint8 validate: {option}: 'state' is not ") and error.endswith(taken)


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
def arguments():
    Path("own_metrics_here.py").write_text(METRICS)
    onnx.save(shifted(0.0), "fp32.onnx")
    onnx.save(shifted(0.25), "int8.onnx")
    np.save("held.npy", np.arange(6 * 3 * 4 * 4, dtype=np.float32).reshape(6, 3, 4, 4))
    return ["validate", "int8.onnx", "held.npy", "--reference", "fp32.onnx"]


@pytest.mark.parametrize(
    ("name", "fp32", "int8"),
    [
        ("smallest", 120.0, 120.25),
        ("shift", None, 0.25),
        ("Largest", 287.0, 287.25),
        ("ready", 287.0, 287.25),
    ],
)
def test_validate_measures_them(arguments, name, fp32, int8, as_json):
    (measure,) = as_json(*arguments, "--metric", f"own_metrics_here:{name}")["measures"]
    assert measure["name"] == name.replace("ready", "largest").lower()
    assert measure["value"] == pytest.approx(int8)
    assert (measure["reference"] is None) if fp32 is None else measure["reference"] == fp32


@pytest.mark.parametrize(
    ("name", "named"),
    [
        (
            "own_metrics_here:divides",
            "'divides' failed on the batch that begins with sample 0: ZeroDivisionError",
        ),
        ("own_metrics_here:Raised", "update of metric 'raised' failed on the batch that begins with"),
        ("own_metrics_here:Late", "value of metric 'late' failed: RuntimeError: no values"),
        ("own_metrics_here:Needs", "TypeError: "),
        ("own_metrics_here:number", "3 is not a metric"),
        ("own_metrics_here:other", "'own_metrics_here' has no 'other'"),
        ("no_such_module:f", "'no_such_module:f'"),
    ],
)
def test_mistakes_are_one_sentence(arguments, name, named, capsys):
    assert main([*arguments, "--metric", name]) == 2
    (said,) = (line for line in capsys.readouterr().err.splitlines() if not line.startswith("warning: "))
    assert named in said


def test_the_error_of_a_function_is_the_cause(arguments):
    def divides(_feeds, _outputs):
        return 1 / 0

    with pytest.raises(trtint8.CalibrationDataError) as caught:
        trtint8.validate("int8.onnx", "held.npy", reference="fp32.onnx", metrics=[divides])
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
