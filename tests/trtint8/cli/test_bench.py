"""The verb: engines side by side."""

import contextlib
import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import trtint8
from calibrators.cuda import gpu_problem
from calibrators.data.images.preprocessing import Preprocessing
from calibrators.data.inputs import CalibratedInputs
from calibrators.errors import CalibrationDataError
from tests.trtint8.runtime.timed import REPORT, Timeline
from trtint8.cli.bench import rows
from trtint8.cli.main import main
from trtint8.engine.file import TensorSpec
from trtint8.engine.profiles import ShapeRange
from trtint8.runtime import bench


def test_engines_side_by_side():
    table = {row[0]: row[1:] for row in rows([REPORT, replace(REPORT, name="fp32", inferences=100)])}
    assert table["inferences/s"] == ("200.0", "50.0")
    assert table["against the slowest"] == ("4.00x", "1.00x")
    assert table["upload, p99"] == ("0.500", "0.500")
    assert table["copies"] == ("not overlapped",) * 2
    for report, copies in ((replace(REPORT, overlapped=True), "overlapped"), (without_transfers(), "none")):
        assert ("copies", copies) in rows([report])
    assert "CPU time per inference" not in table
    measured = {row[0]: row[1:] for row in rows([replace(REPORT, cpu_ms=0.25)])}
    assert measured["CPU time per inference"] == ("0.250",)
    assert "upload, p99" not in {row[0] for row in rows([without_transfers()])}


def test_engines_with_different_batches_are_compared_by_samples():
    table = {row[0]: row[1:] for row in rows([REPORT, replace(REPORT, batch_size=1, inferences=1600)])}
    assert table["batch"] == ("8", "1")
    assert table["samples/s"] == ("1600.0", "800.0")
    assert table["against the slowest"] == ("2.00x", "1.00x")


def without_transfers():
    phases = {name: REPORT.phases[name] for name in ("latency", "enqueue", "compute")}
    return replace(REPORT, transfers=False, phases=phases)


IMAGES = TensorSpec("images", "float32", (None, 3, None, None))


FIXED = TensorSpec("fixed", "float16", (4, 3))


PROFILE = {
    "images": ShapeRange((1, 3, 8, 8), (2, 3, 16, 16), (4, 3, 32, 32)),
    "ids": ShapeRange((1, 16), (2, 16), (4, 16)),
}


class TimedEngine:
    """The part of our own Engine that the verb uses."""

    inputs, profiles, flavor, info = (IMAGES, FIXED), (PROFILE,), None, None

    def __init__(self, inputs=inputs):
        self.inputs, self.timeline = inputs, Timeline()

    def new_context(self, *, cuda_graph):
        return self.timeline

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        pass


@pytest.fixture
def pretend_gpu(monkeypatch):
    monkeypatch.setattr("trtint8.runtime.bench.require_gpu", lambda _what: None)
    monkeypatch.setattr("trtint8.runtime.bench.gpu_uuid", lambda _device: "none")
    monkeypatch.setattr("trtint8.runtime.bench.gpu_names", lambda: ["a GPU"])
    monkeypatch.setenv("TRTINT8_GPU_LOCK", "off")
    monkeypatch.setattr(
        "trtint8.runtime.bench.Engine.load", lambda _path, device, plugins, allow_host_code: TimedEngine()
    )


def test_the_verb_prints_a_column_an_engine(pretend_gpu, prints):
    lines = prints("bench a/int8.engine fp32.engine --seconds 0.01").splitlines()
    assert lines[0].strip() == "a GPU, inputs: random, times in ms"
    assert [word for word in lines[2].split() if "engine" in word] == ["int8.engine", "fp32.engine"]
    (row,) = (line for line in lines if "GPU compute, median" in line)
    assert row.split()[-4::2] == ["10.000", "10.000"]


def test_the_verb_prints_json(pretend_gpu, prints):
    arguments = ["--seconds 0.01 --batch-size 3 --no-transfers --cuda-graph --json"]
    printed = json.loads(prints("bench x.engine", *arguments))
    (report,) = printed["reports"]
    assert (printed["gpu"], printed["inputs"]) == ("a GPU", "random")
    # The input with a fixed first dimension is no part of the batch.
    assert (report["name"], report["batch_size"]) == ("x.engine", 3)
    assert (report["transfers"], report["cuda_graph"]) == (False, True)
    assert set(report["phases"]) == {"latency", "enqueue", "compute"}
    assert report["phases"]["compute"]["p99"] == 10.0
    assert report["samples_per_second"] == pytest.approx(3 * report["throughput"])


