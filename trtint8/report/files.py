"""Finds what a report is made of: files in a folder or named ones, and which models they belong to.

It reads back what `trtint8 validate`, `bench` and `tune` print as JSON, and the log of `trtint8 tune`. It
also finds the float model beside a quantized one, and whether a table is that of an engine.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from calibrators import records
from calibrators.checks import FilePath, check_path
from calibrators.data.inputs import CalibratedInputs
from calibrators.errors import Argument, CalibrationDataError, EngineError, ModelError, TableError
from calibrators.files import exists, is_file, is_folder
from calibrators.tables.choice import QMAX
from calibrators.tables.formats.json import FORMAT as TABLE_FORMAT
from calibrators.tables.formats.tensorrt_cache import looks_like_cache
from calibrators.tables.table import CalibrationTable
from trtint8.auditing.results import Audit
from trtint8.engine.file import EngineInfo, read_engine_info, read_sidecar, sidecar_path, table_file_of
from trtint8.engine.qdq import load_engine_qdq
from trtint8.models.graph import is_constant, read_constant
from trtint8.models.model import (
    FLOAT_MODEL,
    Model,
    calibration_of,
    inputs_of,
    load_model,
    warnings_of,
)
from trtint8.runtime.bench import Benchmarks
from trtint8.sensitivity.results import FORMAT as SENSITIVITY_FORMAT
from trtint8.sensitivity.results import Sensitivity
from trtint8.tuning.tune import TuningLog
from trtint8.validation.accuracy import NOT_IN_INT8, VALIDATED, Accuracy
from trtint8.validation.fidelity import Fidelity
from trtint8.validation.tensors import ComparedTensor

#: How engines are called; NVIDIA's tools use either.
_ENGINES = (".engine", ".plan")

_ONNX, _QDQ = ".onnx", ".qdq.onnx"

_CACHE = ".cache"

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
        sensitivity: The cost of quantizing each layer.
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
    def called(self) -> str:
        """What the model is called: INT8, or float where no layer of it is in INT8."""
        if self.engine:
            return VALIDATED if self.engine.in_int8 else NOT_IN_INT8
        return self.accuracy.name if self.accuracy else VALIDATED

    @property
    def calibrated_inputs(self) -> CalibratedInputs | None:
        """What was fed during the calibration; None where no file says it."""
        if self.engine and self.engine.calibrated_inputs:
            return self.engine.calibrated_inputs
        if self.table and self.table.provenance.inputs:
            return self.table.provenance.inputs
        return inputs_of(self.paths["qdq"]) if "qdq" in self.paths else None

    @property
    def warnings(self) -> tuple[str, ...]:
        """That a budget is missed, what was warned of, with notes, and figures that no good network has."""
        judged = self.accuracy or self.tuning
        judgement = judged.judgement if judged else None
        said = [] if judgement is None or judgement.fits else list(judgement.notes[:1])
        kept = (self.table, self.engine, self.accuracy, self.sensitivity, self.audit, self.tuning)
        said += [warning for one in kept if one is not None for warning in one.warnings]
        of_pairs = warnings_of(self.paths["qdq"]) if "qdq" in self.paths else ()
        return tuple(dict.fromkeys((*said, *of_pairs, *_poor_figures(self.accuracy))))

    @property
    def read(self) -> tuple[Path, ...]:
        """All files that were read: an engine's sidecar as well."""
        sidecars = [sidecar_path(self.paths["engine"])] if "engine" in self.paths else []
        return (*self.paths.values(), *sidecars)

    def judged_another(self, qdq_fingerprint: str | None) -> tuple[str, ...]:
        """Says, as a warning does, that the accuracy is neither of the engine nor of its Q/DQ model.

        Args:
            qdq_fingerprint: Fingerprint of the Q/DQ model; None where there is none, or the engine names it.
        """
        of_engine = (self.engine.qdq_fingerprint, self.engine.plan_sha256) if self.engine else ()
        own = [one for one in (qdq_fingerprint, *of_engine) if one]
        judged = self.accuracy and self.accuracy.judged_fingerprint
        if not judged or not own or judged in own:
            return ()
        than = "engine" if self.engine else "Q/DQ model"
        said = (
            f"the accuracy is of another model or build than the {than}: their numbers do not belong together"
        )
        return (said,)

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


