"""The command: arguments, stages that cannot harm each other, and the statement that there is no GPU."""

import importlib.util
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from gpu_checks import fault_cases
from gpu_checks import main as command
from gpu_checks.checking import Check, Settings
from gpu_checks.fault_cases import CASES, foreigners, truncations
from gpu_checks.limits import STAGES, Stage
from gpu_checks.process import Outcome, environment, run_limited
from gpu_checks.records import read
from gpu_checks.stages import faults

from calibrators.cuda import gpu_problem
from calibrators.errors import EngineError
from tests.bindings_setup import NotAvailableError, prepare
from tests.host_device import HostDevice
from tests.scripts.conftest import SCRIPTS
from trtint8.data import DEMO_MODEL
from trtint8.engine.plan import plan_flavor

pytestmark = pytest.mark.slow

no_gpu = pytest.mark.skipif(gpu_problem() is None, reason="this machine has a GPU")


def run(*arguments, **more):
    return subprocess.run(
        [SCRIPTS / "gpu_check", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=1800,
        env={**os.environ, "PYTHON": sys.executable},
        **more,
    )


@no_gpu
@pytest.mark.parametrize(
    "stages", [(), ("--stage", "smoke"), ("--stage", "implicit,threads"), ("--stage", "host,rtx")]
)
def test_without_a_gpu_it_says_so_in_a_sentence(tmp_path, stages):
    done = run("--out", tmp_path / "out", *stages)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("gpu_check: the checks need an NVIDIA GPU, but ")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--stage", "implicit,thread"),
            "there is no stage 'thread'; choose among smoke, speed, host, implicit, ",
        ),
        (("--stage", ""), "there is no stage ''; choose among smoke, speed, host, "),
        (("--data", "/nowhere"), "there is no folder '/nowhere'; give --data a folder with resnet20.onnx"),
        (("--minutes", "0"), "--minutes is 0; give a positive number"),
        (("--soak", "nan"), "--soak is nan; give a positive number"),
    ],
)
def test_arguments_that_are_wrong(tmp_path, capsys, arguments, message):
    assert command.main(["--out", str(tmp_path / "out"), *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(f"gpu_check: {message}")
    assert printed.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_file_where_the_folder_should_be(tmp_path, capsys):
    (tmp_path / "out").write_text("")
    assert command.main(["--out", str(tmp_path / "out"), "--stage", "host"]) == 2
    assert "is no folder; give --out another name" in capsys.readouterr().err


def test_the_folder_for_results_has_to_be_given(capsys):
    with pytest.raises(SystemExit) as ended:
        command.main([])
    assert ended.value.code == 2
    assert "--out" in capsys.readouterr().err


def test_the_stages_by_name():
    assert [stage.name for stage in STAGES] == [
        "smoke",
        "speed",
        "host",
        "implicit",
        "explicit",
        "twin",
        "transformer",
        "runtime",
        "threads",
        "faults",
        "calibration",
        "rtx",
        "placement",
    ]
    assert [stage.name for stage in STAGES if not stage.needs_gpu] == ["host"]
    assert [stage.name for stage in STAGES if not stage.usual] == ["placement"]


# Stages that harm nobody but themselves.

_MODULES = {
    "good": "def run(check):\n    check.attempt('T', 'one', lambda: Finding({'x': 1.5}, True))\n",
    "crash": (
        "import ctypes\n"
        "def run(check):\n"
        "    check.attempt('T', 'before', lambda: Finding({'x': 2}, True))\n"
        "    ctypes.string_at(0)\n"
    ),
    "hang": (
        "import signal\n"
        "def run(check):\n"
        "    check.attempt('T', 'before', lambda: Finding({'x': 3}))\n"
        "    signal.pause()\n"
    ),
    "bad": "def run(check):\n    check.attempt('T', 'wrong', lambda: Finding({'x': 4}, False, 'too low'))\n",
}


@pytest.fixture
def stages(tmp_path, monkeypatch):
    """Stages of our own, in a folder on the path of the processes."""
    folder = tmp_path / "modules"
    folder.mkdir()
    for name, text in _MODULES.items():
        (folder / f"{name}_stage.py").write_text(f"from gpu_checks.records import Finding\n{text}")
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    )

    def chosen(*names, seconds=30.0):
        return [Stage(name, f"{name}_stage", f"The {name} one", seconds, needs_gpu=False) for name in names]

    return chosen


def report_of(out):
    return json.loads((out / "gpu_check.json").read_text())["stages"]


def test_a_stage_that_crashes_or_hangs_loses_nothing_of_the_others(tmp_path, stages, capsys):
    chosen = [*stages("hang", seconds=6.0), *stages("crash", "good", "bad")]
    assert command.main(["--out", str(tmp_path / "out")], chosen) == 1
    found = report_of(tmp_path / "out")
    assert [stage["outcome"]["status"].split(" of ")[0] for stage in found] == [
        "ended after its limit",
        "crashed with SIGSEGV",
        "done",
        "done",
    ]
    assert [record["figures"] for stage in found for record in stage["records"]] == [
        {"x": 3},
        {"x": 2},
        {"x": 1.5},
        {"x": 4},
    ]
    assert "Segmentation fault" in found[1]["outcome"]["tail"]
    assert "crash_stage.py" in found[1]["outcome"]["tail"]
    page = (tmp_path / "out" / "gpu_check.md").read_text()
    assert "- crash: crashed with SIGSEGV" in page
    assert "- bad, T, wrong: too low" in page
    assert "hang: ended after its limit" in capsys.readouterr().out


def test_stages_that_ran_one_by_one_make_one_report(tmp_path, stages):
    out, both = tmp_path / "out", stages("crash", "good")
    assert command.main(["--out", str(out), "--stage", "good"], both) == 0
    assert [stage["name"] for stage in report_of(out)] == ["good"]
    assert command.main(["--out", str(out), "--stage", "crash"], both) == 1
    assert [stage["name"] for stage in report_of(out)] == ["crash", "good"]
    # The exit status is about what ran now.
    assert command.main(["--out", str(out), "--stage", "good"], both) == 0
    assert [len(stage["records"]) for stage in report_of(out)] == [1, 1]
    # The command can be repeated elsewhere.
    assert "- command: `scripts/gpu_check --out DIR --stage good`" in (out / "gpu_check.md").read_text()


def test_results_are_packed_after_every_stage(tmp_path, stages):
    packed = tmp_path / "packed"
    out, both = tmp_path / "out", stages("crash", "good")
    assert command.main(["--out", str(out), "--pack", str(packed)], both) == 1
    assert sorted(path.name for path in packed.iterdir()) == [
        "gpu_check.json",
        "gpu_check.md",
        "results.tar.xz.00",
    ]
    with tarfile.open(packed / "results.tar.xz.00") as archive:
        assert {"gpu_check.md", "stages/crash.log", "stages/good.jsonl"} <= set(archive.getnames())


def test_time_that_is_left_goes_to_the_next_stage(tmp_path, stages, capsys):
    command.main(["--out", str(tmp_path / "out")], stages("good", "bad", seconds=40.0))
    limits = [line for line in capsys.readouterr().out.splitlines() if "(at most" in line]
    assert limits[0] == "good: The good one (at most 40 s)"
    assert 60 < int(limits[1].rpartition("at most ")[2].split()[0]) <= 80


@pytest.mark.slow
def test_the_host_stage_runs_without_a_gpu(tmp_path):
    pytest.importorskip("sklearn")
    done = run("--out", tmp_path / "out", "--stage", "host")
    assert done.returncode == 0, done.stdout + done.stderr
    (stage,) = report_of(tmp_path / "out")
    figures = {record["case"]: record["figures"] for record in stage["records"]}
    assert figures["demo"]["held-out images"] == 597
    assert figures["resnet20"] == {}


# Faults, as far as they are made without a GPU.


def test_truncations_are_beginnings():
    plan = bytes(range(256)) * 20
    cut = truncations(plan)
    assert [len(data) for data in cut.values()] == [0, 10, 63, 64, 100, 1000, 2560, 4120, 5119]
    assert all(plan.startswith(data) for data in cut.values())
    assert "5119 of 5120 bytes" in cut


def test_foreign_plans_reach_the_part_that_is_to_refuse_them():
    made = foreigners(b"ftrt" + bytes(range(1, 200)))
    said = {}
    for name, data in made.items():
        try:
            said[name] = plan_flavor(data, "the plan")
        except EngineError:
            said[name] = "refused"
    assert said == {
        "another version in the header": "tensorrt",
        "zeros behind the header": "tensorrt",
        "a header of TensorRT for RTX": "rtx",
        "an ONNX model": "refused",
        "text": "refused",
    }
    assert made["an ONNX model"] == DEMO_MODEL.read_bytes()


def test_every_fault_says_what_it_is():
    assert len({case.__name__ for case in CASES}) == len(CASES) >= 12
    assert all(case.__doc__ for case in CASES)


def test_memory_is_filled_and_given_back():
    device = HostDevice(room=3 << 20)
    with fault_cases._filled(device):
        assert sum(buffer.nbytes for buffer in device.live) == 3 << 20
    assert device.live == []


def test_an_error_that_is_not_the_documented_one():
    def fail():
        raise EngineError("no\nmore")

    assert fault_cases._said(fail, EngineError) == "EngineError: no"
    assert fault_cases._said(fail, ValueError) == "NOT as documented: EngineError: no"
    assert fault_cases._said(int, ValueError) == "NOT as documented: no error"
    assert fault_cases._said(int, ValueError, may_work=True) == "it works"
    assert fault_cases._finding("EngineError: no; NOT as documented: no error", True).passed is False
    assert fault_cases._finding("EngineError: no", True).passed is True


def test_a_fault_that_kills_its_process_is_a_record(tmp_path, monkeypatch):
    def process(_check, name):
        if name == "make_plan":
            return Outcome("done", 1.0)
        return Outcome("crashed with SIGSEGV", 1.0, "loading 64 of 99 bytes\nFatal Python error")

    monkeypatch.setattr(faults, "_process", process)
    (tmp_path / "scratch").mkdir()
    records = tmp_path / "r.jsonl"
    faults.run(Check(Settings(None, tmp_path, tmp_path / "scratch", records, 100.0, 1.0)))
    found = {record.case: record for record in read(records)}
    assert len(found) == len(CASES)
    truncated = found["truncated plan"]
    assert (truncated.figures, truncated.passed) == ({"says": "crashed with SIGSEGV"}, False)
    assert truncated.note == "loading 64 of 99 bytes"
    if importlib.util.find_spec("cupy") is None:
        assert found["cupy before"].note == "not run: cupy is not installed"


@no_gpu
def test_a_fault_in_a_process_of_its_own(tmp_path):
    """The process, its settings and its file work; without the engine the case ends as a record."""
    records = tmp_path / "r.jsonl"
    settings = Settings(None, tmp_path, tmp_path, records, 100.0, 1.0)
    done = run_limited(
        [sys.executable, "-m", "gpu_checks.fault_cases", "truncated_plan", settings.to_json()],
        seconds=60,
        log=tmp_path / "log",
        environment=environment(),
    )
    assert done.status == "done", done.tail
    (record,) = read(records)
    assert (record.table, record.case, record.passed) == ("What happens", "truncated plan", False)
    assert record.note.startswith("FileNotFoundError: ")


def test_every_module_can_be_imported_with_tensorrt_8_6():
    try:
        bindings = prepare("8.6.1")
    except NotAvailableError as reason:
        pytest.skip(str(reason))
    modules = sorted(
        ".".join(path.relative_to(SCRIPTS).with_suffix("").parts)
        for path in (SCRIPTS / "gpu_checks").rglob("*.py")
        if path.name not in ("__init__.py", "__main__.py")
    )
    assert len(modules) > 15
    # What the stages take of TensorRT itself, since nothing here can call them.
    program = (
        f"import importlib\nfor name in {modules}: importlib.import_module(name)\n"
        "from calibrators.tensorrt import flavor\nfrom trtint8 import BuildOptions\n"
        "from trtint8.builder.config import check_options\n"
        "from calibrators.tensorrt.calibrators import calibrator_class\n"
        "from gpu_checks.stages.implicit import CALIBRATORS\n"
        "found = flavor.load('tensorrt')\n"
        "trt = found.module\n"
        "assert found.implicit_int8 and found.version.startswith('8.6'), found\n"
        "from gpu_checks.stages.implicit import counting\n"
        "for kind in CALIBRATORS:\n"
        "    assert issubclass(counting(calibrator_class(kind, found)), trt.IInt8Calibrator)\n"
        "check_options(found, BuildOptions(tactic_sources=(), timing_cache='x', optimization_level=1))\n"
        "for owner, names in {\n"
        "    'ICudaEngine': 'create_execution_context create_engine_inspector',\n"
        "    'IExecutionContext': 'set_input_shape get_tensor_shape set_tensor_address execute_async_v3',\n"
        "    'EngineInspector': 'get_engine_information',\n"
        "    'LayerInformationFormat': 'JSON',\n"
        "}.items():\n"
        "    for name in names.split(): assert getattr(getattr(trt, owner), name, None) is not None, name\n"
        "from gpu_checks.limits import TACTIC_SOURCES\n"
        "assert set(TACTIC_SOURCES) <= set(trt.TacticSource.__members__)\n"
        "print('all there')\n"
    )
    paths = os.pathsep.join(
        [str(SCRIPTS), str(Path(__file__).parents[2]), bindings.environment["PYTHONPATH"]]
    )
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", program],
        capture_output=True,
        text=True,
        timeout=1800,
        env={**os.environ, **bindings.environment, "PYTHONPATH": paths},
    )
    assert (done.returncode, done.stdout) == (0, "all there\n"), done.stderr
