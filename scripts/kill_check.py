"""Kills every verb at random moments, and checks that its files are the old ones or the new ones.

python scripts/kill_check.py                    # 50 kills of each verb, on the packaged model
python scripts/kill_check.py --kills 5 --verbs build tune

Runs alternate between two ways to do the same, so that old files and new ones differ. After each kill the
files that are there are loaded. They are the old ones or the new ones, or they are refused in one sentence,
and one more run mends them. Everything else counts as wrong. After the last kill the verb is run to its end,
and what else lies in the folder counts as litter.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import trtint8
from trtint8.data import DEMO_MODEL, load_digits_split
from trtint8.interop.unquantize import extract_table
from trtint8.models.model import load_model

#: Loads the files of a verb, and fails where they do not belong together.
Check = Callable[[Path], object]


@dataclass(frozen=True)
class Verb:
    """A verb of the command line, run in an empty folder in the one that :func:`prepare` has filled.

    Attributes:
        arguments: The verb and its arguments.
        files: The files that it writes, the one first that the user names.
        check: Loads the files, and fails where they do not belong together.
        ways: What is added to the arguments in turn; the results differ.
        into_nothing: Whether it refuses to write where an earlier run has written.
        mended_by: What is added to the arguments of the run after one that did not come to its end.
    """

    arguments: Sequence[str]
    files: tuple[str, ...]
    check: Check = os.listdir
    ways: tuple[Sequence[str], Sequence[str]] = ((), ())
    into_nothing: bool = False
    mended_by: Sequence[str] = ()

    def command(self, way: int) -> list[str]:
        """The command line without the program's name, in one of both ways."""
        return [*self.arguments, *self.ways[way % 2]]


def _engine(folder: Path) -> None:
    trtint8.deploy(folder / "e.engine", "cpp", folder / "deployed")  # which reads all files
    shutil.rmtree(folder / "deployed")


def _tuned(folder: Path) -> None:
    made = extract_table(load_model(folder / "u.onnx")).amax
    table = trtint8.CalibrationTable.load(folder / "u.table.json").amax
    assert all(abs(table[name] - amax) <= 1e-5 * amax for name, amax in made.items()), "tables differ"
    json.loads((folder / "u.tuning.json").read_text())


def _page(folder: Path) -> None:
    assert (folder / "r.html").read_text().rstrip().endswith("</html>")


MODEL = str(DEMO_MODEL)

#: Ways to choose ranges whose tables differ.
_METHODS = ("--method", "mse"), ("--method", "minmax")

#: Ways that differ in speed alone.
_SIZES = ("--batch-size", "20"), ("--batch-size", "10")

_CALIBRATE = ("calibrate", MODEL, "../calib.npz", "-o", "c.json", "--threads", "1")
_WITH_CHECKPOINTS = (*_CALIBRATE, "--limit", "30", "--batch-size", "10", "--checkpoint-seconds", "0")
_QUANTIZE = ("quantize", MODEL, "../t.json", "-o", "q.onnx")
_FLOAT16 = (), ("--float16",)


def _table(folder: Path) -> None:
    trtint8.CalibrationTable.load(folder / "c.json")


def _model(folder: Path) -> None:
    trtint8.model_inputs(folder / "q.onnx")


VERBS = {
    "calibrate": Verb(_CALIBRATE, ("c.json",), _table, _METHODS),
    "calibrate with checkpoints": Verb(_WITH_CHECKPOINTS, ("c.json",), _table, _METHODS),
    "calibrate --resume": Verb(_WITH_CHECKPOINTS, ("c.json",), _table, _METHODS, mended_by=("--resume",)),
    "quantize": Verb(_QUANTIZE, ("q.onnx",), _model, _FLOAT16),
    "quantize --equalize": Verb(
        (*_QUANTIZE, "--equalize", "../calib.npz", "--limit", "20"),
        ("q.onnx", "q.float.onnx", "q.table.json"),
        _model,
        _FLOAT16,
    ),
    "build": Verb(
        ("build", MODEL, "../calib.npz", "-o", "e.engine", "--target", "rtx"),
        ("e.engine", "e.engine.json", "e.qdq.onnx", "e.table.json"),
        _engine,
        _METHODS,
    ),
    "tune": Verb(
        ("tune", MODEL, "../calib.npz", "../held.npz", "-o", "u.onnx", "--limit", "80", "--batch-size", "20"),
        ("u.onnx", "u.table.json", "u.float.onnx", "u.tuning.json"),
        _tuned,
        _METHODS,
    ),
    "sensitivity": Verb(
        ("sensitivity", MODEL, "../t.json", "../held.npz", "-o", "s.json", "--threads", "1"),
        ("s.json",),
        lambda folder: trtint8.Sensitivity.load(folder / "s.json"),
        _SIZES,
    ),
    "report": Verb(("report", "../t.json", "-o", "r.html"), ("r.html",), _page, ((), ("--model", MODEL))),
    "compare": Verb(
        ("compare", "-o", "r.html"),
        ("r.html",),
        _page,
        (("../t.json", "../u.json"), ("../u.json", "../t.json")),
    ),
    "lint --fix": Verb(
        ("lint", "--fix", "-o", "q.onnx"), ("q.onnx",), _model, (("../t.onnx",), ("../u.onnx",))
    ),
    "migrate": Verb(
        ("migrate", "-o", "q.onnx", MODEL), ("q.onnx",), _model, (("../t.cache",), ("../u.cache",))
    ),
    "table convert": Verb(
        ("table", "convert"),
        ("t.cache", "t.cache.json"),
        lambda folder: trtint8.CalibrationTable.load(folder / "t.cache"),
        (("../t.json", "t.cache"), ("../u.json", "t.cache")),
    ),
    "deploy": Verb(
        ("deploy", "../t.onnx", "--to", "ort-trt", "-o", "d", "--table", "../t.json"),
        ("d",),
        into_nothing=True,
    ),
}


