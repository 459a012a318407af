import os
import signal
import subprocess
import sys
import time
from importlib.machinery import ExtensionFileLoader
from pathlib import Path

import numpy as np
import onnx
import pytest

import trtint8
from calibrators import interruption
from calibrators.errors import UnsupportedError
from calibrators.interruption import heeding_signals
from trtint8.cli import main
from trtint8.data import DEMO_MODEL


@pytest.fixture(autouse=True)
def ctrl_c(monkeypatch):
    """As in a program in the foreground; the suite may run in the background."""
    monkeypatch.setattr(interruption, "_received", None)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    hook, termination = sys.unraisablehook, signal.getsignal(signal.SIGTERM)
    yield
    assert sys.unraisablehook is hook
    signal.signal(signal.SIGINT, before)
    signal.signal(signal.SIGTERM, termination)


def test_the_status_of_the_program(capsys):
    assert heeding_signals(lambda: 7) == 7
    assert capsys.readouterr().err == ""
    with pytest.raises(SystemExit) as ended:
        heeding_signals(lambda: sys.exit(2))
    assert ended.value.code == 2


def alone(number, begun):
    signal.raise_signal(number)


def as_another_error(number, begun):
    try:
        signal.raise_signal(number)
    except (KeyboardInterrupt, SystemExit) as error:
        raise ImportError("initialization failed") from error


def as_an_error_of_a_verb(number, begun):
    def run(_options):
        try:
            signal.raise_signal(number)
        except (KeyboardInterrupt, SystemExit) as error:
            raise UnsupportedError("'x' is not installed") from error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trtint8.cli.table.run", run)
        return main.main(["table", "show", "x"])


def caught(number, begun):
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        signal.raise_signal(number)
    return 0


def wait():
    for _ in range(3000):
        time.sleep(0.01)
    return 0


def while_an_object_is_destroyed(number, begun):
    """Python prints what is raised then, and goes on."""

    class Object:
        def __del__(self):
            signal.raise_signal(number)

    Object()
    return wait()


def while_a_compiled_module_begins(number, begun):
    """Some end the process with a signal of another kind where an exception comes while they begin."""

    class Loader(ExtensionFileLoader):
        def exec_module(self, _module):
            signal.raise_signal(number)
            begun.append("not interrupted")

    Loader("compiled", "compiled.so").exec_module(None)
    return wait()


#: Each signal with the exit status after it and what is said then.


@pytest.mark.parametrize(
    ("number", "status", "said"), [(signal.SIGINT, 130, "interrupted\n"), (signal.SIGTERM, 143, "")]
)
@pytest.mark.parametrize(
    "work",
    [
        alone,
        as_another_error,
        as_an_error_of_a_verb,
        caught,
        while_an_object_is_destroyed,
        while_a_compiled_module_begins,
    ],
)
def test_a_signal(work, number, status, said, capsys):
    begun = []
    assert heeding_signals(lambda: work(number, begun)) == status
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == said.splitlines()
    assert begun == (["not interrupted"] if work is while_a_compiled_module_begins else [])


def test_after_the_work_a_signal_ends_python_and_nothing_is_said():
    heeding_signals(lambda: 0)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == [signal.SIG_DFL] * 2


def test_other_errors_stay():
    def work():
        raise ImportError("gone")

    with pytest.raises(ImportError, match="gone"):
        heeding_signals(work)


def test_where_ctrl_c_is_ignored_it_stays_so():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert heeding_signals(lambda: signal.raise_signal(signal.SIGINT) or 0) == 0
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


#: The program with a line of progress every few milliseconds in place of every minute.
PROGRAM = """
import sys
from calibrators import progress
progress._A_MINUTE = 0.05
from trtint8.__main__ import main
sys.exit(main())
"""

#: Samples that never end, so that a phase is never over before the signal comes.
LOADER = """
import itertools
import numpy as np

def endless():
    images = np.random.default_rng(0).normal(size=(8, 1, 8, 8)).astype(np.float32)
    return ({"images": images} for _ in itertools.count())

def many():
    return itertools.islice(endless(), 20000)
"""

#: Events of Python at which Ctrl-C comes: files are opened, made, moved and removed.
EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.scandir")


