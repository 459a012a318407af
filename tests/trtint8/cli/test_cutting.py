"""--cut-at: the model up to some tensors, and the rest for ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import trtint8
from calibrators.errors import OutputError
from calibrators.files import write_atomically
from tests.calibrators.specs import normal
from tests.trtint8.cli.calls import succeeds
from tests.trtint8.refused_models import refused_model
from trtint8.cli.main import main
from trtint8.data import DEMO_MODEL

CUT = ["--cut-at", "r", "--cut-at", "s", "--cut-at", "kept"]

#: Where the demo's model is cut.
FIRST, SECOND = "/block1/relu2/Relu_output_0", "/block2/relu2/Relu_output_0"


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(refused_model(), "m.onnx")
    samples = normal(0, 8, 3, 8, 8)
    np.savez("d.npz", x=samples)
    return {"x": samples}


def run(path, feeds):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    fed = {value.name: feeds[value.name] for value in session.get_inputs()}
    return dict(zip(names, session.run(names, fed), strict=True))


def test_build(rtx, model, tmp_path, prints, refused):
    arguments = ["build", "m.onnx", "d.npz", "-o", "e.engine", "--target", "rtx", "--method", "minmax"]
    arguments.append("--no-fp16")
    assert "cut at 'r' and 's' and 'kept' (--cut-at)" in refused(*arguments)
    assert "e.tail.onnx" in prints(*arguments, *CUT)
    written = {"e.engine", "e.engine.json", "e.qdq.onnx", "e.table.json", "e.float.onnx", "e.tail.onnx"}
    assert {path.name for path in tmp_path.iterdir()} == written | {"m.onnx", "d.npz"}
    info = trtint8.read_engine_info("e.engine")
    assert [spec.name for spec in info.outputs] == ["r", "s", "kept"]
    assert info.quantized_nodes == ("c_node", "d_node")
    head = run("e.float.onnx", model)
    found = head | run("e.tail.onnx", head)
    for name, expected in run("m.onnx", model).items():
        np.testing.assert_array_equal(found[name], expected)


def test_a_table_of_the_part_quantizes_the_part(model, tmp_path):
    succeeds("calibrate m.onnx d.npz -o t.json --method minmax", *CUT)
    succeeds("quantize m.onnx t.json -o q.onnx", *CUT)
    assert {path.name for path in tmp_path.glob("q.*")} == {"q.onnx", "q.tail.onnx", "q.float.onnx"}
    quantized, exact = run("q.onnx", model), run("q.float.onnx", model)
    assert quantized.keys() == exact.keys() == {"r", "s", "kept"}
    assert 0 < np.abs(quantized["s"] - exact["s"]).max() < 0.05
    # The float head is a model like any other, and the table is of it. No pair stands behind the cut.
    succeeds("quantize q.float.onnx t.json -o again.onnx")
    succeeds("quantize m.onnx t.json -o whole.onnx")


def test_a_file_that_is_not_of_an_earlier_run_is_not_lost(rtx, model, tmp_path, refused):
    build = ["build", "m.onnx", "d.npz", "-o", "e.engine", "--target", "rtx", "--method", "minmax", *CUT]
    Path("e.tail.onnx").write_bytes(b"mine")
    assert "cannot write 'e.tail.onnx': no build of" in refused(*build)
    assert {path.name for path in tmp_path.iterdir()} == {"m.onnx", "d.npz", "e.tail.onnx"}
    assert Path("e.tail.onnx").read_bytes() == b"mine"
    succeeds("calibrate m.onnx d.npz -o t.json --method minmax", *CUT)
    quantize = ["quantize", "m.onnx", "t.json", "-o", "e.onnx", *CUT]
    assert main(quantize) == 2
    assert Path("e.tail.onnx").read_bytes() == b"mine"
    Path("e.tail.onnx").unlink()
    for again in (build, build):
        succeeds(*again)


def outputs_and_tail():
    """The outputs of e.engine, and the inputs of the tail beside it."""
    outputs = [spec.name for spec in trtint8.read_engine_info("e.engine").outputs]
    return outputs, [value.name for value in onnx.load("e.tail.onnx").graph.input]


@pytest.fixture
def build(rtx, split, tmp_path, monkeypatch):
    """Builds e.engine from the demo's model, cut at a tensor or not, and gives the exit status."""
    monkeypatch.chdir(tmp_path)
    np.savez("d.npz", images=split.calibration_images[:8])
    options = ["-o", "e.engine", "--target", "rtx", "--compute-capability", "8.6"]

    def run_build(cut=None, model=DEMO_MODEL):
        cuts = [] if cut is None else ["--cut-at", cut]
        return main(["build", str(model), "d.npz", *options, "--method", "minmax", *cuts])

    return run_build


