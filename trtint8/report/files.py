"""Finds what a report can be made of in a folder, or among the files that were named."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from calibrators import records
from calibrators.checks import check_path
from calibrators.errors import Argument, EngineError, ModelError, TableError
from calibrators.files import exists, is_file, is_folder
from calibrators.tables.formats.json import FORMAT as TABLE_FORMAT
from calibrators.tables.formats.tensorrt_cache import looks_like_cache
from calibrators.tables.table import CalibrationTable
from trtint8.auditing.results import Audit, parse_audit
from trtint8.engine.file import EngineInfo, read_engine_info, sidecar_path
from trtint8.engine.qdq import load_engine_qdq
from trtint8.engine.table import table_file_of
from trtint8.models.model import Model, load_model
from trtint8.report.json_files import (
    parse_accuracy,
    parse_benchmark,
    parse_printed_tuning,
    parse_tuning_log,
)
from trtint8.report.own_table import was_not_used
from trtint8.runtime.benchmark import Benchmarks
from trtint8.sensitivity.results import FORMAT as SENSITIVITY_FORMAT
from trtint8.sensitivity.results import Sensitivity
from trtint8.tuning.tune import TuningLog
from trtint8.validation.accuracy import Accuracy

#: How engines are called; NVIDIA's tools use either.
_ENGINES = (".engine", ".plan")

_ONNX, _QDQ = ".onnx", ".qdq.onnx"

_CACHE = ".cache"

#: Kinds of JSON that do not name their format to the fields by which they are recognized.
_FIELDS = {
    "accuracy": {"judged", "measures"},
    "audit": {"gpu", "engines", "verdict"},
    "tuning": {"command", "float_cost", "trials"},
    "tuned": {"files", "accuracy", "float_cost", "trials"},
    "bench": {"gpu", "reports"},
}

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
            ``tuning``, and ``tuned`` for what `trtint8 tune --json` prints) to its file.
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

    def qdq_model(self) -> Model | None:
        """Loads the Q/DQ model; None where there is none.

        Raises:
            EngineError: It is not the one that the engine was built from.
            ModelError: It is unusable.
        """
        path = self.paths.get("qdq")
        if path is None:
            return None
        return load_engine_qdq(path, self.engine) if self.engine else load_model(path)

    @property
    def stem(self) -> str:
        """What the files are called, without their endings."""
        name = next(iter(self.paths.values())).name
        ending = next((ending for ending in _ENDINGS if name.endswith(ending)), Path(name).suffix)
        return name.removesuffix(ending)


@dataclass(frozen=True)
class _File:
    """A file of a kind that a report knows.

    Attributes:
        path: The file.
        kind: What it is, as in :attr:`ReportFiles.paths`.
        document: The JSON that it holds; None for kinds whose readers take a path.
    """

    path: Path
    kind: str
    document: object = None


_T = TypeVar("_T")


def find_report_files(sources: Sequence[str | os.PathLike[str]]) -> ReportFiles:
    """Finds files in folders and among those that are named, and reads those whose kind it recognizes.

    Args:
        sources: A folder that `trtint8 build` wrote to; an engine, with which the files beside it that have
            its name are read; or any of the files.

    Returns:
        What is there. A table that was not named is left out where the engine was not built with it.

    Raises:
        TableError: Nothing is there, something is missing or malformed, or there are two of a kind.
        EngineError: An engine and its sidecar do not belong together.
        ModelError: A model is damaged.
    """
    files: dict[str, _File] = {}
    for file in _files(sources):
        first = files.setdefault(file.kind, file)
        if first is not file:
            raise TableError(
                f"there are two files of the kind '{file.kind}', '{first.path}' and '{file.path}'; a report "
                "is about one model: name the files, or one engine, instead of the folder"
            )
    if not files:
        listed = ", ".join(f"'{os.fspath(source)}'" for source in sources)
        raise TableError(
            f"nothing to report on in {listed}; give what 'trtint8 build' wrote: a folder, or an engine"
        )
    paths = {kind: files[kind].path for kind in _ORDER if kind in files}

    def parsed(kind: str, parse: Callable[[object, str], _T]) -> _T | None:
        return parse(files[kind].document, str(paths[kind])) if kind in files else None

    accuracy, tuning = parsed("accuracy", parse_accuracy), parsed("tuning", parse_tuning_log)
    printed = parsed("tuned", parse_printed_tuning)
    if printed:  # files of their own come first: the log holds the same, an accuracy may be of other samples
        accuracy, tuning = accuracy or printed.accuracy, tuning or printed.log
    found = ReportFiles(
        paths,
        read_engine_info(paths["engine"]) if "engine" in paths else None,
        CalibrationTable.load(paths["table"]) if "table" in paths else None,
        Sensitivity.load(paths["sensitivity"]) if "sensitivity" in paths else None,
        accuracy,
        parsed("bench", parse_benchmark),
        parsed("audit", parse_audit),
        tuning,
    )
    named = {Path(source).resolve() for source in sources}
    return found if "table" in paths and paths["table"].resolve() in named else _without_unused_table(found)


def _without_unused_table(files: ReportFiles) -> ReportFiles:
    """The same files, without a table of an earlier build that the engine was not built with."""
    if files.table is None or files.engine is None or files.engine.table_fingerprint is not None:
        return files
    try:
        qdq = files.qdq_model()
    except (EngineError, ModelError):  # whoever needs the model says so
        qdq = None
    if not was_not_used(files.table, files.engine, qdq):
        return files
    paths = {kind: path for kind, path in files.paths.items() if kind != "table"}
    return replace(files, paths=paths, table=None)


_ORDER = ("engine", "qdq", "table", "sensitivity", "accuracy", "audit", "bench", "tuning", "tuned")


def _files(sources: Sequence[str | os.PathLike[str]]) -> Iterator[_File]:
    """Each file that a report knows, once, in the order of names within a folder."""
    files: Iterable[_File | None]
    seen: set[Path] = set()
    for source in sources:
        check_path("a folder or file to report on", source, TableError)
        path = Path(source)
        if not exists(path):
            raise TableError(f"there is no '{path}'; give a folder that 'trtint8 build' wrote to, or files")
        if is_folder(path):
            files = _in_folder(path)
        elif path.suffix in _ENGINES:
            beside = sorted(path.parent.glob(f"{_escaped(path.stem)}.*"))
            own = (file for file in beside if _belongs(file.name.removeprefix(path.stem)))
            known = map(_recognized, filter(is_file, (path, *own)))
            files = (file for file in known if file and not _is_another_table(file, path))
        else:
            files = [_named(path)]
        for file in files:
            if file and file.path.resolve() not in seen:
                seen.add(file.path.resolve())
                yield file


def _named(path: Path) -> _File:
    """A file that the user named, and what it is.

    Raises:
        TableError: It is nothing that a report knows.
        ModelError: It is a damaged model.
    """
    file = _recognized(path)
    if file is None and path.suffix == _ONNX:
        if not load_model(path).is_quantized:
            raise TableError(
                f"'{path}' holds no Q/DQ pairs; give the quantized model here, and the float model of a "
                f"report as {Argument('model')}"
            )
        file = _File(path, "qdq")
    elif file is None and path.suffix == _CACHE:
        file = _File(path, "table")
    if file is None:
        raise TableError(
            f"'{path}' is no file that a report knows; give an engine, a Q/DQ model in ONNX, a table in "
            "trtint8's own form, a TensorRT calibration cache, or the JSON of 'trtint8 sensitivity', "
            "'validate', 'audit', 'bench' or 'tune'"
        )
    return file


def _in_folder(folder: Path) -> list[_File]:
    """The files in a folder that a report knows.

    Beside an engine stand its own table and Q/DQ model, under names of their own. Without an engine a model
    is also recognized by its pairs, and a calibration cache is a table, unless there are such names.
    """
    paths = _listed(folder)
    files = [file for file in map(_recognized, paths) if file]
    kinds = {file.kind for file in files}
    if not kinds & {"engine", "qdq"}:
        files += [_File(path, "qdq") for path in paths if path.suffix == _ONNX and _holds_pairs(path)]
    if not kinds & {"engine", "table"}:
        files += [_File(path, "table") for path in paths if path.suffix == _CACHE and _is_cache(path)]
    return files


def _holds_pairs(path: Path) -> bool:
    """Whether a file is a model with Q/DQ pairs; a damaged one is none."""
    try:
        return load_model(path).is_quantized
    except ModelError:
        return False


def _is_cache(path: Path) -> bool:
    """Whether a file is a calibration cache; TensorRT has caches of other kinds."""
    try:
        return looks_like_cache(records.read_bytes(path))
    except (OSError, records.RecordError):
        return False


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


def _is_another_table(file: _File, engine: Path) -> bool:
    """Whether a file beside an engine is a table, and not the one that was written with the engine.

    'net.json' may be what 'net.engine' was built from.
    """
    own = table_file_of(engine)
    return file.kind == "table" and file.path != own and is_file(own)


def _escaped(name: str) -> str:
    """A name that a pattern takes literally."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def _recognized(path: Path) -> _File | None:
    """A file and what it is by its name or as JSON; None for anything else."""
    if path.name.endswith(_QDQ):
        return _File(path, "qdq")
    if path.suffix in _ENGINES:
        return _File(path, "engine")
    document = _read(path) if path.suffix == ".json" else None
    if not isinstance(document, dict):
        return None
    for kind, format_name in (("table", TABLE_FORMAT), ("sensitivity", SENSITIVITY_FORMAT)):
        if document.get("format") == format_name:
            return _File(path, kind)
    if {"quantized", "layers", "converged"} <= document.keys():
        raise TableError(
            f"'{path}' is what 'trtint8 sensitivity --json' prints; measure again with -o, which writes "
            "the file that a report reads, or leave it out"
        )
    for kind, fields in _FIELDS.items():
        if fields <= document.keys():
            return _File(path, kind, document)
    return None


def _read(path: Path) -> object:
    try:
        return records.read(path)
    except OSError as error:
        raise TableError(f"cannot read '{path}': {error.strerror or error}") from error
    except records.RecordError as error:
        raise TableError(f"'{path}' is not JSON ({error}); make it again, or leave it out") from error
