"""Where a calibration runs, through the API and the command line."""

import json

import numpy as np
import onnxruntime as ort
import pytest

import trtint8
from calibrators.errors import TableError, UnsupportedError
from calibrators.host import observer
from tests.calibrators.here import NEEDS_DLPACK, Here
from trtint8.cli.main import main
from trtint8.data import DEMO_MODEL
from trtint8.range_choice import trial_network

IMAGES = np.random.default_rng(0).random((24, 1, 8, 8), np.float32)
NAME = "images"

pytestmark = NEEDS_DLPACK


@pytest.fixture
def here(monkeypatch):
    """A machine whose GPU is its CPU."""
    asked = []

    def open_device(device):
        asked.append(device)
        return Here()

    monkeypatch.setattr(observer, "open_device", open_device)
    monkeypatch.setattr(trial_network, "open_device", lambda _device: Here())
    return asked


def test_the_same_ranges_and_where_they_come_from(here, tmp_path):
    there = trtint8.calibrate(DEMO_MODEL, IMAGES, device="cuda:1", batch_size=7)
    assert here == ["cuda:1"]
    assert there.provenance.versions["onnxruntime (CUDA)"] == ort.__version__
    assert "onnxruntime" not in there.provenance.versions
    on_host = trtint8.calibrate(DEMO_MODEL, IMAGES)
    assert here == ["cuda:1", "cpu"]
    assert on_host.provenance.versions["onnxruntime"] == ort.__version__
    assert there.histograms == on_host.histograms
    there.save(tmp_path / "t.json")
    assert "onnxruntime (CUDA)" in trtint8.CalibrationTable.load(tmp_path / "t.json").provenance.versions


def _interrupted(path, device):
    def feeds():
        yield {NAME: IMAGES[:8]}
        yield {NAME: IMAGES[8:16]}
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        trtint8.calibrate(DEMO_MODEL, feeds, checkpoint=path, checkpoint_seconds=0, device=device)


def test_a_checkpoint_belongs_to_a_kind_of_device(here, tmp_path):
    path = tmp_path / "c"
    options = {"checkpoint": path, "resume": True}
    _interrupted(path, "cpu")
    with pytest.raises(TableError, match=r"was made with another device \(cpu then, cuda now\)"):
        trtint8.calibrate(DEMO_MODEL, IMAGES, device="cuda", **options)
    _interrupted(path, "cuda:1")
    found = trtint8.calibrate(DEMO_MODEL, IMAGES, device="cuda", **options)
    assert found.histograms == trtint8.calibrate(DEMO_MODEL, IMAGES).histograms


def test_gpus_of_workers_that_there_are_not(tmp_path, capsys):
    table = tmp_path / "t.json"
    assert main(["calibrate", str(DEMO_MODEL), "random:8", "-o", str(table), "--num-gpus", "1"]) == 2
    assert "--num-gpus is for workers of Ray; add --ray" in capsys.readouterr().err
    assert not table.exists()


def test_the_command_line_hands_the_device_on(here, tmp_path, capsys):
    data, table = str(tmp_path / "x.npz"), str(tmp_path / "t.json")
    np.savez(data, **{NAME: IMAGES})
    assert main(["calibrate", str(DEMO_MODEL), data, "-o", table, "--device", "cuda:2", "--json"]) == 0
    assert here == ["cuda:2"]
    assert json.loads(capsys.readouterr().out)["samples"] == 24


@pytest.mark.parametrize(
    ("device", "says"),
    [("tpu", "the device is 'tpu'; give cpu, cuda"), ("cuda", 'pip install "onnxruntime-gpu[cuda,cudnn]"')],
)
def test_what_is_not_there_is_one_sentence(monkeypatch, tmp_path, capsys, device, says):
    monkeypatch.setattr(ort, "get_available_providers", lambda: ["CPUExecutionProvider"])
    table = tmp_path / "t.json"
    assert main(["calibrate", str(DEMO_MODEL), "random:8", "-o", str(table), "--device", device]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert says in line
    assert list(tmp_path.iterdir()) == []


def test_doctor_says_what_a_gpu_needs(monkeypatch):
    monkeypatch.setattr(ort, "get_available_providers", lambda: ["CPUExecutionProvider"])
    says = dict(trtint8.doctor())["calibrate --device cuda"]
    assert says.startswith("no: the ONNX Runtime that is installed")
    with pytest.raises(UnsupportedError) as raised:
        trtint8.calibrate(DEMO_MODEL, IMAGES, device="cuda")
    assert says == f"no: {raised.value}"