def prepare(folder: Path) -> None:
    """Writes the data, the tables and the model that the verbs read."""
    split = load_digits_split()
    np.savez(folder / "calib.npz", images=split.calibration_images)
    np.savez(folder / "held.npz", images=split.heldout_images[:200], labels=split.heldout_labels[:200])
    table = trtint8.calibrate(DEMO_MODEL, split.calibration_images, tensors="placed", progress=False)
    for name, ranges in (("t", table), ("u", table.override({"images": 2.0}))):
        ranges.save(folder / f"{name}.json")
        ranges.save(folder / f"{name}.cache")
        trtint8.write_quantized(DEMO_MODEL, ranges, folder / f"{name}.onnx")


def start(name: str, folder: Path, way: int) -> subprocess.Popen[bytes]:
    """Starts a verb."""
    verb = VERBS[name]
    if verb.into_nothing:
        shutil.rmtree(folder / verb.files[0], ignore_errors=True)
    command = [sys.executable, "-m", "trtint8", *verb.command(way)]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@dataclass
class Found:
    """What kills of a verb have shown.

    Attributes:
        refused: How often the files were refused until the next run had mended them.
        wrong: What must not be.
    """

    refused: int = 0
    wrong: list[str] = field(default_factory=list)


def kill_at_random(name: str, folder: Path, kills: int, choose: random.Random) -> Found:
    """Kills a verb while it runs, again and again."""
    found, begun = Found(), time.monotonic()
    if start(name, folder, 0).wait():
        return Found(wrong=[f"{name} fails by itself"])
    seconds, number = time.monotonic() - begun, 0
    while number < kills:
        begun, process = time.monotonic(), start(name, folder, number + 1)
        try:
            status = process.wait(choose.uniform(0.2, 1.0) * seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            number += 1
        else:
            if status:
                found.wrong.append(f"{name} ends with status {status} after {number} kills")
                return found
            seconds = min(seconds, time.monotonic() - begun)  # the first run filled caches
            continue
        check(name, folder, number, found)
    return found


def check(name: str, folder: Path, number: int, found: Found) -> None:
    """Loads what a kill has left; where that is refused, lets the next run mend it."""
    try:
        VERBS[name].check(folder)
    except trtint8.TrtInt8Error:
        found.refused += 1
    except (AssertionError, OSError, ValueError) as error:
        found.wrong.append(f"kill {number}: {type(error).__name__}: {error}")
    else:
        return
    if start(name, folder, number).wait():
        found.wrong.append(f"kill {number}: the next run fails")
        return
    try:
        VERBS[name].check(folder)
    except (trtint8.TrtInt8Error, AssertionError, OSError, ValueError) as error:
        found.wrong.append(f"after kill {number} and a run: {type(error).__name__}: {error}")


def litter(name: str, folder: Path) -> set[str]:
    """What a verb that ran to its end leaves beside its files."""
    start(name, folder, 0).wait()
    return {path.name for path in folder.iterdir()} - set(VERBS[name].files)


def main() -> int:
    """Prints one line per verb; the exit status is 1 where anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--verbs", nargs="+", choices=tuple(VERBS), default=list(VERBS))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    choose, failed = random.Random(options.seed), False
    with tempfile.TemporaryDirectory() as name:
        prepare(Path(name))
        for verb in options.verbs:
            folder = Path(name) / "out"
            folder.mkdir()
            found = kill_at_random(verb, folder, options.kills, choose)
            left = litter(verb, folder)
            failed |= bool(found.wrong or left)
            print(
                f"{verb}: {options.kills} kills; {found.refused} refused and mended by the next run, "
                f"{len(found.wrong)} wrong, {len(left)} left behind",
                flush=True,
            )
            for line in [*found.wrong[:5], *sorted(left)[:5]]:
                print(f"  {line}")
            shutil.rmtree(folder)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