@pytest.mark.parametrize(
    ("spec", "arguments", "batch"),
    [
        (IMAGES, [], 2),  # what the profile is tuned for
        (IMAGES, ["--batch-size", "3"], 3),
        (IMAGES, ["--limit", "1"], 1),
        (replace(IMAGES, shape=(4, 3, 16, 16)), [], 4),
    ],
)
def test_the_batch_of_real_data(spec, arguments, batch, pretend_gpu, monkeypatch, tmp_path, prints):
    monkeypatch.setattr(
        "trtint8.runtime.bench.Engine.load",
        lambda _path, device, plugins, allow_host_code: TimedEngine((spec,)),
    )
    data = str(tmp_path / "x.npz")
    np.savez(data, images=np.zeros((8, 3, 16, 16), np.float32))
    always = ["bench x.engine --data", data, "--seconds 0.01 --json"]
    printed = json.loads(prints(*always, *arguments))
    assert (printed["inputs"], printed["reports"][0]["batch_size"]) == (data, batch)


MEAN_AND_STD = Preprocessing(mean=(0.5,), std=(0.25,))


@pytest.fixture
def calibrated(pretend_gpu, monkeypatch):
    """Gives engines a sidecar each, or none, in order; returns what they were fed."""
    fed = []

    class Fed(TimedEngine):
        def __init__(self, known):
            super().__init__((IMAGES,))
            self.info = known and SimpleNamespace(calibrated_inputs=known)
            self.timeline.bind = fed.append

    def install(*known):
        engines = iter(known)
        monkeypatch.setattr(
            "trtint8.runtime.bench.Engine.load", lambda *_args, **_options: Fed(next(engines))
        )
        return fed

    return install


def test_engines_are_fed_what_their_calibration_was(calibrated, tmp_path, prints):
    images = np.random.default_rng(0).integers(0, 256, (8, 16, 16, 3), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", images=images)
    command = [
        "bench",
        "--data",
        str(tmp_path / "images.npz"),
        "--seconds",
        "0.01",
        "--no-transfers",
        "--json",
    ]
    scaled = CalibratedInputs(Preprocessing())
    # What has no sidecar, as an engine of the float model, is fed what the one before was.
    fed = calibrated(CalibratedInputs(MEAN_AND_STD), None, scaled)
    assert json.loads(prints(*command, "a.engine b.engine c.engine"))["warnings"] == []
    as_wanted = [MEAN_AND_STD(images[:2]), MEAN_AND_STD(images[:2]), Preprocessing()(images[:2])]
    assert all(np.array_equal(one["images"], wanted) for one, wanted in zip(fed, as_wanted, strict=True))

    calibrated(CalibratedInputs(MEAN_AND_STD), CalibratedInputs(MEAN_AND_STD, {"images": 255.0}))
    (warning,) = json.loads(prints(*command, "a.engine b.engine --scale 1"))["warnings"]
    assert str(MEAN_AND_STD) in warning and str(Preprocessing(scale=1.0)) in warning and "a.engine" in warning

    calibrated(None)
    assert main([*command, "a.engine"]) == 2


@pytest.mark.parametrize(("largest", "warned"), [(1.0, True), (100.0, False)])
def test_inputs_far_beyond_those_of_a_calibration_are_a_warning(
    largest, warned, calibrated, tmp_path, prints
):
    np.savez(tmp_path / "x.npz", images=np.full((8, 3, 16, 16), 100, np.float32))
    calibrated(CalibratedInputs("none", {"images": largest}))
    command = ["bench a.engine --data", tmp_path / "x.npz", "--seconds 0.01 --json"]
    warnings = json.loads(prints(*command, "--no-transfers"))["warnings"]
    assert ["'images'" in one and "'a.engine'" in one for one in warnings] == [True] * warned


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        *((["--seconds", value], f"--seconds is {value}") for value in ("0", "nan", "inf")),
        (["--limit", "3"], "--limit"),
        (["--mean", "0.5"], "--limit"),
        (["--batch-axis", "x=1"], "--batch-axis"),
    ],
)
def test_options_that_make_no_sense(arguments, named, pretend_gpu, refused):
    assert refused("bench x.engine", *arguments).startswith(f"trtint8 bench: {named}")


