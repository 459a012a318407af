"""Timing with trtexec on another machine, which a stand-in plays that writes files as three versions do."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from calibrators.errors import BuildError, OutputError
from calibrators.tables.table import CalibrationTable
from tests.trtint8.onnx_models import conv_relu_conv
from trtint8.auditing.audit import EstimatorOptions
from trtint8.cli.main import main
from trtint8.engine.timings import read_exported_times, read_profile
from trtint8.tuning.journal import Journal, TimeLimit
from trtint8.tuning.measured import MeasurementsNeededError
from trtint8.tuning.speed import SpeedGoal, SpeedPlanner

#: A trtexec whose engines take 1 ms less for every DequantizeLinear, and that cannot build some.
STAND_IN = """#!{python}
import importlib.util as modules, json, os, sys, time
version = os.environ["STAND_IN_VERSION"]
print(f"&&&& RUNNING TensorRT.trtexec [TensorRT v{{version}}] # trtexec")
options = dict(one.lstrip("-").partition("=")[::2] for one in sys.argv[1:])
typed = version.startswith("11")
if "onnx" in options:
    # Of ONNX the messages alone: the package takes as long as everything else together.
    (folder,) = modules.find_spec("onnx").submodule_search_locations
    found = modules.spec_from_file_location("messages", folder + "/onnx_ml_pb2.py")
    onnx = modules.module_from_spec(found)
    found.loader.exec_module(onnx)
    with open(options["onnx"], "rb") as file:
        model = onnx.ModelProto.FromString(file.read())
    halves = any(one.data_type == onnx.TensorProto.FLOAT16 for one in model.graph.initializer)
    assert halves is typed
    if os.environ.get("STAND_IN_HANGS"):
        open("hangs", "w").close()
        time.sleep(600)
    print("[I] Selected Device:", os.environ.get("STAND_IN_GPU", "Orin"))
    pairs = sum(node.op_type == "DequantizeLinear" for node in model.graph.node)
    # With --int8, trtexec makes up ranges for a model without pairs, and builds it in INT8.
    assert ("int8" in options) is (pairs > 0 and not typed) and ("fp16" in options) is not typed
    if os.environ.get("STAND_IN_FAILS") and pairs:
        sys.exit(1)
    with open(options["saveEngine"], "w") as engine:
        engine.write(str(10 - pairs))
    with open(options["exportLayerInfo"], "w") as layers:
        layers.write('{{"Layers": ["first", "second"], "Bindings": []}}')
if "loadEngine" in options:
    time = float(open(options["loadEngine"]).read()) * (2 if "slow" in options else 1)
    old = {{"startInMs": 0, "inMs": 0.1, "computeMs": time, "outMs": 0.1, "latencyMs": time, "endToEndMs": 1}}
    new = {{"startEnqMs": 0, "h2dMs": 0.1, "computeMs": time, "d2hMs": 0.1, "latencyMs": time}}
    if "exportTimes" in options:
        json.dump([old if version.startswith("8") else new] * 5, open(options["exportTimes"], "w"))
    if "exportProfile" in options:
        more = {{}} if version.startswith("8") else {{"medianMs": time / 2}}
        rows = [
            {{"name": name, "timeMs": 1, "averageMs": time / 2, "percentage": 50, **more}}
            for name in ("first + relu", "Reformatting CopyNode for Input Tensor 0 to second", "second")
        ]
        json.dump([{{"count": 2}}, *rows], open(options["exportProfile"], "w"))
