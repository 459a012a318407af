"""Times engines on another machine: writes models with a script for ``trtexec``, and reads what that leaves.

The machine needs TensorRT 8.5 to 11 with its program ``trtexec``, a shell, and no Python. What ``trtexec``
writes differs by version, so only what all of them write is read:

- Its first line is ``&&&& RUNNING TensorRT.trtexec [TensorRT v8502] # ...``: two digits each for the minor
  and the patch version behind the major one, and from 10 on ``v100300``.
- ``--exportTimes``: a list of objects, one per inference, with ``computeMs``. What stands beside it is
  ``inMs`` and ``outMs`` in 8, ``h2dMs`` and ``d2hMs`` from 9 on (samples/trtexec/tracer.py of TensorRT).
- ``--exportProfile``: a list of an object ``{"count": runs}`` and one per layer, with ``name`` and
  ``averageMs`` (samples/trtexec/profiler.py).
- ``--exportLayerInfo``: the text of TensorRT's engine inspector.
"""

from __future__ import annotations

import os
import re
import statistics
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from calibrators import records
from calibrators.checks import warn_user
from calibrators.errors import BuildError, TrtInt8Error
from calibrators.files import check_writable, write_atomically
from trtint8.engine.layers import LayerReport
from trtint8.engine.plan import parse_inspection
from trtint8.models.serialization import save_model
from trtint8.tuning.stopwatch import Source, Timing, seconds_of_nodes

#: The largest file of ``trtexec`` that is read, in bytes.
_MOST_BYTES = 1 << 28

#: How often engines are run one after another; the least and the largest of as many ratios hold their median
#: with a probability of 97 % (the sign test).
_ROUNDS = 6

#: What the search of a folder is told from others by.
_IDENTITY = "search.json"

_SCRIPT = """#!/bin/sh
# Builds the engines of the models in this folder with trtexec, and times them one after another.
# Copy the folder to the machine, run "sh measure.sh" there, and copy it back. What is there already is not
# made anew. Variables: TRTEXEC, the program; TRTEXEC_FLAGS, such as "--useDLACore=0 --allowGPUFallback".
set -u
cd "$(dirname "$0")" || exit 2
program=${TRTEXEC:-$(command -v trtexec || echo /usr/src/tensorrt/bin/trtexec)}
flags=${TRTEXEC_FLAGS:-}
if ! command -v "$program" > /dev/null; then
    echo "there is no program '$program'; set TRTEXEC to that of TensorRT" >&2
    exit 2
fi
version=$("$program" --help 2>&1 | sed -n 's/.*\\[TensorRT v\\([0-9]*\\)\\].*/\\1/p' | head -n 1)
case $version in
    8???) form=weak types="--int8 --fp16" ;;
    9????|10????) form=weak types="--int8 --fp16" ;;
    1[1-9]????) form=typed types="" ;;
    *) echo "'$program' is of no TensorRT from 8.5 to 11 (it says '$version')" >&2; exit 2 ;;
esac
echo "TensorRT $version: $program $types $flags"
for name in NAMES; do
    if [ -e "$name.engine" ] || [ -e "$name.failed" ]; then continue; fi
    echo "building $name"
    # shellcheck disable=SC2086
    if ! "$program" --onnx="$name.$form.onnx" --saveEngine="$name.engine.part" $types $flags \\
        --profilingVerbosity=detailed --exportLayerInfo="$name.layers.json" --iterations=1 --duration=0 \\
        --warmUp=0 > "$name.log" 2>&1 || [ ! -e "$name.engine.part" ]; then
        echo "$name cannot be built, see $name.log" >&2
        touch "$name.failed"
        continue
    fi
    mv "$name.engine.part" "$name.engine"
done
for round in ROUNDS; do
    for name in NAMES; do
        if [ -e "$name.failed" ] || [ -e "$name.BATCH-$round.json" ]; then continue; fi
        echo "timing $name, $round of LAST"
        # shellcheck disable=SC2086
        if "$program" --loadEngine="$name.engine" $flags --noDataTransfers --useCudaGraph --warmUp=200 \\
            --duration=2 --exportTimes="$name.part" > "$name.run.log" 2>&1; then
            mv "$name.part" "$name.BATCH-$round.json"
        else
            echo "$name cannot be run, see $name.run.log" >&2
            touch "$name.failed"
        fi
    done
done
for name in NAMES; do
    if [ -e "$name.failed" ] || [ -e "$name.profile.json" ]; then continue; fi
    # shellcheck disable=SC2086
    "$program" --loadEngine="$name.engine" $flags --noDataTransfers --dumpProfile --iterations=50 \\
        --exportProfile="$name.part" > /dev/null 2>&1 && mv "$name.part" "$name.profile.json"
done
echo "done; copy this folder back, and run the same command of trtint8 there"
"""