def refuse_given(given: Mapping[str, object], needed: str) -> None:
    """Refuses parameters that say how something is done which is not done at all.

    Args:
        given: The parameters by name; None or False where they were not given.
        needed: The name of the parameter without which they have no effect.

    Raises:
        CalibrationDataError: One was given.
    """
    for name, value in given.items():
        if value is not None and value is not False:
            raise CalibrationDataError(
                f"{Argument(name, '...')} has no effect without {Argument(needed, '...')}; leave it out"
            )


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


#: The SQNR below which outputs have little to do with those of FP32, in decibels.
_POOR_DB = 20.0


def _poor_figures(accuracy: Accuracy | None) -> Iterator[str]:
    """Sentences about outputs that are far from those of FP32."""
    for name, side in ({accuracy.name: accuracy, **accuracy.also} if accuracy else {}).items():
        for output in side.outputs:
            if output.sqnr_db < _POOR_DB:
                yield (
                    f"the output '{output.name}' of {name} has an SQNR of {output.sqnr_db:.1f} dB: "
                    f"below {_POOR_DB:g} dB the difference from FP32 is more than a tenth of the signal"
                )


#: What has an SQNR and a largest error.
_Compared = TypeVar("_Compared", Fidelity, ComparedTensor)


def find_report_files(sources: Sequence[FilePath]) -> ReportFiles:
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
    for file in _without_other_tables(list(_files(sources)), sources):
        first = files.setdefault(file.kind, file)
        if first is not file:
            raise TableError(
                f"there are two files of the kind '{file.kind}', {_told(first)} and {_told(file)}; a report "
                "is about one model: name one of them and the other files of its model, instead of the folder"
            )
    if not files:
        listed = ", ".join(f"'{os.fspath(source)}'" for source in sources)
        raise TableError(
            f"nothing to report on in {listed}; give what 'trtint8 build' wrote: a folder, or an engine"
        )
    paths = {kind: files[kind].path for kind in _ORDER if kind in files}
    documents = [file for file in files.values() if file.kind in _DOCUMENTS]
    read = {file.kind: parse(file.kind, file.document, str(file.path)) for file in documents}
    # Files of their own come first: the log holds the same, an accuracy may be of other samples.
    accuracy, tuning = read.get("tuned", (None, None))
    found = ReportFiles(
        paths,
        read_engine_info(paths["engine"]) if "engine" in paths else None,
        CalibrationTable.load(paths["table"]) if "table" in paths else None,
        Sensitivity.load(paths["sensitivity"]) if "sensitivity" in paths else None,
        read.get("accuracy", accuracy),
        read.get("bench"),
        read.get("audit"),
        read.get("tuning", tuning),
    )
    named = {Path(source).resolve() for source in sources}
    return found if "table" in paths and paths["table"].resolve() in named else _without_unused_table(found)


def _told(file: _File) -> str:
    """The path of a file; of an audit with the GPU that tells it from another one of the model."""
    gpu = parse(file.kind, file.document, str(file.path)).gpu if file.kind == "audit" else None
    return f"'{file.path}'" + (f" for {gpu.name}" if gpu else "")


def _without_other_tables(files: Sequence[_File], sources: Sequence[FilePath]) -> Sequence[_File]:
    """The files, and of several tables in a folder only the one that the engine or the Q/DQ model has."""
    named = {Path(source).resolve() for source in sources}
    tables = [file for file in files if file.kind == "table"]
    made = {file.kind: file.path for file in reversed(files)}
    if len(tables) < 2 or any(file.path.resolve() in named for file in tables):
        return files
    wanted = read_sidecar(made["engine"]).table_fingerprint if "engine" in made else None
    qdq = load_model(made["qdq"]) if "qdq" in made and not wanted else None
    own: dict[str, _File] = {}  # copies are one
    for file in tables:
        table = CalibrationTable.load(file.path)
        if table.fingerprint == wanted or (qdq is not None and has_ranges_of(qdq, table)):
            own.setdefault(table.fingerprint, file)
    return [file for file in files if file.kind != "table" or file in own.values()] if own else files


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


def _files(sources: Sequence[FilePath]) -> Iterator[_File]:
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
            known = map(_recognized, filter(_is_written, (path, *own)))
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
    except ModelError as error:
        records.raise_if_unreadable(error)
        return False


def _is_cache(path: Path) -> bool:
    """Whether a file is a calibration cache; TensorRT has caches of other kinds."""
    with records.reading(f"'{path}'", TableError), contextlib.suppress(records.RecordError):
        return looks_like_cache(records.read_bytes(path))
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
    return [path for path in paths if _is_written(path)]