"""


def plan(prepared, ranges, folder, machine=None, journal=None):
    goal = SpeedGoal(None, EstimatorOptions("rtx", progress=False), folder=folder, machine=machine)
    return SpeedPlanner(prepared, ranges, goal, journal or Journal()).plan(TimeLimit())


def run_script(folder, tmp_path, version, **environment):
    program = tmp_path / "trtexec"
    program.write_text(STAND_IN.format(python=sys.executable))
    program.chmod(0o755)
    variables = {**os.environ, "TRTEXEC": str(program), "STAND_IN_VERSION": version, **environment}
    return subprocess.run(["sh", "measure.sh"], cwd=folder, env=variables, capture_output=True, text=True)


def planned(prepared, ranges, tmp_path, version, folder="there", journal=None, **environment):
    folder = tmp_path / folder
    journeys = 0
    while journeys < 5:
        try:
            return plan(prepared, ranges, folder, journal=journal), journeys
        except MeasurementsNeededError as needed:
            assert needed.directory == folder and needed.engines >= 1
            done = run_script(folder, tmp_path, version, **environment)
            assert done.returncode == 0, done.stderr
            journeys += 1
    raise AssertionError("no end")


@pytest.mark.filterwarnings("ignore:.*may overflow in FP16")
@pytest.mark.parametrize("version", ["8502", "101600", "110000"])
def test_the_search_goes_on_with_what_each_version_writes(rtx, prepared, ranges, tmp_path, version):
    found, journeys = planned(prepared, ranges, tmp_path, version)
    assert (found.source, found.gpu, found.keep_float) == ("measured there", "Orin", ())
    assert found.fp16_seconds == pytest.approx(0.010)
    assert found.seconds == found.int8_seconds < found.fp16_seconds
    assert journeys <= 3


@pytest.mark.filterwarnings("ignore:.*may overflow in FP16", "ignore:with 2 of 2 layers in FP16")
def test_an_engine_that_ends_with_all_layers_in_fp16_takes_as_long(rtx, prepared, ranges, tmp_path):
    found, _ = planned(prepared, ranges, tmp_path, "101600")
    goal = SpeedGoal(None, EstimatorOptions("rtx", progress=False), folder=tmp_path / "there")
    planner = SpeedPlanner(prepared, ranges, goal, Journal())
    again = planner.completed(found, planner.layers)
    assert again.keep_float == planner.layers
    assert again.seconds == again.fp16_seconds == found.fp16_seconds


@pytest.mark.filterwarnings("ignore:.*may overflow in FP16", "ignore:the engine .* drops out")
def test_engines_that_cannot_be_built_drop_out(rtx, prepared, ranges, tmp_path):
    with pytest.raises(Exception, match="no layer is found to be faster in INT8"):
        planned(prepared, ranges, tmp_path, "8601", STAND_IN_FAILS="1")


@pytest.mark.filterwarnings("ignore:.*may overflow in FP16")
class TestAFolder:
    @pytest.fixture
    def folder(self, rtx, prepared, ranges, tmp_path):
        with pytest.raises(MeasurementsNeededError):
            plan(prepared, ranges, tmp_path / "there")
        return tmp_path / "there"

    def test_of_another_search(self, folder, prepared, ranges):
        other = CalibrationTable(dict.fromkeys(ranges.amax, 5.0))
        with pytest.raises(BuildError, match=str(folder)):
            plan(prepared, other, folder)

    def test_measured_on_another_gpu_than_named(self, folder, prepared, ranges, tmp_path):
        assert run_script(folder, tmp_path, "8601").returncode == 0
        with pytest.raises(BuildError, match=r"'Orin'.* A10"):
            plan(prepared, ranges, folder, "A10")

    def test_with_a_damaged_file(self, folder, prepared, ranges, tmp_path):
        assert run_script(folder, tmp_path, "8601").returncode == 0
        damaged = next(folder.glob("*.1-6.json"))
        damaged.write_text('[{"computeMs"')
        with pytest.raises(BuildError, match=damaged.name):
            plan(prepared, ranges, folder)

    def test_of_a_search_whose_files_were_put_over_it(self, folder, prepared, ranges, tmp_path):
        assert run_script(folder, tmp_path, "8601").returncode == 0
        other = CalibrationTable(dict.fromkeys(ranges.amax, 5.0))
        with pytest.raises(MeasurementsNeededError):
            plan(prepared, other, tmp_path / "other")
        for path in folder.iterdir():
            if path.name != "search.json":
                (tmp_path / "other" / path.name).write_bytes(path.read_bytes())
        with pytest.raises(MeasurementsNeededError):
            plan(prepared, other, tmp_path / "other")

    def test_measured_on_two_gpus(self, folder, prepared, ranges, tmp_path):
        assert run_script(folder, tmp_path, "8601").returncode == 0
        (folder / "of_another.log").write_text("[I] Selected Device: A10\n")
        with pytest.raises(BuildError, match=r"'A10' and 'Orin'"):
            plan(prepared, ranges, folder)

    def test_with_another_trtexec_or_other_flags_than_before(self, folder, tmp_path):
        assert run_script(folder, tmp_path, "8601").returncode == 0
        for version, flags in (("8502", ""), ("8601", "--builderOptimizationLevel=5")):
            done = run_script(folder, tmp_path, version, TRTEXEC_FLAGS=flags)
            assert (done.returncode, "v8601" in done.stderr or "8601" in done.stderr) == (2, True)
        assert run_script(folder, tmp_path, "8601").returncode == 0

    @pytest.mark.filterwarnings("ignore:the engine .* drops out")
    def test_what_failed_is_tried_again_by_the_same_script(self, folder, prepared, ranges, tmp_path):
        assert run_script(folder, tmp_path, "8601", STAND_IN_FAILS="1").returncode == 0
        assert len([*folder.glob("*.failed")]) == 1
        assert run_script(folder, tmp_path, "8601").returncode == 0
        assert not [*folder.glob("*.failed")]
        assert planned(prepared, ranges, tmp_path, "8601")[0].keep_float == ()

    @pytest.mark.filterwarnings("ignore:the engine .* drops out")
    def test_whose_engine_in_fp16_failed(self, folder, prepared, ranges, tmp_path):
        for path in folder.glob("*.weak.onnx"):
            if b"DequantizeLinear" not in path.read_bytes():
                path.write_bytes(b"no model")
        assert run_script(folder, tmp_path, "8601").returncode == 0
        with pytest.raises(BuildError, match="FP16"):
            plan(prepared, ranges, folder)

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    def test_whose_script_is_interrupted(self, folder, tmp_path, number):
        program = tmp_path / "trtexec"
        program.write_text(STAND_IN.format(python=sys.executable))
        program.chmod(0o755)
        variables = {"TRTEXEC": str(program), "STAND_IN_VERSION": "8601", "STAND_IN_HANGS": "1"}
        script = subprocess.Popen(
            ["sh", "measure.sh"],
            cwd=folder,
            env={**os.environ, **variables},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        while not (folder / "hangs").exists():
            assert script.poll() is None
            time.sleep(0.01)
        os.killpg(script.pid, number)
        assert script.wait() == 130
        assert not [*folder.glob("*.failed")] and not [*folder.glob("*.engine")]
        assert run_script(folder, tmp_path, "8601").returncode == 0
        assert len([*folder.glob("*.engine")]) == 2

    def test_that_was_copied_in_part(self, folder, prepared, ranges, tmp_path):
        found, _ = planned(prepared, ranges, tmp_path, "8601")
        for lacking in (*folder.glob("*.1-3.json"),):
            content = lacking.read_bytes()
            lacking.unlink()
            with pytest.raises(MeasurementsNeededError):
                plan(prepared, ranges, folder)
            lacking.write_bytes(content)
        assert plan(prepared, ranges, folder) == found

    def test_that_cannot_be_written(self, rtx, prepared, ranges, tmp_path):
        (tmp_path / "file").write_text("")
        for folder in (tmp_path / "file", tmp_path / "file" / "inside", "/proc/there", "", 3):
            with pytest.raises(OutputError):
                plan(prepared, ranges, folder)

    def test_with_spaces_and_a_program_beside_it(self, rtx, prepared, ranges, tmp_path):
        folder = tmp_path / "-of $HOME 'it'; \"now\""
        with pytest.raises(MeasurementsNeededError):
            plan(prepared, ranges, folder)
        program = tmp_path / "my trtexec"
        program.write_text(STAND_IN.format(python=sys.executable))
        program.chmod(0o755)
        variables = {**os.environ, "TRTEXEC": "./my trtexec", "STAND_IN_VERSION": "101600", "CDPATH": "/"}
        words = ["sh", f"./{folder.name}/measure.sh"]
        done = subprocess.run(words, cwd=tmp_path, env=variables, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert planned(prepared, ranges, tmp_path, "101600", folder.name)[0].gpu == "Orin"

    def test_without_trtexec_or_with_an_unknown_one(self, folder, tmp_path):
        environment = {"PATH": "/usr/bin:/bin", "TRTEXEC": str(tmp_path / "no")}
        missing = subprocess.run(
            ["sh", "measure.sh"], cwd=folder, env=environment, capture_output=True, text=True
        )
        assert (missing.returncode, "TRTEXEC" in missing.stderr) == (2, True)
        for version in ("7103", "8403"):
            old = run_script(folder, tmp_path, version)
            assert (old.returncode, version in old.stderr) == (2, True)


@pytest.mark.filterwarnings("ignore:.*may overflow in FP16")
def test_two_folders_of_one_search_do_not_share_times(rtx, prepared, ranges, tmp_path):
    journal = Journal()
    gpu, _ = planned(prepared, ranges, tmp_path, "8601", "gpu", journal)
    other, journeys = planned(prepared, ranges, tmp_path, "8601", "dla", journal, TRTEXEC_FLAGS="--slow=1")
    assert journeys > 0
    assert other.fp16_seconds == pytest.approx(2 * gpu.fp16_seconds)


@pytest.mark.parametrize(
    ("read", "document"),
    [
        (read_exported_times, []),
        (read_exported_times, {"computeMs": 1}),
        (read_exported_times, [{"latencyMs": 1}]),
        (read_exported_times, [{"computeMs": "1"}]),
        (read_exported_times, [{"computeMs": 1}, {"computeMs": -1}]),
        (read_exported_times, [1]),
        (read_exported_times, [{"computeMs": True}]),
        (read_exported_times, [{"computeMs": float("inf")}]),
        (read_profile, [{"name": "a", "averageMs": float("nan")}]),
        (read_profile, []),
        (read_profile, [{"count": 3}]),
        (read_profile, [{"name": "a"}]),
        (read_profile, [{"name": 1, "averageMs": 2}]),
        (read_profile, [{"name": "a", "averageMs": None}]),
    ],
)
def test_files_of_other_programs(tmp_path, read, document):
    path = tmp_path / "x.json"
    path.write_text(json.dumps(document))
    with pytest.raises(BuildError, match=str(path)):
        list(read(path))


@pytest.mark.filterwarnings("ignore:.*may overflow in FP16")
def test_the_verb_says_what_to_do_and_goes_on(rtx, tmp_path, capsys):
    folder, output, model = (tmp_path / name for name in ("there", "out.onnx", "model.onnx"))
    model.write_bytes(conv_relu_conv(quantized=False).SerializeToString())
    random = np.random.default_rng(0)
    for name in ("calibration", "samples"):
        np.savez(tmp_path / f"{name}.npz", images=random.standard_normal((8, 3, 16, 16), np.float32))
    words = ["tune", model, tmp_path / "calibration.npz", tmp_path / "samples.npz", "--measure-with", folder]
    words += ["--metric", "sqnr", "--min", "5", "-o", output]
    for _ in range(5):
        status = main([*map(str, words)])
        if status != 3:
            break
        assert str(folder) in capsys.readouterr().err and not output.exists()
        assert run_script(folder, tmp_path, "8601").returncode == 0
    assert status == 0 and output.exists()
    assert "measured on Orin" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:.*may overflow in FP16")
@pytest.mark.parametrize(
    ("said", "noted"), [("1410 MHz, 1215 MHz", "1410 MHz, memory 1215 MHz"), ("[N/A], [N/A]", "")]
)
def test_the_clocks_of_the_gpu_are_noted(said, noted, rtx, prepared, ranges, tmp_path):
    query = "--query-gpu=clocks.sm,clocks.mem --format=csv,noheader"
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n[ \"$*\" = '{query}' ] && echo '{said}' && echo 'another GPU'\n")
    program.chmod(0o755)
    path = os.pathsep.join([str(program.parent), os.environ["PATH"]])
    found, _ = planned(prepared, ranges, tmp_path, "101600", PATH=path)
    assert {trial.note for trial in found.trials} == {noted}
