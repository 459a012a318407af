"""Finds what a report can be made of in a folder, or among the files that were named."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from calibrators import records
from calibrators.errors import TableError
from calibrators.files import exists, is_file, is_folder
from calibrators.tables.formats.json import FORMAT as TABLE_FORMAT
from calibrators.tables.table import CalibrationTable
from trtint8.auditing.results import Audit, parse_audit
from trtint8.engine.file import EngineInfo, read_engine_info, sidecar_path
from trtint8.engine.table import table_file_of
from trtint8.report.json_files import parse_accuracy, parse_benchmark, parse_tuning_log
from trtint8.runtime.benchmark import Benchmarks
from trtint8.sensitivity.results import FORMAT as SENSITIVITY_FORMAT
from trtint8.sensitivity.results import Sensitivity
from trtint8.tuning.tune import TuningLog
from trtint8.validation.accuracy import Accuracy

#: How engines are called; NVIDIA's tools use either.
_ENGINES = (".engine", ".plan")

_QDQ = ".qdq.onnx"

#: What follows a model's name in the names of its files.
_ENDINGS = (
    *_ENGINES,
    _QDQ,
    ".table.json",
    ".sensitivity.json",
    ".accuracy.json",
    ".audit.json",
    ".bench.json",
    ".tuning.json",
)


@dataclass(frozen=True)
class ReportFiles:
    """The files that a report is made of, with their contents; None where a file is missing.

    Attributes:
        paths: Kind (``engine``, ``qdq``, ``table``, ``sensitivity``, ``accuracy``, ``audit``, ``bench``,
            ``tuning``) to its file.
        engine: What the engine's sidecar says.
        table: The calibration table.
        sensitivity: What the quantization of every layer costs.
        accuracy: INT8 beside FP32.
        audit: FP32, FP16 and INT8 engines side by side, with estimated times.
        bench: The measured latencies and throughputs.
        tuning: What `trtint8 tune` tried.
    """

    paths: dict[str, Path]
    engine: EngineInfo | None = None
    table: CalibrationTable | None = None
    sensitivity: Sensitivity | None = None
    accuracy: Accuracy | None = None
    bench: Benchmarks | None = None
    audit: Audit | None = None
    tuning: TuningLog | None = None

    @property
    def read(self) -> tuple[Path, ...]:
        """All files that were read: an engine's sidecar as well."""
        sidecars = [sidecar_path(self.paths["engine"])] if "engine" in self.paths else []
        return (*self.paths.values(), *sidecars)

    @property
    def stem(self) -> str:
        """What the files are called, without their endings."""
        name = next(iter(self.paths.values())).name
        ending = next((ending for ending in _ENDINGS if name.endswith(ending)), Path(name).suffix)
        return name.removesuffix(ending)


def find_report_files(sources: Sequence[str | os.PathLike[str]]) -> ReportFiles:
    """Finds files in folders and among those that are named, and reads those whose kind it recognizes.

    Args:
        sources: A folder that `trtint8 build` wrote to; an engine, with which the files beside it that have
            its name are read; or any of the files.

    Returns:
        What is there.

    Raises:
        TableError: Nothing is there, something is missing or malformed, or there are two of a kind.
        EngineError: An engine and its sidecar do not belong together.
    """
    kinds: dict[str, Path] = {}
    for path in _files(sources):
        kind = _kind(path)
        if kind is None:
            continue
        if kinds.setdefault(kind, path) != path:
            raise TableError(
                f"there are two files of the kind '{kind}', '{kinds[kind]}' and '{path}'; a report is about "
                "one model: name the files, or one engine, instead of the folder"
            )
    if not kinds:
        listed = ", ".join(f"'{os.fspath(source)}'" for source in sources)
        raise TableError(
            f"nothing to report on in {listed}; give what 'trtint8 build' wrote: a folder, or an engine"
        )
    paths = {kind: kinds[kind] for kind in _ORDER if kind in kinds}
    get = paths.get
    return ReportFiles(
        paths,
        read_engine_info(paths["engine"]) if get("engine") else None,
        CalibrationTable.load(paths["table"]) if get("table") else None,
        Sensitivity.load(paths["sensitivity"]) if get("sensitivity") else None,
        parse_accuracy(_read(paths["accuracy"]), str(paths["accuracy"])) if get("accuracy") else None,
        parse_benchmark(_read(paths["bench"]), str(paths["bench"])) if get("bench") else None,
        parse_audit(_read(paths["audit"]), str(paths["audit"])) if get("audit") else None,
        parse_tuning_log(_read(paths["tuning"]), str(paths["tuning"])) if get("tuning") else None,
    )


