"""Kills every verb at random moments, and checks that its files are the old ones or the new ones.

python scripts/kill_check.py                    # 50 kills of each verb, on the packaged model
python scripts/kill_check.py --kills 5 --verbs build tune

After each kill the files that are there are loaded: a torn file, or files that do not belong together, count.
After the last kill the verb is run to its end, and what else lies in the folder counts as litter.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

import trtint8
from trtint8.data import DEMO_MODEL, load_digits_split

#: What must be there after a verb has run to its end, and what is checked after a kill.
Check = Callable[[Path], None]


@dataclass(frozen=True)
class Verb:
    """A verb of the command line.

    Attributes:
        arguments: Its arguments, in a folder with ``calib.npz``, ``held.npz`` and ``t.json``.
        files: The files that it writes.
        check: Loads those of them that are there.
    """

    arguments: Sequence[str]
    files: tuple[str, ...]
    check: Check


def _loads(load: Callable[[Path], object], *names: str) -> Check:
    def check(folder: Path) -> None:
        for name in names:
            if (folder / name).exists():
                load(folder / name)

    return check


_tables, _models = (partial(_loads, load) for load in (trtint8.CalibrationTable.load, trtint8.model_inputs))


def _engine(folder: Path) -> None:
    if (folder / "e.engine").exists() or (folder / "e.engine.json").exists():
        info = trtint8.read_engine_info(folder / "e.engine")
        assert info.qdq_model and (folder / info.qdq_model).exists()
        assert trtint8.CalibrationTable.load(folder / "e.table.json").fingerprint == info.table_fingerprint
    _models("e.qdq.onnx")(folder)


def _tuned(folder: Path) -> None:
    _models("u.onnx", "u.float.onnx")(folder)
    _tables("u.table.json")(folder)


def _page(folder: Path) -> None:
    page = folder / "r.html"
    assert not page.exists() or page.read_text().rstrip().endswith("</html>")


MODEL = str(DEMO_MODEL)

VERBS = {
    "calibrate": Verb((MODEL, "calib.npz", "-o", "c.json"), ("c.json",), _tables("c.json")),
    "quantize": Verb((MODEL, "t.json", "-o", "q.onnx"), ("q.onnx",), _models("q.onnx")),
    "build": Verb(
        (MODEL, "calib.npz", "-o", "e.engine", "--target", "rtx", "--method", "mse"),
        ("e.engine", "e.engine.json", "e.qdq.onnx", "e.table.json"),
        _engine,
    ),
    "tune": Verb(
        (MODEL, "calib.npz", "held.npz", "-o", "u.onnx", "--batch-size", "20", "--limit", "80"),
        ("u.onnx", "u.table.json", "u.float.onnx", "u.tuning.json"),
        _tuned,
    ),
    "sensitivity": Verb(
        (MODEL, "t.json", "held.npz", "-o", "s.json"), ("s.json",), _loads(trtint8.Sensitivity.load, "s.json")
    ),
    "report": Verb((".", "-o", "r.html"), ("r.html",), _page),
}


def prepare(folder: Path) -> None:
    """Writes the data and the table that the verbs read."""
    split = load_digits_split()
    np.savez(folder / "calib.npz", images=split.calibration_images)
    np.savez(folder / "held.npz", images=split.heldout_images[:200], labels=split.heldout_labels[:200])
    table = trtint8.calibrate(DEMO_MODEL, split.calibration_images, tensors="placed", progress=False)
    table.save(folder / "t.json")


def start(name: str, folder: Path) -> subprocess.Popen[bytes]:
    """Starts a verb."""
    command = [sys.executable, "-m", "trtint8", name, *VERBS[name].arguments]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def kill_at_random(name: str, folder: Path, kills: int, choose: random.Random) -> list[str]:
    """Kills a verb while it runs, again and again.

    Returns:
        What was wrong afterwards.
    """
    begun = time.monotonic()
    if start(name, folder).wait():
        return [f"{name} fails by itself"]
    seconds, number, wrong = time.monotonic() - begun, 0, []
    while number < kills:
        begun, process = time.monotonic(), start(name, folder)
        try:
            status = process.wait(choose.uniform(0.2, 1.0) * seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            number += 1
        else:
            if status:
                return [*wrong, f"{name} ends with status {status} after {number} kills"]
            seconds = min(seconds, time.monotonic() - begun)  # the first run filled caches
            continue
        try:
            VERBS[name].check(folder)
        except (trtint8.TrtInt8Error, AssertionError, OSError, ValueError) as error:
            wrong.append(f"kill {number}: {type(error).__name__}: {error}")
    return wrong


def litter(name: str, folder: Path, before: set[str]) -> set[str]:
    """What a verb that ran to its end leaves beside its files."""
    start(name, folder).wait()
    return {path.name for path in folder.iterdir()} - before - set(VERBS[name].files)


def main() -> int:
    """Prints one line per verb; the exit status is 1 where anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--verbs", nargs="+", choices=tuple(VERBS), default=list(VERBS))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    choose, failed = random.Random(options.seed), False
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        for verb in options.verbs:
            before = {path.name for path in folder.iterdir()}
            wrong = kill_at_random(verb, folder, options.kills, choose)
            left = litter(verb, folder, before)
            failed |= bool(wrong or left)
            print(f"{verb}: {options.kills} kills; {len(wrong)} wrong, {len(left)} left behind", flush=True)
            for line in [*wrong[:5], *sorted(left)[:5]]:
                print(f"  {line}")
            for path in folder.iterdir():
                if path.name not in before:
                    path.unlink()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