class MeasurementsNeededError(TrtInt8Error):
    """Engines have to be timed on another machine before a search can continue.

    Attributes:
        directory: The folder with the models and the script.
        engines: How many engines have to be timed.
    """

    def __init__(self, directory: Path, engines: int) -> None:
        super().__init__(
            f"{engines} engines are to be timed: copy '{directory}' to the machine with the GPU, run 'sh "
            "measure.sh' in it, copy it back, and give the same command again"
        )
        self.directory, self.engines = directory, engines


@dataclass(frozen=True)
class _Search:
    """What a folder belongs to.

    Attributes:
        identity: Identifies the model, its ranges, and the shapes of its inputs.
    """

    identity: str


class TrtexecStopwatch:
    """Times engines by the files that ``trtexec`` left in a folder, and asks for those that are missing.

    Args:
        directory: The folder; made where there is none.
        identity: Identifies the search: what all its engines have in common.
        models: Gives the models of a choice, by the names of its layers in FP16: one for a TensorRT that
            chooses types, and one with types in the graph.
        nodes: Names of the ONNX nodes whose times are asked for.
        key: Gives the name of a choice.
        first: The choice that is timed again beside all others, so that drift cancels.
        gpu: What the GPU is to be, as a part of its name; any one where None.

    Raises:
        BuildError: The folder is of another search, or the GPU another one.
        OutputError: The folder cannot be written.
    """

    source: Source = "measured there"

    def __init__(
        self,
        directory: str | os.PathLike[str],
        identity: str,
        models: Callable[[frozenset[str]], tuple[ir.Model, ir.Model]],
        nodes: Collection[str],
        key: Callable[[frozenset[str]], str],
        first: frozenset[str],
        gpu: str | None = None,
    ) -> None:
        self._directory, self._models, self._nodes, self._key = Path(directory), models, nodes, key
        self._first = key(first)
        self._directory.mkdir(parents=True, exist_ok=True)
        place = self._directory / _IDENTITY
        if not place.exists():
            write_atomically(check_writable(place), records.render(_Search(identity)))
        elif _read_record(place).identity != identity:
            raise BuildError(
                f"'{directory}' holds engines of another model, or of other ranges or shapes; give another "
                "folder, or remove it"
            )
        self.gpu = self._seen_gpu() or gpu or "another machine"
        if gpu is not None and self._seen_gpu() and _plain(gpu) not in _plain(self.gpu):
            raise BuildError(f"the engines in '{directory}' were timed on '{self.gpu}', and not on {gpu}")

    def time(self, choices: Sequence[frozenset[str]]) -> list[Timing | None]:
        """Reads the times of some choices; see :class:`trtint8.tuning.stopwatch.Stopwatch`.

        Raises:
            BuildError: A file is damaged.
            MeasurementsNeededError: Some are not timed yet; their models are in the folder now.
            OutputError: A model cannot be written.

        Warns:
            UserWarning: An engine could not be built or run, so that it drops out.
        """
        names = {self._key(kept): kept for kept in choices}
        missing = [name for name in names if not self._is_timed(name)]
        if missing:
            for name in missing:
                for form, model in zip(("weak", "typed"), self._models(names[name]), strict=True):
                    save_model(model, self._directory / f"{name}.{form}.onnx")
            self._write_script(missing)
            raise MeasurementsNeededError(self._directory, len(missing))
        return [self._timing(name) for name in names]

    def _is_timed(self, name: str) -> bool:
        return self._path(name, "failed").exists() or self._batch(name) is not None

    def _batch(self, name: str) -> int | None:
        """The run of the script that has timed an engine in all its rounds; None where none has."""
        for path in sorted(self._directory.glob(f"{name}.*-{_ROUNDS}.json")):
            batch = int(path.name.split(".")[1].split("-")[0])
            if all(self._path(name, f"{batch}-{number}.json").exists() for number in range(1, _ROUNDS + 1)):
                return batch
        return None

    def _times(self, name: str, batch: int) -> list[float]:
        """The median seconds of every round."""
        paths = (self._path(name, f"{batch}-{number}.json") for number in range(1, _ROUNDS + 1))
        return [statistics.median(read_times(path)) for path in paths]

    def _path(self, name: str, ending: str) -> Path:
        return self._directory / f"{name}.{ending}"

    def _write_script(self, names: Sequence[str]) -> None:
        begun = {path.name.split(".")[1].split("-")[0] for path in self._directory.glob("*.*-*.json")}
        text = _SCRIPT.replace("NAMES", " ".join(dict.fromkeys([self._first, *names])))
        text = text.replace("BATCH", str(len(begun) + 1)).replace("LAST", str(_ROUNDS))
        text = text.replace("ROUNDS", " ".join(map(str, range(1, _ROUNDS + 1))))
        write_atomically(check_writable(self._directory / "measure.sh"), text.encode())

    def _timing(self, name: str) -> Timing | None:
        batch = self._batch(name)
        if batch is None:
            warn_user(f"the engine '{name}' drops out of the search: see the logs in '{self._directory}'")
            return None
        times = self._times(name, batch)
        if name != self._first and (begun := self._batch(self._first)) is not None:
            usual = statistics.median(self._times(self._first, begun))
            beside = self._times(self._first, batch)
            times = [usual * time / other for time, other in zip(times, beside, strict=True)]
        profile, layers = self._path(name, "profile.json"), self._path(name, "layers.json")
        report = _report(layers) if layers.exists() else None
        seconds = read_profile(profile) if profile.exists() else {}
        return Timing(
            statistics.median(times),
            min(times),
            max(times),
            seconds_of_nodes(seconds, self._nodes, report),
        )

    def _seen_gpu(self) -> str:
        for log in sorted(self._directory.glob("*.log")):
            if found := re.search(r"Selected Device: (.+)", log.read_text(errors="replace")):
                return found[1].strip()
        return ""


