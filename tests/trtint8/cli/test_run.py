"""The verb run, with a stand-in of our own Engine where outputs are wanted."""

from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from calibrators.cuda import gpu_problem
from calibrators.data.images.preprocessing import Preprocessing
from calibrators.data.inputs import CalibratedInputs
from tests.trtint8.cli.calls import succeeds
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
    succeeds("run x.engine", data, "-o", out / "o.npz", "--batch-size 2")
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


def test_limit_and_json(use, data, out, prints, as_json):
    use(
        sums=row_sums,
        none=lambda images: images[:, :0],
        bad=lambda images: images[:, 0] * np.nan,
        bf16=lambda images: images[:, 0].astype(ml_dtypes.bfloat16),
        total=lambda images: np.asarray(images[:, 0].sum()),
    )
    assert as_json("run x.engine", data, "-o", out / "o.npz", "--limit 3") == {
        "written": str(out / "o.npz"),
        "outputs": {
            "sums": {"shape": [3], "dtype": "float32", "min": 15.0, "max": 87.0},
            "none": {"shape": [3, 0], "dtype": "float32"},
            "bad": {"shape": [3], "dtype": "float32", "min": None, "max": None},
            "bf16": {"shape": [3], "dtype": "float32", "min": 0.0, "max": 12.0},
            "total": {"shape": [], "dtype": "float32", "min": 18.0, "max": 18.0},
        },
        "warnings": [],
    }
    with np.load(out / "o.npz") as written:
        assert written["bf16"].dtype == np.float32 and written["bf16"].tolist() == [0, 6, 12]
        assert written["total"] == 18
    assert "scalar" in prints("run x.engine", data, "-o", out / "o.npz", "--limit 3")


def test_an_output_may_have_any_name(use, data, out):
    # The first two are parameters of numpy.savez, the third is what exporters of models write.
    names = ["file", "allow_pickle", "/head/Gemm_output_0", "a.npy"]
    use(**dict.fromkeys(names, row_sums))
    succeeds("run x.engine", data, "-o", out / "o.npz", "--json")
    with np.load(out / "o.npz", allow_pickle=False) as written:
        arrays = dict(written)
    assert sorted(arrays) == sorted(names)
    assert all(np.array_equal(array, IMAGES.sum(axis=1)) for array in arrays.values())


@pytest.mark.parametrize("largest", [1.0, 29.0, None])
def test_inputs_far_beyond_those_of_the_calibration_are_a_warning(largest, use, data, out, as_json):
    engine = use(sums=row_sums)
    fed = None if largest is None else CalibratedInputs("none", {"images": largest})
    engine.info = SimpleNamespace(
        inputs=engine.inputs, outputs=(TensorSpec("sums", "float32", (None,)),), calibrated_inputs=fed
    )
    printed = as_json("run x.engine", data, "-o", out / "o.npz")["warnings"]
    assert ["'images'" in warning for warning in printed] == ([True] if largest == 1.0 else [])


