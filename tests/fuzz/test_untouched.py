"""What verbs leave alone: everything but their outputs, whatever a stranger has put into a folder."""

import hashlib
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import trtint8
from tests.sampling import sample
from trtint8.cli.main import VERBS
from trtint8.data import DEMO_MODEL

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("untouched")]

_ROOT = Path(__file__).parents[2]

#: Names that programs look for in the current folder.
_CODE = ("rich.py", "numpy.py", "onnx.py", "json.py", "sitecustomize.py", "matplotlib.py", "tensorrt.py")

#: A line of arguments for each verb, and more than one where it reads different files. OUT is another folder.
_COMMANDS = (
    "doctor",
    "demo --output OUT/demo",
    "calibrate m.onnx calib.npz -o OUT/t.json --method minmax",
    "calibrate m.onnx random:4 -o OUT/t.json --resume",
    "quantize m.onnx t.json -o OUT/q.onnx --float16",
    "quantize m.onnx t.json -o OUT/q.onnx --equalize calib.npz",
    "migrate m.onnx t.cache -o OUT/q.onnx",
    "lint e.qdq.onnx",
    "lint e.qdq.onnx --fix -o OUT/q.onnx",
    "build m.onnx t.json -o OUT/e.engine --target rtx --keep-int8 *",
    "build e.qdq.onnx -o OUT/e.engine --target rtx",
    "audit m.onnx t.json --gpu A100",
    "validate e.qdq.onnx held.npz --reference m.onnx",
    "validate e.engine held.npz --reference m.onnx",
    "sensitivity m.onnx t.json held.npz -o OUT/s.json",
    "tune m.onnx calib.npz held.npz -o OUT/u.onnx --limit 40 --metric sqnr --min 5",
    "run e.engine held.npz -o OUT/o.npz",
    "bench e.engine --data held.npz",
    "deploy e.engine --to triton -o OUT/d",
    "report . -o OUT/r.html",
    "compare . . -o OUT/c.html",
    "table show t.json",
    "table show t.cache",
    "table diff t.json e.table.json",
    "table convert t.json OUT/t.cache",
    "table extract e.qdq.onnx -o OUT/t.json",
)

#: The first line of each verb.
_FIRST = {command.split()[0]: command for command in reversed(_COMMANDS)}.values()

#: Verbs with an output in the stranger's folder, and the endings of the names that they make of it.
_WRITING = (
    "calibrate m.onnx calib.npz -o o.json",
    "calibrate m.onnx calib.npz -o o.json --resume",
    "quantize m.onnx t.json -o o.onnx",
    "quantize m.onnx t.json -o o.onnx --equalize calib.npz",
    "build m.onnx t.json -o o.engine --target rtx --keep-int8 * --timing-cache o.timing",
    "sensitivity m.onnx t.json held.npz -o o.json",
    "tune m.onnx calib.npz held.npz -o o.onnx --limit 40 --metric sqnr --min 5",
    "table convert t.json o.cache",
    "lint e.qdq.onnx --fix -o o.onnx",
    "report e.engine -o o.html",
)
_DERIVED = (
    *(
        f"o.{kind}.{end}"
        for kind in ("json", "onnx", "engine", "cache", "html")
        for end in ("checkpoint", "json")
    ),
    *(f"o.{kind}.lock" for kind in ("json", "onnx", "engine", "cache", "timing")),
    "o.table.json",
    "o.qdq.onnx",
    "o.float.onnx",
    "o.tail.onnx",
    "o.tuning.json",
    "o.onnx.data",
    "o.sensitivity.json",
)


def _snapshot(folder):
    """Everything that tells whether a tree was changed."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = None
        if stat.S_ISLNK(status.st_mode):
            content = str(path.readlink())
        elif stat.S_ISREG(status.st_mode):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        times = () if path.is_dir() and not path.is_symlink() else (status.st_ino, status.st_mtime_ns)
        found[str(path.relative_to(folder))] = (status.st_mode, status.st_uid, *times, content)
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Files of every kind that verbs read."""
    pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")
    pytest.importorskip("PIL", reason="Pillow is not installed")
    folder, random = tmp_path_factory.mktemp("made"), np.random.default_rng(0)
    shutil.copy(DEMO_MODEL, folder / "m.onnx")
    for name, count in (("calib", 40), ("held", 40)):
        images = random.random((count, 1, 8, 8), np.float32)
        np.savez(folder / f"{name}.npz", images=images, labels=random.integers(0, 10, count))
    table = trtint8.calibrate(
        folder / "m.onnx", folder / "calib.npz", method="minmax", tensors="all", progress=False
    )
    table.save(folder / "t.json")
    table.save(folder / "t.cache")
    trtint8.build_int8_engine(
        folder / "m.onnx",
        folder / "t.json",
        folder / "e.engine",
        target="rtx",
        keep_int8=["*"],
        progress=False,
    )
    return folder