def _is_written(path: Path) -> bool:
    """Whether a file is there; an empty JSON is what a shell has made for a verb that has yet to print."""
    return is_file(path) and not (path.suffix == ".json" and path.stat().st_size == 0)


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
            f"'{path}' is what 'trtint8 sensitivity --json' prints, and a report reads what 'trtint8 "
            "sensitivity -o' and Sensitivity.save write; give that, or leave it out"
        )
    for kind, one in _DOCUMENTS.items():
        if one.fields <= document.keys():
            return _File(path, kind, document)
    return None


def _read(path: Path) -> object:
    with (
        records.reading(f"'{path}'", TableError),
        records.decoding(f"'{path}' is not JSON", TableError, "make it again, or leave it out"),
    ):
        return records.read(path)


def _accuracy_in(document: object) -> Accuracy:
    """A comparison as `trtint8 validate --json` prints it.

    JSON has no infinities: an SQNR that is null is infinite where the outputs were equal, and NaN where an
    output of a model had one. Other metrics are null where they are NaN.
    """
    return _with_levels(records.to_record(document, Accuracy, numbers_as_text=True, null_as_nan=True))


def _tuned_in(document: object) -> tuple[Accuracy, TuningLog]:
    """The tuned model beside FP32, on samples that the search did not use, and what the search tried."""
    fields = document if isinstance(document, dict) else {}
    files = fields.get("files")
    log = {**fields, "command": files.get("command") if isinstance(files, dict) else None}
    tuning = records.to_record(log, TuningLog, numbers_as_text=True, null_as_nan=True)
    return _accuracy_in(fields.get("accuracy")), tuning


def _with_levels(accuracy: Accuracy) -> Accuracy:
    """A comparison with infinite SQNRs where null stood for them: the largest error says which it was."""
    return replace(
        accuracy,
        outputs=tuple(map(_with_level, accuracy.outputs)),
        tensors=accuracy.tensors
        and replace(accuracy.tensors, tensors=tuple(map(_with_level, accuracy.tensors.tensors))),
        also={name: _with_levels(other) for name, other in accuracy.also.items()},
    )


def _with_level(output: _Compared) -> _Compared:
    if not math.isnan(output.sqnr_db) or math.isnan(output.max_error):
        return output
    return replace(output, sqnr_db=-math.inf if output.max_error else math.inf)


@dataclass(frozen=True)
class _Document:
    """JSON that does not name its format.

    Attributes:
        fields: The fields by which it is recognized.
        what: What it is, in words.
        again: What makes it again, in words.
        read: Reads it.
    """

    fields: frozenset[str]
    what: str
    again: str
    read: Callable[[object], Any]


_DOCUMENTS = {
    "accuracy": _Document(
        frozenset({"judged", "measures"}),
        "output of 'trtint8 validate --json'",
        "validate again",
        _accuracy_in,
    ),
    "audit": _Document(
        frozenset({"gpu", "engines", "verdict"}),
        "output of 'trtint8 audit --json'",
        "audit again",
        lambda document: records.to_record(document, Audit),
    ),
    "tuning": _Document(
        frozenset({"command", "float_cost", "trials"}),
        "log of 'trtint8 tune'",
        "tune again",
        lambda document: records.to_record(document, TuningLog, numbers_as_text=True),
    ),
    "tuned": _Document(
        frozenset({"files", "accuracy", "float_cost", "trials"}),
        "output of 'trtint8 tune --json'",
        "tune again",
        _tuned_in,
    ),
    "bench": _Document(
        frozenset({"gpu", "reports"}),
        "output of 'trtint8 bench --json'",
        "measure again",
        lambda document: records.to_record(document, Benchmarks),
    ),
}


def parse(kind: str, document: object, source: str) -> Any:
    """Reads what a verb prints or writes as JSON.

    Args:
        kind: ``accuracy``, ``audit``, ``bench``, ``tuning``, or ``tuned``, which gives an accuracy and a log.
        document: The parsed JSON.
        source: What to call it in messages.

    Raises:
        TableError: A field is missing, has the wrong type or exceeds its limits.
    """
    own = _DOCUMENTS[kind]
    with records.decoding(f"'{source}' is no {own.what}", TableError, own.again):
        return own.read(document)