@pytest.mark.skipif(gpu_problem() is None, reason="this machine has a GPU")
def test_without_a_gpu_nothing_else_is_looked_at(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "missing.engine", "--data", "missing.npz"]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("trtint8 bench: measuring an engine needs an NVIDIA GPU, but ")
    assert len(printed.err.splitlines()) == 1
    assert printed.out == ""
    assert list(tmp_path.iterdir()) == []


def exported(path, compute, old=False, copies=(0.25, 0.5)):
    """Writes what `trtexec --exportTimes` leaves of three inferences."""
    rows = []
    for number in range(3):
        begun = 2 * compute * number
        row = {"startComputeMs": begun, "endComputeMs": begun + compute, "computeMs": compute}
        names = ("inMs", "outMs") if old else ("h2dMs", "d2hMs")
        row |= dict(zip(names, copies, strict=True)) | {"latencyMs": compute + sum(copies)}
        if not old:
            row |= {"startEnqMs": begun, "endEnqMs": begun + 0.125}
        rows.append(row)
    path.write_text(json.dumps(rows))
    return path


class TestTimesOfTrtexec:
    def test_need_no_gpu(self, tmp_path, prints, as_json):
        new, old = exported(tmp_path / "int8.json", 1.0), exported(tmp_path / "fp16.JSON", 2.0, old=True)
        document = as_json("bench", new, old, "--batch-size 8")
        first, second = document["reports"]
        assert document["gpu"] == "another machine"
        assert ("int8.json" in first["name"], "fp16.JSON" in second["name"]) == (True, True)
        assert (first["batch_size"], first["inferences"], first["seconds"]) == (8, 3, pytest.approx(0.005))
        assert first["phases"]["enqueue"]["median"] == 0.125 and "enqueue" not in second["phases"]
        for report, compute in ((first, 1.0), (second, 2.0)):
            medians = {phase: report["phases"][phase]["median"] for phase in ("h2d", "compute", "d2h")}
            assert medians == {"h2d": 0.25, "compute": compute, "d2h": 0.5}
            assert report["phases"]["latency"]["median"] == compute + 0.75
        assert "enqueue, median" in prints("bench", old, new)

    def test_without_copies(self, tmp_path, as_json):
        (report,) = as_json("bench", exported(tmp_path / "x.json", 1.0, copies=(0, 0)))["reports"]
        assert not report["transfers"] and {*report["phases"]} == {"latency", "enqueue", "compute"}

    def test_stand_beside_engines(self, tmp_path, pretend_gpu, monkeypatch, as_json):
        engines = contextlib.nullcontext()
        monkeypatch.setattr(bench, "_engines", lambda paths, *_others: ((path, engines) for path in paths))
        monkeypatch.setattr(bench, "_measure", lambda name, *_others: replace(REPORT, name=name))
        there = str(exported(tmp_path / "x.json", 1.0))
        document = as_json("bench a.engine", there, "b.engine")
        assert document["gpu"] == "a GPU"
        names = [report["name"] for report in document["reports"]]
        assert (names[0], "x.json" in names[1], names[2]) == ("a.engine", True, "b.engine")

    @pytest.mark.parametrize("content", ["", "[", "{}", "[]", '[{"averageMs": 1}]', '[{"computeMs": 0}]'])
    def test_of_another_program(self, tmp_path, refused, content):
        path = tmp_path / "x.json"
        path.write_text(content)
        assert str(path) in refused("bench", path)

    def test_what_has_no_effect_on_them(self, tmp_path, refused):
        path = str(exported(tmp_path / "x.json", 1.0))
        for option in ("--data", "--baseline"):
            value = "random:1" if option == "--data" else path
            assert option in refused("bench", path, option, value)
        assert main(["bench", str(tmp_path / "missing.json")]) == 2


def test_no_engine_at_all():
    with pytest.raises(CalibrationDataError, match="engines"):
        trtint8.bench([])
