"""The verb run, with a stand-in of our own Engine where outputs are wanted."""

import json
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from calibrators.cuda import gpu_problem
from trtint8.cli.main import main
from trtint8.data import DEMO_MODEL
from trtint8.engine.file import TensorSpec

IMAGES = np.arange(30, dtype=np.float32).reshape(5, 6)


class SumEngine:
    """The part of our own Engine that the verb uses; what it computes can be checked by hand."""

    info = None
    inputs = (TensorSpec("images", "float32", (None, 6)),)

    def __init__(self, outputs):
        self._functions = outputs
        self.outputs = tuple(TensorSpec(name, "float32", ()) for name in outputs)
        self.batches = []

    def infer(self, feeds):
        self.batches.append(len(feeds["images"]))
        return {name: function(feeds["images"]) for name, function in self._functions.items()}

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        pass


@pytest.fixture
def data(tmp_path):
    (tmp_path / "in").mkdir()
    np.savez(tmp_path / "in" / "images.npz", images=IMAGES)
    return str(tmp_path / "in" / "images.npz")


@pytest.fixture
def out(tmp_path):
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


@pytest.fixture
def use(monkeypatch):
    def install(**outputs):
        engine = SumEngine(outputs)
        monkeypatch.setattr(
            "trtint8.api.running.Engine.load", lambda _path, device, plugins, allow_host_code: engine
        )
        return engine

    return install


def row_sums(images):
    return images.sum(axis=1)


def test_batches_become_one_array(use, data, out, capsys):
    engine = use(sums=row_sums, doubled=lambda images: 2 * images)
    assert main(["run", "x.engine", data, "-o", str(out / "o.npz"), "--batch-size", "2"]) == 0
    assert engine.batches == [2, 2, 1]
    with np.load(out / "o.npz") as written:
        assert written.files == ["sums", "doubled"]
        assert np.array_equal(written["sums"], IMAGES.sum(axis=1))
        assert np.array_equal(written["doubled"], 2 * IMAGES)
    assert [path.name for path in out.iterdir()] == ["o.npz"]
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    cells = {words[1]: words[3::2] for words in printed if len(words) > 1}
    assert cells["sums"] == ["float32", "5", "15", "159"]
    assert cells["doubled"] == ["float32", "5x6", "0", "58"]


def test_bf16_is_written_as_float32(use, data, out, capsys):
    use(y=lambda images: images.astype(ml_dtypes.bfloat16))
    assert main(["run", "x.engine", data, "-o", str(out / "o.npz")]) == 0
    with np.load(out / "o.npz") as written:
        assert written["y"].dtype == np.float32 and np.array_equal(written["y"], IMAGES)
    assert "float32" in capsys.readouterr().out


