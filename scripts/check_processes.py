"""Runs trtint8 where processes, threads or interpreters are not as usual; prints "held", or what is wrong.

python scripts/check_processes.py
python scripts/check_processes.py --only "eight processes" fork

Eight processes write one output while it is read. Threads share one process. A process forks after it has run
a network. Calls stand in an event loop. Standard streams are closed. The interpreter has other flags, or the
locale is C. The current folder cannot be written; as root, that is seen as another user.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from kill_check import MODEL, VERBS, prepare

import trtint8
from trtint8.data import DEMO_MODEL

#: How many processes or threads work at once.
_MANY = 8

#: What calibrates in the current folder, and is quick.
_CALIBRATE = ("calibrate", MODEL, "../calib.npz", "-o", "c.json", "--method", "mse", "--threads", "1")

#: What a user of another account is, who may write nothing here.
_NOBODY = 65534


def trtint8_process(
    arguments: Sequence[str], folder: Path, *flags: str, **options: object
) -> subprocess.Popen[str]:
    """Starts a verb in a folder."""
    options.setdefault("stdout", subprocess.DEVNULL)
    options.setdefault("stderr", subprocess.PIPE)
    return subprocess.Popen(
        [sys.executable, *flags, "-m", "trtint8", *arguments],
        cwd=folder,
        text=True,
        **options,  # type: ignore[call-overload]
    )


def finished(process: subprocess.Popen[str], *, refused: bool = False) -> list[str]:
    """What is wrong with how a process ended; one sentence is right where it may be refused."""
    _, said = process.communicate(timeout=600)
    said = said or ""
    sentence = refused and process.returncode == 2 and said.count("trtint8 ") == 1
    if "Traceback" in said or not (process.returncode == 0 or sentence):
        return [f"status {process.returncode}: {said[-500:]}"]
    return []


def written_together(name: str, count: int, folder: Path) -> list[str]:
    """Processes write the same output, and this one reads it meanwhile."""
    verb, wrong = VERBS[name], []
    running = [trtint8_process(verb.command(number), folder) for number in range(count)]
    while any(process.poll() is None for process in running):
        if (folder / verb.files[0]).exists():
            try:
                verb.check(folder)
            except (trtint8.TrtInt8Error, AssertionError):
                pass  # the files of a set are put in place one by one, and are seen not to belong together
            except Exception as error:  # noqa: BLE001 whatever it is, it is wrong
                wrong.append(f"read meanwhile: {type(error).__name__}: {error}")
        time.sleep(0.02)
    for process in running:
        wrong += finished(process, refused=name == "tune")
    verb.check(folder)
    left = {path.name for path in folder.iterdir()} - set(verb.files)
    return [*wrong, *(f"left behind: {path}" for path in left)]


def _work(data: np.ndarray, folder: Path, number: int) -> dict[str, float]:
    table = trtint8.calibrate(DEMO_MODEL, data, method="mse", progress=False, threads=1)
    table.save(folder / "t.json")
    trtint8.write_quantized(DEMO_MODEL, table, folder / f"q{number}.onnx")
    trtint8.validate(folder / f"q{number}.onnx", data[::2], reference=DEMO_MODEL, progress=False, threads=1)
    return dict(table.amax)


def threads(folder: Path) -> list[str]:
    """Threads of one process calibrate into one file, quantize and validate."""
    data = np.load(folder.parent / "calib.npz")["images"]
    with ThreadPoolExecutor(_MANY) as pool:
        found = list(pool.map(lambda number: _work(data, folder, number), range(_MANY)))
    same = trtint8.CalibrationTable.load(folder / "t.json").amax == found[0]
    return [] if same and all(each == found[0] for each in found) else ["threads give different ranges"]


def fork(folder: Path) -> list[str]:
    """A process that has run a network forks; both run another."""
    data = np.load(folder.parent / "calib.npz")["images"]
    here, child = _work(data, folder, 0), os.fork()
    if child == 0:
        try:
            os._exit(0 if _work(data, folder, 1) == here else 3)
        except BaseException:  # noqa: BLE001 it is printed, and is what is looked for
            traceback.print_exc()
            os._exit(4)
    end = time.monotonic() + 120
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < end:
        time.sleep(0.05)
    if ended[0] == 0:
        os.kill(child, 9)
        return ["the child hangs"]
    return [] if ended[1] == 0 and _work(data, folder, 2) == here else [f"the child ended with {ended[1]}"]


def event_loop(folder: Path) -> list[str]:
    """Calls in an event loop, and in threads that it waits for."""
    data = np.load(folder.parent / "calib.npz")["images"]

    async def run() -> list[dict[str, float]]:
        jobs = [asyncio.to_thread(_work, data, folder, number) for number in range(1, 4)]
        return [_work(data, folder, 0), *await asyncio.gather(*jobs)]

    found = asyncio.run(run())
    return [] if all(each == found[0] for each in found) else ["the loop's threads give different ranges"]


def closed_streams(folder: Path) -> list[str]:
    """Verbs whose standard streams are closed, one or all."""
    wrong = []
    for closing in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
        command = [sys.executable, "-m", "trtint8", *_CALIBRATE]
        done = subprocess.run(["sh", "-c", f'exec "$@" {closing}', "sh", *command], cwd=folder, check=False)
        if done.returncode or not (folder / "c.json").exists():
            wrong.append(f"{closing}: status {done.returncode}")
        (folder / "c.json").unlink(missing_ok=True)
    return wrong


def interpreters(folder: Path) -> list[str]:
    """Verbs with flags of the interpreter."""
    wrong = []
    for flag in ("-O", "-OO", "-I", "-P", "-Xdev", "-b"):
        if flag == "-P" and sys.version_info < (3, 11):
            continue
        for name in ("calibrate", "quantize", "build"):
            wrong += [
                f"{flag} {name}: {w}" for w in finished(trtint8_process(VERBS[name].command(0), folder, flag))
            ]
            VERBS[name].check(folder)
    return wrong


def locale(folder: Path) -> list[str]:
    """Names that are not ASCII where the locale has ASCII alone."""
    wrong = []
    shutil.copy(MODEL, folder / "modèle.onnx")
    for utf8 in ("0", "1"):
        environment = {
            **os.environ,
            "LC_ALL": "C",
            "LANG": "C",
            "PYTHONUTF8": utf8,
            "PYTHONCOERCECLOCALE": "0",
        }
        for arguments in (
            ("calibrate", "modèle.onnx", "../calib.npz", "-o", "tablé.json", "--method", "mse"),
            ("quantize", "modèle.onnx", "tablé.json", "-o", "q→.onnx"),
            ("table", "show", "tablé.json"),
        ):
            wrong += finished(trtint8_process(arguments, folder, env=environment))
        for made in ("tablé.json", "q→.onnx"):
            if not (folder / made).exists():
                wrong.append(f"PYTHONUTF8={utf8}: no '{made}'")
            (folder / made).unlink(missing_ok=True)
    return wrong


def read_only_folder(folder: Path) -> list[str]:
    """A current folder that cannot be written, with the output in another, and in it."""
    elsewhere = folder.parent / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    options: dict[str, object] = {}
    if os.geteuid() == 0:
        if "/root/" in os.path.realpath(sys.executable):
            print("  not seen: this is the root user, whose Python other users cannot start")
            return []
        elsewhere.chmod(0o777)
        options = {"user": _NOBODY, "group": _NOBODY}
    folder.chmod(0o555)
    try:
        inside = _CALIBRATE[: _CALIBRATE.index("-o")]
        outside = trtint8_process([*inside, "-o", str(elsewhere / "c.json")], folder, **options)
        wrong = finished(outside)
        refused = trtint8_process(_CALIBRATE, folder, **options)
        wrong += finished(refused, refused=True)
        if refused.returncode != 2 or list(folder.iterdir()):
            wrong.append(f"what cannot be written ends with status {refused.returncode}")
    finally:
        folder.chmod(0o755)
    return wrong


CHECKS: dict[str, Callable[[Path], list[str]]] = {
    **{
        f"eight processes {name}": lambda folder, name=name: written_together(name, _MANY, folder)  # type: ignore[misc]
        for name in ("calibrate", "build", "quantize --equalize")
    },
    "two processes tune": lambda folder: written_together("tune", 2, folder),
    "threads": threads,
    "fork": fork,
    "event loop": event_loop,
    "closed streams": closed_streams,
    "interpreters": interpreters,
    "locale": locale,
    "read-only folder": read_only_folder,
}


def main() -> int:
    """Prints one line per check; the exit status is 1 where anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], metavar="NAME", help="checks that begin so")
    options = parser.parse_args()
    failed = False
    for name in (name for name in CHECKS if name.startswith(tuple(options.only))):
        with tempfile.TemporaryDirectory() as base:
            Path(base).chmod(0o755)
            prepare(Path(base))
            folder = Path(base) / "out"
            folder.mkdir()
            try:
                wrong = CHECKS[name](folder)
            except Exception as error:  # noqa: BLE001 whatever it is, it is wrong
                wrong = [f"{type(error).__name__}: {error}"]
            failed |= bool(wrong)
            print(f"{name}: {'held' if not wrong else f'{len(wrong)} wrong'}", flush=True)
            for line in wrong[:5]:
                print(f"  {line}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