class AtEvent:
    """Ctrl-C at one of the events, counted from 1; a hook of Python's audit stays until the process ends."""

    count, at = 0, 0

    @classmethod
    def hook(cls, event, _arguments):
        if not cls.at or event not in EVENTS:
            return
        cls.count += 1
        if cls.count == cls.at:
            cls.at = 0
            signal.raise_signal(signal.SIGINT)

    @classmethod
    def run(cls, arguments, at):
        cls.count, cls.at = 0, at
        try:
            return main.main(arguments)
        finally:
            cls.at = 0


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A folder with samples, a table in two formats and a quantized model."""
    folder = tmp_path_factory.mktemp("inputs")
    images = np.random.default_rng(1).normal(size=(64, 1, 8, 8)).astype(np.float32)
    np.savez(folder / "s.npz", images=images)
    table = trtint8.calibrate(DEMO_MODEL, {"images": images})
    for name in ("t.json", "t.cache"):
        table.save(folder / name)
    onnx.save(trtint8.quantize(DEMO_MODEL, table), folder / "q.onnx")
    return folder


@pytest.fixture(scope="module")
def at_event():
    sys.addaudithook(AtEvent.hook)
    return AtEvent


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "audit {model} {inputs}/t.json --gpu A100",
        "build {model} {inputs}/t.json -o new.engine --target rtx",
        "build {model} {inputs}/s.npz -o new.engine --target rtx",
        "calibrate {model} {inputs}/s.npz -o new.json",
        "deploy {inputs}/q.onnx --to ort-trt -o new",
        "migrate {model} {inputs}/t.cache -o new.onnx",
        "quantize {model} {inputs}/t.json -o new.onnx",
        "report {inputs}/q.onnx --model {model} --data {inputs}/s.npz -o new.html",
        "table convert {inputs}/t.json new.cache",
    ],
    ids=lambda value: value.split()[0],
)
def test_ctrl_c_at_any_file(command, nightly, inputs, at_event, tmp_path, monkeypatch, capsys):
    if "rtx" in command or "audit" in command:
        pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")
    words = [part.format(model=DEMO_MODEL, inputs=inputs) for part in command.split()]

    def files_after(at):
        """The exit status, the last line on standard error and the files that can be seen."""
        folder = tmp_path / f"at {at}"
        folder.mkdir()
        monkeypatch.chdir(folder)
        status = at_event.run(words, at)
        said = capsys.readouterr().err
        assert "Traceback" not in said
        return status, said.strip().rpartition("\n")[2], {path.name for path in folder.glob("[!.]*")}

    never = 1 << 30
    assert files_after(never)[0] == 0
    status, _, written = files_after(never + 1)
    events = at_event.count
    sample = {1, events // 2, events * 3 // 4, *range(max(1, events - 4), events + 1)}
    for at in range(1, events + 1) if nightly else sorted(sample):
        status, last, found = files_after(at)
        assert (status, last.partition(": ")[0]) == (130, "interrupted"), at
        checkpoint = {path for path in found if path.endswith(".checkpoint")}
        if "nothing was written" in last:
            assert found == set(), at
        elif "is complete" in last or "are complete" in last:
            assert found - checkpoint == written, at
        else:
            assert found == checkpoint and "--resume" in last, at


@pytest.mark.parametrize(
    "arguments",
    [["bench", "times.json"], ["run", "x.engine", "s.npz", "-o", "new.npz"]],
    ids=lambda value: value[0],
)
def test_ctrl_c_before_a_device_is_needed(arguments, at_event, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in "x.engine", "times.json":
        (tmp_path / name).write_bytes(b"neither")  # refused on every machine
    np.savez(tmp_path / "s.npz", images=np.zeros((4, 1, 8, 8), np.float32))
    before = set(tmp_path.iterdir())
    for _ in range(2):  # the first time also opens the files of modules
        assert at_event.run(arguments, 1 << 30) == 2
    events = at_event.count
    assert events > 0
    capsys.readouterr()
    for at in range(1, events + 1):
        status = at_event.run(arguments, at)
        last = capsys.readouterr().err.strip().rpartition("\n")[2]
        assert (status, last.partition(": ")[0]) == (130, "interrupted"), at
        assert set(tmp_path.iterdir()) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "phase", "kept"),
    [
        ("calibrate {model} loader:endless -o new.json", "Calibrating", None),
        ("build {model} loader:endless -o new.engine", "Calibrating", None),
        ("validate {inputs}/q.onnx loader:endless --reference {model}", "Validating", None),
        (
            "sensitivity {model} {inputs}/t.json loader:endless --tolerance 0 --limit 99999999",
            "Measuring",
            None,
        ),
        ("tune {model} loader:endless {inputs}/s.npz -o tuned.onnx", "Calibrating", None),
        (
            "tune {model} {inputs}/t.json {inputs}/s.npz --judge loader:many -o tuned.onnx",
            "Judging",
            "tuned.onnx.checkpoint",
        ),
    ],
    ids=lambda value: str(value).split()[0],
)
def test_ctrl_c_in_a_phase(command, phase, kept, inputs, tmp_path):
    (tmp_path / "loader.py").write_text(LOADER)
    words = (part.format(model=DEMO_MODEL, inputs=inputs) for part in command.split())
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[3])])}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=environment,
    ) as running:
        for line in running.stderr:
            if phase in line:
                break
        else:
            pytest.fail("the phase never came")
        running.send_signal(signal.SIGINT)
        printed, said = running.communicate(timeout=120)
    assert (running.returncode, printed) == (130, "")
    last = said.splitlines()[-1]
    assert "Traceback" not in said and last.startswith("interrupted: ")
    left = {path.name for path in tmp_path.iterdir()} - {"loader.py", "__pycache__"}
    assert left == ({kept} if kept else set())
    assert ("--resume" in last and f"'{kept}'" in last) if kept else "nothing was written" in last