def read_times(path: Path) -> list[float]:
    """Reads what ``trtexec --exportTimes`` wrote.

    Returns:
        The seconds of computation of every inference.

    Raises:
        BuildError: The file is damaged, empty, or of another program.
    """
    times = [entry.get("computeMs") for entry in _entries(path)]
    seconds = [time / 1e3 for time in times if isinstance(time, (int, float)) and time > 0]
    if not seconds or len(seconds) < len(times):
        raise BuildError(f"'{path}' is no file of 'trtexec --exportTimes'; measure again")
    return seconds


def read_profile(path: Path) -> dict[str, float]:
    """Reads what ``trtexec --exportProfile`` wrote.

    Returns:
        The name of each layer to its mean time in seconds.

    Raises:
        BuildError: The file is damaged, empty, or of another program.
    """
    seconds: dict[str, float] = {}
    for entry in _entries(path):
        name, time = entry.get("name"), entry.get("averageMs")
        if isinstance(name, str) and isinstance(time, (int, float)) and time >= 0:
            seconds[name] = seconds.get(name, 0.0) + time / 1e3
        elif "count" not in entry:
            raise BuildError(f"'{path}' is no file of 'trtexec --exportProfile'; measure again")
    if not seconds:
        raise BuildError(f"'{path}' names no layer; measure again")
    return seconds


def _entries(path: Path) -> Iterator[dict[str, object]]:
    with records.reading(f"the times '{path}'", BuildError, "; measure again"):
        document = records.parse(records.read_bytes(path, _MOST_BYTES))
    if not isinstance(document, list) or not all(isinstance(entry, dict) for entry in document):
        raise BuildError(f"'{path}' is no list of times, as trtexec writes it; measure again")
    yield from document


def _report(path: Path) -> LayerReport | None:
    with records.reading(f"the layers '{path}'", BuildError, "; measure again"):
        return parse_inspection(records.decode_text(records.read_bytes(path, _MOST_BYTES), "replace"))


def _read_record(path: Path) -> _Search:
    with records.reading(f"'{path}'", BuildError, "; remove its folder, and measure again"):
        return records.to_record(records.read(path), _Search)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
