"""Makes each call that touches the output's folder fail, or end the process, one after the other.

python scripts/fault_check.py                             # every verb, every call, in hours
python scripts/fault_check.py --verbs calibrate build --in-turn

A call fails once, or with all that follow, with one error or another; or the process is killed before or
after it. Afterwards the files are the old ones or the new ones, or they are refused in one sentence and the
next run mends them. That run leaves the new files alone. All else counts as "else": a traceback, more or less
than one sentence, files that are lost, mixed or left behind. It needs Linux and a C compiler.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kill_check import VERBS, Verb, prepare

import trtint8
from trtint8.cli.main import main as trtint8_main

#: What becomes of a call: its name, the number of it in the C file, and the error.
FAULTS = (
    *(
        (f"{name} {times}", way, getattr(errno, name))
        for name in ("EIO", "ENOSPC", "EACCES")
        for way, times in enumerate(("once", "from then on"))
    ),
    ("killed before", 2, errno.EIO),
    ("killed after", 3, errno.EIO),
)

#: The longest that a run may take, in seconds.
_LONGEST = 120.0

#: Name of the environment variable by which the dynamic linker puts a library before all others.
_PRELOAD = "LD_PRELOAD"


@dataclass(frozen=True)
class Run:
    """What came of a run.

    Attributes:
        status: The exit status; the negative number of the signal that ended it; None where it hung.
        said: What it printed as errors.
        calls: How many calls touched the folder; 0 where the process was killed.
        last: The call that failed, or the last one.
    """

    status: int | None
    said: str
    calls: int
    last: str

    @property
    def is_one_sentence(self) -> bool:
        """True if it was refused in one sentence."""
        sentences = [line for line in self.said.splitlines() if line.startswith("trtint8 ")]
        return self.status == 2 and len(sentences) == 1 and "Traceback" not in self.said


def run(arguments: Sequence[str], folder: Path, at: int = 0, way: int = 0, code: int = 0) -> Run:
    """Runs a verb in a folder, in a process of its own.

    Args:
        arguments: The command line without the program's name.
        folder: The folder, which is watched.
        at: The call that fails, counted from 1; 0 for none.
        way: How, as numbered in :data:`FAULTS`.
        code: The error.
    """
    shim = ctypes.CDLL(os.environ[_PRELOAD])
    shim.fault_last.restype = ctypes.c_char_p
    said, counted = folder.with_name("said"), folder.with_name("counted")
    counted.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        status = 99
        os.chdir(folder)
        for stream in (1, 2):
            os.dup2(
                os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC * (stream == 1) | os.O_APPEND), stream
            )
        try:
            shim.fault_arm(os.fsencode(folder), at, code, way)
            status = trtint8_main(arguments)
        except SystemExit as error:
            status = error.code
        except BaseException:  # noqa: BLE001 it is printed, and is what is looked for
            traceback.print_exc()
        finally:
            calls, last = shim.fault_seen(), shim.fault_last().decode()
            shim.fault_arm(b"", 0, 0, 0)
            counted.write_text(json.dumps([calls, last]))
            with contextlib.suppress(Exception):
                sys.stderr.flush()
            os._exit(status if isinstance(status, int) else 98)
    end, ended = time.monotonic() + _LONGEST, (0, 0)
    while not ended[0] and time.monotonic() < end:
        time.sleep(0.005)
        ended = os.waitpid(child, os.WNOHANG)
    if not ended[0]:
        os.kill(child, 9)
        os.waitpid(child, 0)
    calls, last = json.loads(counted.read_text()) if counted.exists() else (0, "")
    status = os.waitstatus_to_exitcode(ended[1]) if ended[0] else None
    return Run(status, said.read_text(errors="replace"), calls, last)


def state(folder: Path) -> dict[str, str]:
    """What a folder holds: the name of each file to the hash of its content."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        for path in folder.rglob("*")
    }