def find_origins(files: ReportFiles, model: Model | None, qdq: Model | None) -> dict[str, str | None]:
    """Finds what the models that the files name were made from: with Q/DQ pairs, or with changed weights.

    Args:
        files: The files to report on, with their contents.
        model: The FP32 model; None where it was not given.
        qdq: The Q/DQ model; None where there is none.

    Returns:
        Fingerprints of models to those of the float models that they were made from; None where that is not
        known.
    """
    engine, table = files.engine, files.table
    float_model = qdq.graph_model.metadata_props.get(FLOAT_MODEL) if qdq else None
    origins: dict[str, str | None] = {}
    if qdq:
        origins[qdq.fingerprint] = float_model
    if model:
        origins[model.fingerprint] = model.graph_model.metadata_props.get(FLOAT_MODEL, model.fingerprint)
    if engine:
        was_qdq = engine.model_fingerprint == engine.qdq_fingerprint
        origins[engine.model_fingerprint] = float_model or (None if was_qdq else engine.model_fingerprint)
    # The table may be of changed weights, as `trtint8 tune` writes it.
    if table and table.provenance.model and qdq and has_ranges_of(qdq, table):
        origins[table.provenance.model] = float_model
    return origins


def find_table_model(files: ReportFiles, model: Model | None, path: str | None) -> str | None:
    """Finds the float model that the table fits: `trtint8 tune` writes one whose weights it has changed.

    Args:
        files: The files to report on, with their contents.
        model: The FP32 model; None where it was not given.
        path: The path of the FP32 model.

    Returns:
        ``path`` where nothing says that the table is of another model; else the name of the float model
        beside the table, or None where no file there is this model.
    """
    source = files.table.provenance if files.table else None
    if source is None or source.model is None:
        return path
    if model is not None and model.fingerprint in (source.model, source.cut_from):
        return path
    for beside in sorted(files.paths["table"].parent.glob("*.float.onnx")):
        with contextlib.suppress(ModelError):  # a damaged one is not that model
            if load_model(beside).fingerprint == source.model:
                return beside.name
    return None


#: By how much a scale may differ from that of its range: float16 resolves half a thousandth.
_TOLERANCE = 1e-3


def was_not_used(table: CalibrationTable | None, engine: EngineInfo | None, qdq: Model | None) -> bool:
    """Whether an engine was built without a table, and its Q/DQ model was not made with it, either.

    A table of an earlier build may still stand beside an engine that was built again, from a Q/DQ model.

    Args:
        table: The table; None where there is none.
        engine: What the engine's sidecar says; None where there is no engine.
        qdq: The Q/DQ model; None where there is none.
    """
    if table is None or engine is None or engine.table_fingerprint is not None:
        return False
    return qdq is None or not has_ranges_of(qdq, table)


def has_ranges_of(qdq: Model, table: CalibrationTable) -> bool:
    """Whether a Q/DQ model has its ranges from a table.

    The same samples alone do not tell: several networks are often calibrated with them.
    """
    data, samples = table.provenance.data, table.provenance.samples
    calibration = (data, samples) if data and samples else None
    return calibration_of(qdq.graph_model) == calibration and _has_scales_of(table, qdq)


def _has_scales_of(table: CalibrationTable, qdq: Model) -> bool:
    """Whether most of a model's activations have scales of a table; some ranges may be set by hand since.

    The input has the same scale in every network that was calibrated with the same samples.
    """
    # What is zero in all samples has the scale of the range 1.
    ranges = np.array([amax or 1.0 for amax in table.amax.values()], np.float64)
    found = [
        read_constant(node.inputs[1])
        for node in qdq.graph_model.graph
        if node.op_type == "QuantizeLinear" and not is_constant(node.inputs[0])
    ]
    scales = np.array([scale.item() for scale in found if scale is not None and scale.size == 1], np.float64)
    known = np.isclose(scales[:, None] * QMAX, ranges, rtol=_TOLERANCE, atol=0).any(axis=1)
    return not scales.size or bool(known.mean() > 0.5)


def load_original(path: FilePath) -> Model:
    """Reads the model that a report calls FP32.

    Args:
        path: The file that was given as float model.

    Raises:
        ModelError: The model is unusable, or holds Q/DQ pairs.
    """
    model = load_model(path)
    if model.is_quantized:
        raise ModelError(
            f"'{model.name}' holds Q/DQ pairs, and a report shows it as FP32; give the float model as "
            f"{Argument('model')}, and the quantized one among the files to report on"
        )
    return model
