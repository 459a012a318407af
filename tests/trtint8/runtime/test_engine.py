"""Loading engines, as far as that goes without a GPU: everything is checked before TensorRT sees a plan."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from calibrators.cuda import gpu_problem
from calibrators.errors import EngineError, GpuUnavailableError, OutputError, UnsupportedError
from calibrators.tensorrt import flavor
from calibrators.tensorrt.flavor import Flavor
from tests.signatures import accepted_arguments, parameter_names
from trtint8 import Engine, build_int8_engine, validate
from trtint8.cli.main import main
from trtint8.data import DEMO_MODEL
from trtint8.runtime.engine import RuntimeCache

no_gpu = pytest.mark.skipif(gpu_problem() is None, reason="this machine has a GPU")


IMAGES = np.random.default_rng(0).random((8, 1, 8, 8), np.float32)


@pytest.fixture(scope="module")
def built(rtx, tmp_path_factory):
    path = tmp_path_factory.mktemp("engine") / "digits.engine"
    kept = ["*"]
    return build_int8_engine(DEMO_MODEL, IMAGES, path, target="rtx", keep_int8=kept).engine


@pytest.fixture
def path(built, tmp_path):
    for file in (built, built.with_name("digits.engine.json"), built.with_name("digits.qdq.onnx")):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path / "digits.engine"


def change_sidecar(path, **fields):
    sidecar = path.with_name("digits.engine.json")
    sidecar.write_text(json.dumps({**json.loads(sidecar.read_text()), **fields}))


@pytest.mark.slow
@no_gpu
@pytest.mark.parametrize("as_bytes", [False, True])
def test_without_a_gpu_the_process_lives(path, as_bytes):
    source = f"open({str(path)!r}, 'rb').read()" if as_bytes else repr(str(path))
    program = (
        "import trtint8\n"
        f"try: trtint8.Engine.load({source})\n"
        "except trtint8.TrtInt8Error as error: print(type(error).__name__, error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=1800)
    assert (done.returncode, done.stderr) == (0, "")
    what = "the plan" if as_bytes else f"'{path}'"
    assert done.stdout.startswith(f"GpuUnavailableError running {what} needs an NVIDIA GPU, but ")


def test_a_missing_file(tmp_path):
    with pytest.raises(EngineError, match="cannot be read"):
        Engine.load(tmp_path / "missing.engine")
    with pytest.raises(EngineError, match="cannot be read"):
        Engine.load("a" * 300 + ".engine")
    with pytest.raises(EngineError, match="cannot be read"):
        Engine.load("a\ud800.engine")
    os.mkfifo(tmp_path / "pipe.engine")
    with pytest.raises(EngineError, match=r"cannot be read \(it is a pipe.* no file\)"):
        Engine.load(tmp_path / "pipe.engine")


def test_a_truncated_engine(path):
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(EngineError, match="is not the one that its sidecar describes"):
        Engine.load(path)
    path.with_name("digits.engine.json").unlink()
    with pytest.raises(EngineError, match="is truncated"):
        Engine.load(path)


@pytest.mark.parametrize("data", [b"", b"\x08\x08", b"hello, I am text" * 20])
def test_bytes_that_are_no_plan(data):
    with pytest.raises(EngineError, match=r"^the plan is (empty|not a TensorRT engine)"):
        Engine.load(data)


def test_the_tensorrt_of_the_plan_is_not_installed(monkeypatch):
    monkeypatch.setattr(flavor, "installed", lambda: [flavor.Flavor("rtx", "1.7.1.116")])
    with pytest.raises(UnsupportedError, match=r"^TensorRT is not installed"):
        Engine.load(b"ftrt" + bytes(100))


def test_a_plan_without_a_sidecar_has_its_version_in_itself(path):
    plan = bytearray(path.read_bytes())
    plan[24:28] = bytes([1, 6, 0, 1])
    metadata = b'{"task": "detect"}'
    for data in (bytes(plan), len(metadata).to_bytes(4, "little") + metadata + bytes(plan)):
        with pytest.raises(EngineError, match=r"version 1\.6\.0\.1"):
            Engine.load(data)


@pytest.fixture
def pretend_gpu(monkeypatch):
    """As far as the checks before TensorRT go; opening the device would fail."""
    monkeypatch.setattr("trtint8.runtime.engine.require_gpu", lambda _what: None)
    monkeypatch.setattr("trtint8.runtime.engine.compute_capability", lambda _device: "7.0")


def test_another_gpu(path, pretend_gpu):
    with pytest.raises(EngineError, match=r"capability 8\.0.*has 7\.0"):
        Engine.load(path)


def test_another_version_is_refused_with_or_without_a_gpu(path):
    change_sidecar(path, tensorrt_version="1.6.0.1")
    with pytest.raises(EngineError, match=r"version 1\.6\.0\.1.*RTX 1"):
        Engine.load(path)


@no_gpu
def test_an_engine_without_a_model_beside_it_cannot_be_judged_on_the_cpu(path):
    change_sidecar(path, qdq_model=None)
    with pytest.raises(GpuUnavailableError, match="has no Q/DQ model beside it to run in its place"):
        validate(path, IMAGES, reference=DEMO_MODEL)


@no_gpu
def test_an_engine_that_was_moved_without_the_model_beside_it(path):
    change_sidecar(path, qdq_model="gone.qdq.onnx")
    with pytest.raises(EngineError) as caught:
        validate(path, IMAGES, reference=DEMO_MODEL)
    assert str(caught.value) == (
        f"the engine '{path}' has no 'gone.qdq.onnx' beside it, which it was built from and which runs in "
        "its place without a GPU; copy it there, or validate on a machine with a GPU"
    )


def test_code_in_an_engine_is_allowed_by_the_caller_alone(path, pretend_gpu, tmp_path, capsys):
    change_sidecar(path, version_compatible=True)
    refusal = (
        f"'{path}' is version-compatible, so it contains code that would run on this machine; if you trust "
        "it, load it with allow_host_code=True"
    )
    with pytest.raises(EngineError) as caught:
        Engine.load(path)
    assert str(caught.value) == refusal
    arguments = ["run", str(path), "random:4", "-o", str(tmp_path / "o.npz")]
    assert main(arguments) == 2
    alone = refusal.replace("allow_host_code=True", "--allow-host-code")
    assert capsys.readouterr().err == f"trtint8 run: {alone}\n"
    assert main([*arguments, "--allow-host-code"]) == 2
    assert "for compute capability 8.0" in capsys.readouterr().err


class Cache:
    """Kernels are bytes; it takes those that begin with "ours"."""

    def __init__(self):
        self.data = b"ours, new"

    def deserialize(self, data):
        fits = data.startswith(b"ours")
        self.data = data if fits else self.data
        return fits

    def serialize(self):
        return memoryview(self.data)


@pytest.fixture
def cache():
    return Cache()


def test_contexts_take_the_configuration(rtx):
    function = rtx.module.ICudaEngine.create_execution_context
    assert any(low <= 1 <= high for low, high in accepted_arguments(function))
    assert ["runtime_config"] in parameter_names(function)


def attach(cache, path, flavor, accepted=True):
    config = SimpleNamespace(create_runtime_cache=lambda: cache, set_runtime_cache=lambda _cache: accepted)
    return RuntimeCache.attach(SimpleNamespace(create_runtime_config=lambda: config), path, flavor)


def test_what_was_compiled_is_there_the_next_time(rtx, cache, tmp_path):
    path = tmp_path / "kernels.cache"
    made = attach(cache, path, rtx)
    assert not path.exists()
    made.save()
    assert path.read_bytes() == b"ours, new"
    cache.data = b""
    attach(cache, path, rtx)
    assert cache.data == b"ours, new"


def test_a_file_is_written_only_where_there_is_something_new(rtx, cache, tmp_path):
    path = tmp_path / "kernels.cache"
    path.write_bytes(b"ours, old")
    made = attach(cache, path, rtx)
    before = path.stat().st_mtime_ns, path.stat().st_ino
    made.save()
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == before
    cache.data = b"ours, more"
    made.save()
    assert path.read_bytes() == b"ours, more"


def test_a_file_of_another_machine_is_made_anew(rtx, cache, tmp_path):
    path = tmp_path / "kernels.cache"
    path.write_bytes(b"theirs")
    with pytest.warns(UserWarning, match=r"kernels\.cache' is of another TensorRT, GPU or driver"):
        made = attach(cache, path, rtx)
    made.save()
    assert path.read_bytes() == b"ours, new"


def test_what_cannot_be(rtx, cache, tmp_path):
    with pytest.raises(EngineError, match="refuses the runtime cache"):
        attach(cache, tmp_path / "x", rtx, accepted=False)
    with pytest.raises(OutputError):
        attach(cache, tmp_path / "missing" / "x", rtx)


def test_only_tensorrt_for_rtx_has_it(cache, tmp_path):
    class Other(Flavor):
        module = SimpleNamespace()

    with pytest.raises(UnsupportedError, match=r"TensorRT 10\.1"):
        attach(cache, tmp_path / "x", Other("tensorrt", "10.1"))