@pytest.mark.parametrize(
    ("wanted", "image", "shape"),
    [
        (Preprocessing(layout="NHWC", mean=(0.4, 0.5, 0.6), channels="BGR"), (4, 5, 3), (None, 4, 5, 3)),
        (Preprocessing(layout="NHWC", std=(0.3,)), (4, 5, 1), (None, 4, 5, 1)),
        (Preprocessing(mean=(0.1307,), std=(0.3081,)), (4, 5, 1), (None, 1, 4, 5)),
        (Preprocessing(crop=(4, 5), std=(0.2, 0.3, 0.4)), (6, 7, 3), (None, 3, 4, 5)),
    ],
    ids=str,
)
@pytest.mark.parametrize("how", ["arrays", "prepared", "folder"])
def test_images_are_prepared_as_for_the_calibration(wanted, image, shape, how, use, out, tmp_path, as_json):
    images = np.random.default_rng(0).integers(0, 256, (3, *image), dtype=np.uint8)
    engine = use(y=lambda fed: fed)
    engine.inputs = (TensorSpec("images", "float32", shape),)
    engine.info = SimpleNamespace(
        inputs=engine.inputs,
        outputs=(TensorSpec("y", "float32", shape),),
        calibrated_inputs=CalibratedInputs(wanted, {"images": float(np.abs(wanted(images)).max())}),
    )
    data = tmp_path / "data.npz"
    if how == "folder":
        pillow = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
        data = tmp_path / "data"
        data.mkdir()
        for number, one in enumerate(images):
            pillow.fromarray(one.squeeze()).save(data / f"{number}.png")
    else:
        np.savez(data, images=wanted(images) if how == "prepared" else images)
    assert not as_json("run x.engine", data, "-o", out / "o.npz", "--batch-size 2")["warnings"]
    with np.load(out / "o.npz") as written:
        np.testing.assert_array_equal(written["y"], wanted(images))
    if how == "prepared":
        return
    other = ["--scale 1 --layout", wanted.layout, *(["--crop", "4,5"] if wanted.crop else [])]
    said = [
        one
        for one in as_json("run x.engine", data, "-o", out / "o.npz", *other)["warnings"]
        if str(wanted) in one
    ]
    assert len(said) == 1 and "scale 1," in said[0]


@pytest.mark.parametrize("shape", [("time", "batch"), (6, "batch")])
def test_batches_are_joined_along_the_axis_that_is_called_like_the_batch(shape, use, data, out):
    engine = use(y=np.transpose)
    engine.info = SimpleNamespace(
        inputs=(TensorSpec("images", "float32", ("batch", 6)),),
        outputs=(TensorSpec("y", "float32", shape),),
        calibrated_inputs=None,
    )
    succeeds("run x.engine", data, "-o", out / "o.npz", "--batch-size 2")
    with np.load(out / "o.npz") as written:
        assert np.array_equal(written["y"], IMAGES.T)


@pytest.mark.parametrize(
    ("function", "shape", "words"),
    [
        (
            lambda images: np.asarray(images.sum()),
            None,
            "output 'y' is one value per batch, and the data has 3",
        ),
        (lambda images: images @ images.T, None, "output 'y' has batches of different shapes"),
        (np.transpose, ("batch", "batch"), "output 'y', batchxbatch, has several axes of samples"),
        (np.transpose, (6, None), "output 'y', 6x?, has no axis of samples"),
    ],
)
def test_outputs_that_one_array_cannot_hold(function, shape, words, use, data, out, refused):
    """An old file stays."""
    engine = use(y=function)
    if shape:
        inputs, outputs = TensorSpec("images", "float32", ("batch", 6)), TensorSpec("y", "float32", shape)
        engine.info = SimpleNamespace(inputs=(inputs,), outputs=(outputs,), calibrated_inputs=None)
    (out / "o.npz").write_bytes(b"old")
    assert refused("run x.engine", data, "-o", out / "o.npz", "--batch-size 2").startswith(
        f"trtint8 run: {words}"
    )
    assert [(path.name, path.read_bytes()) for path in out.iterdir()] == [("o.npz", b"old")]


@pytest.mark.skipif(gpu_problem() is None, reason="this machine has a GPU")
def test_without_a_gpu(data, out, tmp_path, capsys, refused):
    pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")
    model = str(tmp_path / "in" / "digits.engine")
    succeeds("build", DEMO_MODEL, "random:8,images=1x8x8 -o", model, "--target rtx")
    capsys.readouterr()
    assert main(["run", model, data, "-o", str(out / "o.npz")]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(f"trtint8 run: running '{model}' needs an NVIDIA GPU, but ")
    assert len(printed.err.splitlines()) == 1
    assert printed.out == ""
    assert list(out.iterdir()) == []
    said = refused("run", model, data, "-o", f"{model}.json")
    assert f"cannot write '{model}.json': it is read as well" in said