def test_limit_and_json(use, data, out, capsys):
    use(sums=row_sums, none=lambda images: images[:, :0], bad=lambda images: images[:, 0] * np.nan)
    assert main(["run", "x.engine", data, "-o", str(out / "o.npz"), "--limit", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "written": str(out / "o.npz"),
        "outputs": {
            "sums": {"shape": [3], "dtype": "float32", "min": 15.0, "max": 87.0},
            "none": {"shape": [3, 0], "dtype": "float32"},
            "bad": {"shape": [3], "dtype": "float32", "min": None, "max": None},
        },
    }


def test_an_output_may_have_any_name(use, data, out, capsys):
    # The first two are parameters of numpy.savez, the third is what exporters of models write.
    names = ["file", "allow_pickle", "/head/Gemm_output_0", "a.npy"]
    use(**dict.fromkeys(names, row_sums))
    assert main(["run", "x.engine", data, "-o", str(out / "o.npz"), "--json"]) == 0
    with np.load(out / "o.npz", allow_pickle=False) as written:
        arrays = dict(written)
    assert sorted(arrays) == sorted(names)
    assert all(np.array_equal(array, IMAGES.sum(axis=1)) for array in arrays.values())


def test_a_scalar_of_a_single_batch(use, data, out, capsys):
    use(total=lambda images: np.asarray(images.sum()))
    assert main(["run", "x.engine", data, "-o", str(out / "o.npz")]) == 0
    with np.load(out / "o.npz") as written:
        assert written["total"] == IMAGES.sum()
    assert "scalar" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda images: np.asarray(images.sum()), "output 'y' is one value per batch, and the data has 3"),
        (lambda images: images @ images.T, "output 'y' has batches of different shapes"),
    ],
)
def test_outputs_that_one_array_cannot_hold(function, message, use, data, out, capsys):
    use(y=function)
    assert main(["run", "x.engine", data, "-o", str(out / "o.npz"), "--batch-size", "2"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"trtint8 run: {message}")
    assert len(error.splitlines()) == 1
    assert list(out.iterdir()) == []


@pytest.mark.parametrize("shape", [("time", "batch"), (6, "batch")])
def test_batches_are_joined_along_the_axis_that_is_called_like_the_batch(shape, use, data, out, capsys):
    engine = use(y=np.transpose)
    engine.info = SimpleNamespace(
        inputs=(TensorSpec("images", "float32", ("batch", 6)),), outputs=(TensorSpec("y", "float32", shape),)
    )
    assert main(["run", "x.engine", data, "-o", str(out / "o.npz"), "--batch-size", "2"]) == 0
    with np.load(out / "o.npz") as written:
        assert np.array_equal(written["y"], IMAGES.T)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (("batch", "batch"), "output 'y', batchxbatch, has several axes of samples along which its batches"),
        ((6, None), "output 'y', 6x?, has no axis of samples along which its batches could be joined"),
    ],
)
def test_batches_that_have_no_one_axis_of_samples(shape, message, use, data, out, capsys):
    engine = use(y=np.transpose)
    engine.info = SimpleNamespace(
        inputs=(TensorSpec("images", "float32", ("batch", 6)),), outputs=(TensorSpec("y", "float32", shape),)
    )
    assert main(["run", "x.engine", data, "-o", str(out / "o.npz"), "--batch-size", "2"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"trtint8 run: {message}") and len(error.splitlines()) == 1
    assert list(out.iterdir()) == []


def test_an_old_file_stays_when_a_run_fails(use, data, out, capsys):
    (out / "o.npz").write_bytes(b"old")
    use(y=lambda images: images @ images.T)
    assert main(["run", "x.engine", data, "-o", str(out / "o.npz"), "--batch-size", "2"]) == 2
    assert (out / "o.npz").read_bytes() == b"old"


@pytest.mark.skipif(gpu_problem() is None, reason="this machine has a GPU")
def test_without_a_gpu(data, out, tmp_path, capsys):
    pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")
    model = tmp_path / "in" / "digits.engine"
    digits = np.random.default_rng(0).random((8, 1, 8, 8), np.float32)
    np.savez(tmp_path / "in" / "digits.npz", images=digits)
    build = [
        "build",
        str(DEMO_MODEL),
        str(tmp_path / "in" / "digits.npz"),
        "-o",
        str(model),
        "--target",
        "rtx",
    ]
    assert main(build) == 0
    capsys.readouterr()
    assert main(["run", str(model), data, "-o", str(out / "o.npz")]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(f"trtint8 run: running '{model}' needs an NVIDIA GPU, but ")
    assert len(printed.err.splitlines()) == 1
    assert printed.out == ""
    assert list(out.iterdir()) == []


def test_the_sidecar_is_not_overwritten(data, tmp_path, capsys):
    sidecar = tmp_path / "net.engine.json"
    sidecar.write_text("{}")
    assert main(["run", str(tmp_path / "net.engine"), data, "-o", str(sidecar)]) == 2
    assert f"cannot write '{sidecar}': it is read as well" in capsys.readouterr().err
