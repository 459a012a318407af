"""Every example runs as it is and prints what it promises."""

import re
import runpy
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import trtint8

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs an example's script in an empty folder; gives what it printed."""
    pytest.importorskip("sklearn", reason="scikit-learn is not installed (pip install 'trtint8[demo]')")
    monkeypatch.chdir(tmp_path)

    def script(name):
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return script


@pytest.fixture
def rtx():
    pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")


def numbers(pattern, text):
    """The numbers that a pattern's groups find in what was printed."""
    found = re.search(pattern, text)
    assert found, text
    return [float(group) for group in found.groups()]


TOP1 = r"FP32 ([\d.]+)%, INT8 ([\d.]+)%"


def test_every_example_has_a_page_and_a_place_in_the_list():
    folders = sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir())
    assert [name[:2] for name in folders] == [f"{number:02}" for number in range(1, 10)]
    listed = (EXAMPLES / "README.md").read_text()
    for name in folders:
        (script,) = (EXAMPLES / name).glob("*.py")
        assert f"({name}/README.md)" in listed
        assert f"python examples/{name}/{script.name}" in (EXAMPLES / name / "README.md").read_text()


def test_image_folder(run, rtx):
    pytest.importorskip("PIL", reason="Pillow is not installed (pip install 'trtint8[images]')")
    out = run("01_image_folder/image_folder.py")
    assert "weighted layers in INT8: 9 of 9" in out
    fp32, int8 = numbers(TOP1, out)
    assert fp32 > 97 and int8 > 97
    files = {path.name for path in Path("example_output").iterdir() if path.is_file()}
    assert files == {
        *("digits.engine", "digits.engine.json", "digits.qdq.onnx", "digits.table.json", "preprocess.toml"),
    }


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_dataloader(run, rtx):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    out = run("02_dataloader/dataloader.py")
    assert "calibrated on 500 samples" in out
    fp32, int8 = numbers(TOP1, out)
    assert fp32 == pytest.approx(99.5, abs=0.01) and int8 > 99


def test_detector(run, rtx):
    pytest.importorskip("faster_coco_eval", reason="faster-coco-eval is not installed")
    out = run("03_detector/detector.py")
    (agreement,) = numbers(r"detections: INT8 ([\d.]+)", out)
    fp32, int8 = numbers(r"mAP@0.50: FP32 ([\d.]+), INT8 ([\d.]+)", out)
    assert agreement > 0.98
    assert fp32 == pytest.approx(0.9843, abs=0.002) and int8 > 0.97


def test_segmentation(run, rtx):
    out = run("04_segmentation/segmentation.py")
    fp32, int8 = numbers(r"pixels: FP32 ([\d.]+), INT8 ([\d.]+)", out)
    assert fp32 == pytest.approx(0.9977, abs=0.001) and int8 > 0.99
    fp32, int8 = numbers(r"miou: FP32 ([\d.]+), INT8 ([\d.]+)", out)
    assert fp32 == pytest.approx(0.9623, abs=0.005) and int8 > 0.95
    (sqnr,) = numbers(r"SQNR of 'classes': ([\d.]+) dB", out)
    assert sqnr > 33


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*ranges lose much:UserWarning")
def test_transformer(run, rtx):
    out = run("05_transformer/transformer.py")
    values = re.findall(r"^(.+): top-1 ([\d.]+)% \(FP32 97.49%\), SQNR ([\d.]+) dB$", out, re.MULTILINE)
    assert [name for name, _, _ in values] == ["INT8", "equalized", "equalized, rest in FP16"]
    assert all(float(top1) > 96.5 and float(sqnr) > 32 for _, top1, sqnr in values)
    assert re.search(r"weighted layers in INT8: \d+ of 20", out)


def test_implicit_calibrator_without_a_gpu(run, capsys):
    from calibrators.cuda import gpu_problem

    if gpu_problem() is None:
        pytest.skip("there is a GPU: tests/gpu builds with the calibrators")
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(EXAMPLES / "06_implicit_calibrator/implicit_calibrator.py"), run_name="__main__")
    assert stop.value.code == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and ("8.5 to 10.x, which is not installed" in message or "GPU" in message)
    assert not list(Path("example_output").iterdir())


def test_migrate(run, rtx):
    out = run("07_migrate/migrate.py")
    assert "without fill: " in out and "'/flatten/Flatten_output_0'" in out
    assert "TensorRT for RTX runs 9 of 9 layers in INT8" in out
    fp32, int8 = numbers(TOP1, out)
    assert fp32 == pytest.approx(99.5, abs=0.01) and int8 > 99


def test_ray(cluster, run):
    out = run("08_ray/ray_workers.py")
    assert "same ranges: True" in out
    fp32, int8 = numbers(TOP1, out)
    assert fp32 == pytest.approx(99.5, abs=0.01) and int8 > 99


def test_text_reader(run):
    pytest.importorskip("PIL", reason="Pillow is not installed (pip install 'trtint8[images]')")
    if find_spec("rapidocr_onnxruntime") is None:
        with pytest.raises(SystemExit, match="pip install rapidocr-onnxruntime"):
            run("09_text_reader/text_reader.py")
        assert not Path("example_output").exists()
    else:
        run("09_text_reader/text_reader.py")
        assert trtint8.model_inputs("example_output/reader.onnx")[0].shape[1:] == (3, 48, 320)


def test_lines_of_text_are_dark_on_light():
    pytest.importorskip("PIL", reason="Pillow is not installed (pip install 'trtint8[images]')")
    line = runpy.run_path(str(EXAMPLES / "09_text_reader/text_reader.py"))["line"]
    picture = line(["word"] * 40, np.random.default_rng(0))
    assert picture.shape == (3, 48, 320) and picture.dtype == np.float32
    assert -1 <= picture.min() < -0.2 and np.median(picture) > 0.3 and picture.max() <= 1
