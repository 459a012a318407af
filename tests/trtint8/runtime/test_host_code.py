"""Whatever loads an engine hands on what may run: code in the engine and plugins; by itself nothing."""

import contextlib
import pickle

import numpy as np
import onnx
import pytest

import trtint8
from calibrators.data.batches import Feeds
from tests.trtint8.onnx_models import conv_relu_conv
from trtint8.cli.main import main
from trtint8.engine.file import TensorSpec
from trtint8.models.model import load_model
from trtint8.models.session import open_graph_model
from trtint8.runtime import bench
from trtint8.runtime.bindings import LoadingOptions
from trtint8.validation import opening, validate
from trtint8.validation.output_shapes import DeclaredOutputs

#: What a caller may allow, and what ``Engine.load`` is to be asked for then.
ALLOWED = (
    ({}, (False, [])),
    ({"allow_host_code": True}, (True, [])),
    ({"plugins": ["a.so", "b.so"]}, (False, ["a.so", "b.so"])),
)
OPTIONS = ([], ["--allow-host-code"], ["--plugin", "a.so", "--plugin", "b.so"])
WANTED = [wanted for _, wanted in ALLOWED]

DATA = np.random.default_rng(0).random((4, 3, 16, 16), np.float32)


@pytest.fixture
def model(tmp_path):
    onnx.save(onnx.shape_inference.infer_shapes(conv_relu_conv(False)), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


@pytest.fixture
def asked(model, monkeypatch):
    """What each call of ``Engine.load`` was asked for; the engines run the float model."""
    monkeypatch.chdir(model.parent)
    for name in ("x.engine", "b.engine"):
        model.with_name(name).touch()
    asked = []
    session = open_graph_model(load_model(model).graph_model)
    run, names = session.run, session.output_names

    class Engine:
        inputs = (TensorSpec("images", "float32", ("N", 3, 16, 16)),)
        outputs = (TensorSpec(names[0], "float32", ("N", 16, 16, 16)),)
        info = None

        @staticmethod
        @contextlib.contextmanager
        def load(_path, allow_host_code=False, plugins=(), device=0):
            asked.append((allow_host_code, list(plugins)))
            yield Engine()

        def infer(self, feeds):
            return dict(zip(names, run(dict(feeds)), strict=True))

    monkeypatch.setattr(opening, "gpu_problem", lambda: None)
    monkeypatch.setattr(opening, "gpu_names", lambda: ["a GPU"])
    monkeypatch.setattr(opening, "Engine", Engine)
    return asked


def test_validate(model, asked):
    for allowed, _ in ALLOWED:
        trtint8.validate("x.engine", DATA, reference=model, also={"B": "b.engine"}, **allowed)
    assert asked == [wanted for wanted in WANTED for _ in range(2)]


@pytest.mark.parametrize(("allowed", "libraries"), [(False, []), (True, []), (False, ["a.so", "b.so"])])
def test_the_workers_of_validate(allowed, libraries, model, asked):
    loaded = load_model(model)
    work = validate._ValidationWork(
        {"INT8": model.with_name("x.engine")},
        model,
        opening.Setting(
            loaded.inputs,
            DeclaredOutputs.of(loaded.graph_model),
            LoadingOptions(allowed, tuple(model.with_name(name) for name in libraries)),
            threads=1,
        ),
        None,
        Feeds(lambda: iter(())),
    )
    model.with_name("x.engine").touch()
    for missing in libraries:
        with pytest.raises(trtint8.ModelError, match=rf"does not see '.*{missing}', and engines, plugin lib"):
            work.open()
        model.with_name(missing).touch()
    pickle.loads(pickle.dumps(work)).open()
    assert asked == [(allowed, [model.with_name(name) for name in libraries])]


def test_the_worst_samples_of_a_report(model, asked, tmp_path):
    from tests.trtint8.report import samples

    (tmp_path / "net").mkdir()
    samples.write_all(tmp_path / "net")
    (tmp_path / "net" / "net.qdq.onnx").unlink()
    page = tmp_path / "r.html"
    for allowed, _ in ALLOWED:
        trtint8.write_report([tmp_path / "net"], page, model=model, data=DATA, **allowed)
    assert asked == WANTED


def test_the_verbs(model, asked, tmp_path, monkeypatch, capsys):
    np.savez(tmp_path / "d.npz", images=DATA)
    monkeypatch.setattr("trtint8.api.running.Engine", opening.Engine)
    verbs = [
        ["validate", "x.engine", str(tmp_path / "d.npz"), "--reference", str(model)],
        ["run", "x.engine", str(tmp_path / "d.npz"), "-o", str(tmp_path / "o.npz")],
    ]
    for verb in verbs:
        assert [main([*verb, *options]) for options in OPTIONS] == [0, 0, 0], capsys.readouterr().err
    assert asked == WANTED * 2


def test_bench(monkeypatch):
    asked = []

    def load(_path, device, allow_host_code, plugins):
        asked.append((allow_host_code, list(plugins)))
        raise trtint8.EngineError("enough")

    monkeypatch.setattr(bench, "require_gpu", lambda _what: None)
    monkeypatch.setattr(bench, "gpu_uuid", lambda _device: "GPU-0")
    monkeypatch.setenv("TRTINT8_GPU_LOCK", "off")
    monkeypatch.setattr(bench.Engine, "load", load)
    for allowed, _ in ALLOWED:
        with pytest.raises(trtint8.EngineError, match="enough"):
            trtint8.bench(["x.engine"], **allowed)
    assert [main(["bench", "x.engine", *options]) for options in OPTIONS] == [2, 2, 2]
    assert asked == WANTED * 2


def test_polygraphy(monkeypatch):
    runner = pytest.importorskip("trtint8.runtime.polygraphy_runner")
    asked = []
    monkeypatch.setattr(
        runner.Engine,
        "load",
        lambda _path, allow_host_code, plugins: asked.append((allow_host_code, list(plugins))),
    )
    for allowed, _ in ALLOWED:
        runner.TrtInt8Runner("x.engine", **allowed).activate_impl()
    assert asked == WANTED