_ORDER = ("engine", "qdq", "table", "sensitivity", "accuracy", "audit", "bench", "tuning")


def _files(sources: Sequence[str | os.PathLike[str]]) -> Iterator[Path]:
    """Each file once, in the order of names within a folder."""
    seen: set[Path] = set()
    for source in sources:
        path = Path(source)
        if not exists(path):
            raise TableError(f"there is no '{path}'; give a folder that 'trtint8 build' wrote to, or files")
        if is_folder(path):
            files = _listed(path)
        elif path.suffix in _ENGINES:
            beside = sorted(path.parent.glob(f"{_escaped(path.stem)}.*"))
            own = (file for file in beside if _belongs(file.name.removeprefix(path.stem)))
            files = [file for file in (path, *own) if is_file(file) and not _is_another_table(file, path)]
        elif _kind(path) is None:
            raise TableError(
                f"'{path}' is no file that a report knows; give an engine, a .qdq.onnx, a table, or the JSON "
                "of 'trtint8 sensitivity', 'validate', 'audit', 'bench' or 'tune'"
            )
        else:
            files = [path]
        for file in files:
            if file.resolve() not in seen:
                seen.add(file.resolve())
                yield file


def _listed(folder: Path) -> list[Path]:
    """The files in a folder, in the order of their names."""
    try:
        with os.scandir(folder) as entries:
            paths = sorted(folder / entry.name for entry in entries)
    except OSError as error:
        raise TableError(
            f"cannot read the folder '{folder}': {error.strerror or error}; make it readable, or give another"
        ) from error
    return [path for path in paths if is_file(path)]


def _belongs(ending: str) -> bool:
    """Whether a file beside an engine belongs to it, by what follows the engine's name without its ending.

    'net.table.json' belongs to 'net.engine'; 'net.tuned.table.json' is that of another model, 'net.tuned'.
    """
    return ending == _QDQ or (ending.endswith(".json") and ending.count(".") <= 2)


def _is_another_table(file: Path, engine: Path) -> bool:
    """Whether a file beside an engine is a table, and not the one that was written with the engine.

    'net.json' may be what 'net.engine' was built from.
    """
    own = table_file_of(engine)
    return file != own and is_file(own) and file.suffix == ".json" and _kind(file) == "table"


def _escaped(name: str) -> str:
    """A name that a pattern takes literally."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def _kind(path: Path) -> str | None:
    """What a file is; None for what a report has no use for."""
    if path.name.endswith(_QDQ):
        return "qdq"
    if path.suffix in _ENGINES:
        return "engine"
    if path.suffix != ".json":
        return None
    document = _read(path)
    if not isinstance(document, dict):
        return None
    for kind, format_name in (("table", TABLE_FORMAT), ("sensitivity", SENSITIVITY_FORMAT)):
        if document.get("format") == format_name:
            return kind
    if {"quantized", "layers", "converged"} <= document.keys():
        raise TableError(
            f"'{path}' is what 'trtint8 sensitivity --json' prints; measure again with -o, which writes "
            "the file that a report reads, or leave it out"
        )
    if {"judged", "measures"} <= document.keys():
        return "accuracy"
    if {"gpu", "engines", "verdict"} <= document.keys():
        return "audit"
    if {"command", "float_cost", "trials"} <= document.keys():
        return "tuning"
    return "bench" if {"gpu", "reports"} <= document.keys() else None


def _read(path: Path) -> object:
    try:
        return records.read(path)
    except OSError as error:
        raise TableError(f"cannot read '{path}': {error.strerror or error}") from error
    except records.RecordError as error:
        raise TableError(f"'{path}' is not JSON ({error}); make it again, or leave it out") from error