@dataclass(frozen=True)
class Sweep:
    """The faults of one verb.

    Attributes:
        verb: The verb.
        folder: Where it writes.
        old: The files before each run.
        new: The files after a run without faults.
        is_repeatable: Whether each run writes the same bytes.
    """

    verb: Verb
    folder: Path
    old: dict[str, str]
    new: dict[str, str]
    is_repeatable: bool

    @classmethod
    def of(cls, verb: Verb, folder: Path) -> tuple[Sweep, int]:
        """Runs a verb without faults; returns also how many calls touch its folder."""
        kept = folder.with_name("old")
        for made in (folder, kept):
            shutil.rmtree(made, ignore_errors=True)
        folder.mkdir()
        if not verb.into_nothing:
            _succeed(run(verb.command(0), folder))
        shutil.copytree(folder, kept)
        old, found = state(folder), []
        for _ in range(2):
            shutil.rmtree(folder)
            shutil.copytree(kept, folder)
            done = _succeed(run(verb.command(1), folder))
            found.append(state(folder))
        return cls(verb, folder, old, found[0], found[0] == found[1]), done.calls

    def is_new(self, found: dict[str, str]) -> bool:
        """True if a folder holds the new files alone; those that differ from run to run are loaded."""
        if self.is_repeatable or found.keys() != self.new.keys():
            return found == self.new
        return self._refusal() == ""

    def _refusal(self) -> str | None:
        """Why the files are refused; an empty text where they are not, None where they are worse."""
        try:
            self.verb.check(self.folder)
        except trtint8.TrtInt8Error as error:
            return str(error)
        except Exception:  # noqa: BLE001 whatever it is, it is no sentence
            return None
        return ""

    def outcome(self, at: int, way: int, code: int) -> tuple[str, str]:
        """Lets one call fail; returns what became of the files, and what is wrong."""
        shutil.rmtree(self.folder)
        shutil.copytree(self.folder.with_name("old"), self.folder)
        done = run(self.verb.command(1), self.folder, at, way, code)
        found, wrong = state(self.folder), []
        outputs = {name: held for name, held in found.items() if Path(name).parts[0] in self.verb.files}
        if outputs == self.old:
            outcome = "old"
        elif self.is_new(outputs):
            outcome = "new"
        else:
            outcome = "refused" if self._refusal() else "else"
            if outcome == "else":
                wrong.append(f"files {sorted(outputs)}")
        if way < 2 and done.status not in (0, 1) and not done.is_one_sentence:
            wrong.append(f"status {done.status}, {done.said[-300:]!r}")
        if way < 2 and done.status == 0 and outcome != "new" and self.old != self.new:
            wrong.append("status 0 and no new files")
        if way == 0 and outcome == "refused":
            wrong.append("one error left files that do not belong together")
        if found not in (self.old, self.new) or outcome not in ("old", "new"):
            mended = run([*self.verb.command(1), *self.verb.mended_by], self.folder)
            settled = self.verb.into_nothing and outcome == "new"  # which the next run refuses
            if not settled and mended.status != 0:
                wrong.append(f"the next run ends with {mended.status}, {mended.said[-300:]!r}")
            elif not self.is_new(state(self.folder)):
                wrong.append(f"after the next run: {sorted(state(self.folder).items() ^ self.new.items())}")
        return ("else" if wrong else outcome), f"{done.last or 'killed'}: {'; '.join(wrong)}"


def _succeed(done: Run) -> Run:
    if done.status != 0:
        raise SystemExit(f"the verb fails by itself with {done.status}: {done.said}")
    return done


def sweep(name: str, folder: Path, *, in_turn: bool = False, every: int = 1, shown: int = 5) -> Counter[str]:
    """Makes the calls of a verb fail, and prints a row, and what is wrong.

    Args:
        name: The verb.
        folder: Where it writes; what it reads is in the folder above.
        in_turn: Whether each call fails in one way, the next one in the next way, and not each in all ways.
        every: One call in so many fails, from the first on.
        shown: How much is printed of what is wrong.
    """
    swept, calls = Sweep.of(VERBS[name], folder)
    counts: Counter[str] = Counter()
    for at in range(1, calls + 1, every):
        for fault, way, code in [FAULTS[at % len(FAULTS)]] if in_turn else FAULTS:
            outcome, wrong = swept.outcome(at, way, code)
            counts[outcome] += 1
            if outcome == "else" and counts["else"] <= shown:
                print(f"  {name}: call {at} of {calls}, {fault}: {wrong}", flush=True)
    figures = [
        calls,
        sum(counts.values()),
        *(counts[outcome] for outcome in ("old", "new", "refused", "else")),
    ]
    print(f"| {name} | {' | '.join(map(str, figures))} |", flush=True)
    return counts


def build_shim(folder: Path) -> Path | None:
    """Compiles the library that is preloaded; None where there is no compiler."""
    compiler, shim = shutil.which("cc"), folder / "fault_check.so"
    if compiler is None or sys.platform != "linux":
        return None
    source = Path(__file__).with_suffix(".c")
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", shim, source, "-ldl"], check=True)
    return shim


def main() -> int:
    """Prints one row per verb; the exit status is 1 where anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--verbs", nargs="+", choices=tuple(VERBS), default=list(VERBS))
    parser.add_argument("--in-turn", action="store_true", help="let each call fail in one way only")
    parser.add_argument("--every", type=int, default=1, help="let one call in so many fail")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        if _PRELOAD not in os.environ:
            shim = build_shim(Path(name))
            if shim is None:
                raise SystemExit("there is no C compiler here, or this is not Linux")
            environment = {**os.environ, _PRELOAD: str(shim), "OMP_NUM_THREADS": "1"}
            return subprocess.run([sys.executable, *sys.argv], env=environment, check=False).returncode
        folder = Path(name).resolve() / "out"
        prepare(folder.parent)
        print("| verb | calls | injections | old | new | refused | else |\n|---|---|---|---|---|---|---|")
        how = {"in_turn": options.in_turn, "every": options.every}
        return int(sum(sweep(verb, folder, **how)["else"] for verb in options.verbs) > 0)


if __name__ == "__main__":
    sys.exit(main())