def test_a_tail_that_cannot_be_written_leaves_the_old_files(build, tmp_path, monkeypatch, capsys):
    assert build(FIRST) == 0
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}

    def full(path, data):
        if path.name == "e.tail.onnx":
            raise OutputError(f"cannot write '{path}': No space left on device; choose another place")
        return write_atomically(path, data)

    with monkeypatch.context() as patch:
        patch.setattr("trtint8.models.serialization.write_atomically", full)
        assert build(SECOND) == 2
    words = " ".join(capsys.readouterr().err.split())
    assert "cannot write 'e.tail.onnx': No space left on device" in words
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert build(SECOND) == 0
    assert outputs_and_tail() == ([SECOND], [SECOND])


def test_a_tail_beside_an_engine_that_was_not_cut_is_not_lost(build, tmp_path, capsys):
    assert build() == 0
    Path("e.tail.onnx").write_bytes(b"mine")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert build(FIRST) == 2
    words = " ".join(capsys.readouterr().err.split())
    assert "cannot write 'e.tail.onnx': no build of 'e.engine' has made what it holds" in words
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    # Nor is one that was changed since.
    Path("e.tail.onnx").unlink()
    assert build(FIRST) == 0
    Path("e.tail.onnx").write_bytes(b"mine")
    assert build(SECOND) == 2
    assert Path("e.tail.onnx").read_bytes() == b"mine"


def test_the_parts_of_an_earlier_cut_go_with_it(build, tmp_path):
    whole = {"e.engine", "e.engine.json", "e.qdq.onnx", "e.table.json", "d.npz"}
    assert build(FIRST) == 0
    # Built from its float part, the engine needs the same tail.
    assert build(model="e.float.onnx") == 0
    assert outputs_and_tail() == ([FIRST], [FIRST])
    assert build() == 0
    assert {path.name for path in tmp_path.iterdir()} == whole
    # What was changed since stays.
    assert build(FIRST) == 0
    Path("e.tail.onnx").write_bytes(b"mine")
    assert build() == 0
    assert {path.name for path in tmp_path.iterdir()} == whole | {"e.tail.onnx"}
    assert Path("e.tail.onnx").read_bytes() == b"mine"


def test_a_part_that_is_built_stays(build, split):
    assert build(FIRST) == 0
    tail = Path("e.tail.onnx").read_bytes()
    samples = normal(0, 4, 24, 8, 8)
    np.savez("d.npz", **{FIRST: samples})
    assert build(model="e.tail.onnx") == 0
    assert Path("e.tail.onnx").read_bytes() == tail
    assert not Path("e.float.onnx").exists()
    # So does the same tail of another output.
    for path in Path().glob("e.*"):
        path.unlink()
    Path("e.tail.onnx").write_bytes(tail)
    np.savez("d.npz", images=split.calibration_images[:8])
    assert build(FIRST) == 0
    assert build() == 0
    assert Path("e.tail.onnx").read_bytes() == tail
    assert not Path("e.float.onnx").exists()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("quantize m.onnx t.json -o q.onnx --cut-at nothing", "cannot be cut at 'nothing'"),
        ("calibrate m.onnx d.npz -o t.json --cut-at x", "no node computes a tensor"),
        ("quantize q.float.onnx t.json -o q.onnx --cut-at s", "q.float.onnx"),  # it is read
    ],
)
def test_mistakes(model, refused, tmp_path, line, words):
    onnx.save(refused_model(), "q.float.onnx")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert words in refused(line)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_in_python(model):
    head, rest = trtint8.cut_model("m.onnx", ["s"])
    assert [value.name for value in head.graph.output] == ["positions", "s"]
    assert [value.name for value in rest.graph.input] == ["s"]
    assert trtint8.calibrate(head, model).amax.keys() >= {"x", "s"}