def _plant(folder, names):
    """Puts beside files what earlier versions, or this one, might take for their own."""
    for index, name in enumerate(names):
        key = hashlib.blake2b(name.encode(), digest_size=8).hexdigest()
        complete = folder / f".{key}.trtint8-new"
        complete.mkdir()
        (complete / "notes").write_text("of a stranger")
        (complete / name).write_text("of a stranger")
        (complete / "keep.txt").mkdir()
        (folder / f".{key}-{index:016x}.trtint8-tmp").symlink_to("..")
    (folder / "notes").symlink_to("../victim")
    (folder / "keep.txt").write_text("important")


@pytest.fixture
def strange(made, tmp_path):
    """A folder of somebody else's beside a file and an empty home folder of the user's."""
    folder = tmp_path / "strange"
    shutil.copytree(made, folder)
    for name in _CODE:
        (folder / name).write_text(f"open({str(tmp_path / 'executed')!r}, 'a').write({name!r})\n")
    (folder / "matplotlibrc").write_bytes(b"\xff")  # which Matplotlib cannot read
    _plant(folder, [path.name for path in made.iterdir()])
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "home").mkdir()
    (tmp_path / "tmp").mkdir()
    (tmp_path / "out").mkdir()
    return folder


def _run(strange, command, prefix=()):
    """Runs a verb in the stranger's folder."""
    top = strange.parent
    words = [word.replace("OUT", str(top / "out")) for word in command.split()]
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
        "PYTHONPATH": str(_ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": str(top / "home"),
        "TMPDIR": str(top / "tmp"),
        "MPLCONFIGDIR": str(top / "matplotlib"),  # whose cache is no concern of ours
        "XDG_CACHE_HOME": str(top / "cache"),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [*prefix, str(Path(sys.executable).with_name("trtint8")), *words],
        cwd=strange,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 2), done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_every_verb_is_tried():
    assert {command.split()[0] for command in _COMMANDS} == set(VERBS)


@pytest.mark.parametrize("command", sample(_COMMANDS, _FIRST))
def test_what_is_read_stays_byte_for_byte(command, strange, tmp_path):
    before, home = _snapshot(strange), _snapshot(tmp_path / "home")
    _run(strange, command)
    assert _snapshot(strange) == before
    assert _snapshot(tmp_path / "home") == home
    assert (tmp_path / "victim").read_text() == "mine"
    assert not (tmp_path / "executed").exists()
    assert not list((tmp_path / "tmp").iterdir())


@pytest.mark.parametrize("command", sample(_COMMANDS, _COMMANDS[::6]))
def test_a_folder_of_another_user_can_be_read(command, strange, tmp_path):
    """Without the rights of root, whose system calls succeed everywhere."""
    prefix = ()
    if os.geteuid() == 0:
        if not shutil.which("setpriv"):
            pytest.skip("root has no setpriv to give up its rights")
        prefix = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")
        for path in (strange, *strange.rglob("*")):
            os.chown(path, 12345, 12345, follow_symlinks=False)
        strange.chmod(0o1777)  # as the folder of temporary files
    else:
        strange.chmod(0o555)
    before = _snapshot(strange)
    done = _run(strange, command, prefix)
    strange.chmod(0o1777)
    assert _snapshot(strange) == before
    assert (tmp_path / "victim").read_text() == "mine"
    assert "Permission denied" not in done.stderr


@pytest.mark.parametrize("command", _WRITING)
@pytest.mark.parametrize("links", sample([True, False], [True]))
def test_only_outputs_are_written(links, command, strange, tmp_path):
    """Nothing is written, and nothing removed, through a link that the user did not name."""
    if links:
        for name in _DERIVED:
            (strange / name).symlink_to("../victim")
    before = _snapshot(strange)
    _run(strange, command)
    after = _snapshot(strange)
    assert (tmp_path / "victim").read_text() == "mine"
    assert {name: after.get(name) for name in before} == before
    new = {Path(name).parts[0] for name in after.keys() - before.keys()}
    assert all(name.startswith("o.") for name in new), new
    assert not (tmp_path / "executed").exists()
