"""What a build leaves: the engine, its sidecar, and the models and the table beside it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import onnx_ir as ir

from calibrators import records
from calibrators.checks import PATH_TYPES, FilePath
from calibrators.display.cards import html_table
from calibrators.errors import EngineError, ModelError, OutputError, TableError
from calibrators.files import (
    FilesChangedError,
    Identity,
    check_writable,
    exists,
    identity_of,
    is_file,
    kind_by_ending,
    refuse_overwriting,
    remove_with_others,
    written_together,
)
from calibrators.tables.cache_origin import origin_path, read_origin, refuse_foreign_sidecar
from calibrators.tables.table import CalibrationTable
from trtint8.builder.build import BuiltEngine
from trtint8.builder.config import BuildOptions
from trtint8.engine.file import (
    EngineInfo,
    info_rows,
    info_summary,
    read_sidecar,
    save_engine,
    sha256_of,
    sidecar_path,
    table_file_of,
)
from trtint8.engine.kernels import part_totals
from trtint8.engine.qdq import tensor_specs, tried_shapes
from trtint8.models.graph import modules_of
from trtint8.models.model import Model, ModelSource, inputs_of, load_model, warnings_of
from trtint8.models.samples.joining import takes_joined_samples
from trtint8.models.serialization import fingerprint, save_model
from trtint8.quantization.placement import Cause
from trtint8.tuning.remedies.held_out import Compensation
from trtint8.tuning.stopwatch import Expectation

#: How often the files of a build are written anew because another build of the same output ended meanwhile.
_ATTEMPTS = 10


@dataclass(frozen=True, repr=False)
class BuildResult(records.Result):
    """What :func:`build_int8_engine` made.

    Attributes:
        engine: The engine file; its sidecar is ``<engine>.json``.
        qdq_model: The Q/DQ model that it was built from; None on the implicit route.
        table_file: The calibration table; None where nothing was calibrated.
        info: What the sidecar says.
        table: The calibration table; None where nothing was calibrated.
        warnings: What TensorRT warned of.
        seconds: How long TensorRT built, in seconds.
        float_model: The float model, where it was given as a ``torch.nn.Module``; else None.
        expected: The time of the engine compared with FP16: measured if this machine has the GPU, estimated
            if one compute capability was given, else None.
        rounded: How biases were corrected and weights rounded, or why not. None without samples, and with
            ``rounding=False``.
    """

    engine: Path
    qdq_model: Path | None
    table_file: Path | None
    info: EngineInfo
    table: CalibrationTable | None
    warnings: tuple[str, ...]
    seconds: float
    float_model: Path | None = None
    expected: Expectation | None = None
    rounded: Compensation | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns what ``trtint8 build --json`` prints: what the sidecar says, and the expected time."""
        return {**self.info.to_json(), "expected": records.as_json(self.expected)}

    def __repr__(self) -> str:
        return f"<BuildResult: '{self.engine}', {info_summary(self.info)}>"

    def _repr_html_(self) -> str:
        written = {
            "engine": self.engine,
            "float model": self.float_model,
            "Q/DQ model": self.qdq_model,
            "table": self.table_file,
            "changed weights": self.rounded,
        }
        rows = [(name, str(found)) for name, found in written.items() if found is not None]
        rows += [*info_rows(self.info), ("build", f"{self.seconds:.1f} s")]
        rows += [("to expect", self.expected.sentence)] if self.expected else []
        return html_table(info_summary(self.info), ("what", "found"), rows, self.warnings)


@dataclass(frozen=True)
class BuiltFiles:
    """A built engine and what belongs beside it.

    Attributes:
        built: The engine.
        graph_model: The model that it was built from.
        wanted: Names of the nodes that were meant to run in INT8.
        table: The calibration table; None where nothing was calibrated.
        options: How it was built.
        shared_scales: Groups of scales in the Q/DQ model that are equal and must stay equal, by name.
        float_nodes: Names of the nodes that multiply matrices and stay in float, each with the reason.
        float_causes: Names of these nodes, each with the cause.
        implicit: Whether it was built on the implicit route, where there is no Q/DQ model.
        rounded: How biases were corrected and weights rounded, or why not; None where it is not decided.
    """

    built: BuiltEngine
    graph_model: ir.Model
    wanted: tuple[str, ...]
    table: CalibrationTable | None
    options: BuildOptions
    shared_scales: tuple[tuple[str, ...], ...] = ()
    float_nodes: tuple[tuple[str, str], ...] = ()
    float_causes: Mapping[str, Cause] = field(default_factory=dict)
    implicit: bool = False
    rounded: Compensation | None = None

    def save(
        self,
        output: Path,
        loaded: Model,
        source: ModelSource,
        tail: ir.Model | None = None,
        warnings: Sequence[str] = (),
    ) -> BuildResult:
        """Writes all files, or none, and removes those of earlier builds that do not fit the new engine.

        Args:
            output: The engine file; the others stand beside it.
            loaded: The model that was given.
            source: What it was given as: one in memory is written, and one with Q/DQ pairs that was read from
                its place is not written again.
            tail: The rest of a model of which the engine is the first part; None where it is all of it.
            warnings: What was warned of until now.

        Returns:
            What was written.

        Raises:
            OutputError: A file cannot be written.
        """
        built, table, graph = self.built, self.table, self.graph_model.graph
        qdq_file = None if self.implicit else qdq_file_of(output)
        table_file = table_file_of(output) if table else None
        float_file = float_file_of(output) if isinstance(source, Model) else None
        tail_file = None if tail is None else tail_file_of(output)
        calibrated = table.provenance.inputs if table else inputs_of(Model(self.graph_model, loaded.name))
        info = EngineInfo(
            flavor=built.flavor,
            tensorrt_version=built.version,
            compute_capabilities=built.compute_capabilities,
            inputs=tensor_specs(graph.inputs, built.dtypes),
            outputs=tensor_specs(graph.outputs, built.dtypes),
            profiles=built.profiles,
            layers=built.report,
            quantized_nodes=self.wanted,
            float_nodes=self.float_nodes,
            float_causes=self.float_causes,
            modules=modules_of(graph),
            weights_bytes=built.weights_bytes,
            model_fingerprint=loaded.fingerprint,
            route="implicit" if self.implicit else "explicit",
            missing_ranges=tuple((missing.tensor, missing.layer) for missing in built.missing_ranges),
            shared_scales=self.shared_scales,
            hardware_compatibility=self.options.hardware_compatibility,
            version_compatible=self.options.version_compatible,
            table_fingerprint=table.fingerprint if table else None,
            method=table.method if table else None,
            changed_weights=self.rounded.remedies if self.rounded else (),
            qdq_model=qdq_file.name if qdq_file else None,
            qdq_fingerprint=fingerprint(self.graph_model) if qdq_file else None,
            kernels=part_totals(built.report) if built.report else (),
            calibrated_inputs=calibrated,
            warnings=tuple(dict.fromkeys((*(table.warnings if table else warnings_of(loaded)), *warnings))),
            joins_samples=takes_joined_samples(
                self.graph_model, loaded.inputs, tried_shapes(built.profiles, loaded.inputs)
            ),
        )

        def write(staged: Callable[[Path], Path]) -> EngineInfo:
            # What is there already may have been made by somebody else, and is not claimed.
            if float_file and not _holds_model(float_file, loaded.fingerprint):
                save_model(loaded.graph_model, staged(float_file))
            if tail is not None and tail_file and not _holds_model(tail_file, fingerprint(tail)):
                save_model(tail, staged(tail_file))
            if qdq_file and not _is_file(source, qdq_file):
                save_model(self.graph_model, staged(qdq_file))
            if table and table_file and not _holds(table_file, table, loaded):
                table.save(staged(table_file))
            used = [file for file in _files_beside(output) if _is_file(source, file)]
            used += [file for file in (float_file, tail_file, qdq_file, table_file) if file]
            written = _settle_earlier(output, loaded, used, staged)
            return save_engine(staged(output), built.plan, replace(info, written=written))

        written_info = _write_unless_changed(output, write)
        return BuildResult(
            output,
            qdq_file,
            table_file,
            written_info,
            table,
            built.warnings,
            built.seconds,
            float_file,
            rounded=self.rounded,
        )


def _write_unless_changed(output: Path, write: Callable[[Callable[[Path], Path]], EngineInfo]) -> EngineInfo:
    """Writes the files of a build, and begins again where another build of the same output ended meanwhile.

    What is written depends on what is there, so the files of two builds would be mixed.

    Args:
        output: The engine file.
        write: Writes the files, each to where the function that it gets says.

    Raises:
        OutputError: A file cannot be written, or other builds keep writing them.
    """
    decisive = _decisive_files(output)
    for _ in range(_ATTEMPTS):
        with contextlib.suppress(FilesChangedError), written_together(output, decisive) as staged:
            return write(staged)
    raise OutputError(f"cannot write '{output}': other builds keep writing it; give another name")


def check_output(output: FilePath, source: ModelSource, calibration: object, *, keeps_table: bool) -> Path:
    """Fails before anything is read where an engine cannot or must not be written.

    Args:
        output: The engine file.
        source: The model.
        calibration: What the ranges come from.
        keeps_table: Whether a table that is read is not changed, and so may stand where it would be written.

    Returns:
        The engine file.

    Raises:
        OutputError: It cannot be written, is read as well, or has the name of another kind of file.
    """
    output = check_writable(output)
    refuse_overwriting([output, sidecar_path(output)], [source, calibration])
    if kind_by_ending(output) not in ("engine", ""):
        raise OutputError(
            f"the engine's name '{output}' ends in {output.suffix}, as files of another kind do; give it "
            "another ending, such as .engine"
        )
    refuse_overwriting([table_file_of(output)], [source, *([] if keeps_table else [calibration])])
    return output


def check_files_beside(
    output: Path,
    loaded: Model,
    source: ModelSource,
    calibration: object,
    table: CalibrationTable | None,
    *,
    implicit: bool,
    cached: bool,
    changed: bool,
    calibrated: bool,
    tail: ir.Model | None = None,
) -> None:
    """Fails now, rather than after the build, where a file beside an engine cannot or must not be written.

    Args:
        output: The engine file.
        loaded: The model that was given.
        source: What it was given as.
        calibration: What the ranges come from.
        table: The table whose ranges are taken; None where they are not known yet.
        implicit: Whether it is built on the implicit route, where there is no Q/DQ model.
        cached: Whether TensorRT's calibration cache is kept beside it.
        changed: Whether the model is changed, so that it must not stand where its Q/DQ model is written.
        calibrated: Whether the ranges of a table are taken, which is written beside the engine.
        tail: The rest of a model of which the engine is the first part; None where it is all of it.

    Raises:
        OutputError: A file cannot be written, or what it holds would be lost: no build of this engine has
            made it, or it was changed since.
    """
    refuse_overwriting([qdq_file_of(output)], [calibration, *([source] if changed else [])])
    cache = cache_file_of(output)

    def lost_files() -> list[Path]:
        before = _read(read_sidecar, output)
        files: dict[Path, tuple[Callable[[Path], Model | CalibrationTable], set[str | None]]] = {}
        if isinstance(source, Model):
            known = {loaded.fingerprint, before.model_fingerprint if before else None}
            files[float_file_of(output)] = load_model, known
        if not (implicit or _is_file(source, qdq_file_of(output))):
            known = {
                loaded.fingerprint if loaded.is_quantized else None,
                before.qdq_fingerprint if before else None,
            }
            files[qdq_file_of(output)] = load_model, known
        if calibrated and not (table and _holds(table_file_of(output), table, loaded)):
            known = {before.table_fingerprint if before else None}
            files[table_file_of(output)] = CalibrationTable.load, known
        if tail is not None:
            files[tail_file_of(output)] = load_model, {fingerprint(tail)}
        for file in (sidecar_path(output), *files, *([cache, origin_path(cache)] if cached else [])):
            check_writable(file, named=False)  # its name is longer than the engine's
        unchanged = _unchanged_files(output, before)
        lost = [
            file
            for file, (load, known) in files.items()
            if exists(file)
            and file not in unchanged
            and ((found := _read(load, file)) is None or found.fingerprint not in known)
        ]
        if cached and not _is_calibrated(cache):
            lost.append(cache)
        if before is None and not _may_be_sidecar(sidecar_path(output)):
            lost.insert(0, sidecar_path(output))
        return lost

    while True:
        seen = _identities(output)
        lost = lost_files()
        if not lost or _identities(output) == seen:  # else another build ended meanwhile
            break
    if lost:
        raise OutputError(
            f"cannot write '{lost[0]}': no build of '{output}' has made what it holds, which would be lost; "
            "build from it, move it away, or give the engine another name"
        )
    if cached:
        refuse_foreign_sidecar(cache)


def _identities(output: Path) -> dict[Path, Identity | None]:
    """What tells whether a build of an output has written anything; see :func:`identity_of`."""
    return {path: identity_of(path) for path in _decisive_files(output)}


def _decisive_files(output: Path) -> tuple[Path, ...]:
    """The files that decide what a build of an output writes and removes."""
    return (output, sidecar_path(output), *_files_beside(output))


def _unchanged_files(output: Path, before: EngineInfo | None) -> dict[Path, str]:
    """The files beside an engine that are as earlier builds have written them, with their hashes."""
    written = before.written if before else {}
    hashes = {file: _hash(file) for file in _files_beside(output) if _end_of(file, output) in written}
    return {file: held for file, held in hashes.items() if held and held == written[_end_of(file, output)]}


def _settle_earlier(
    output: Path, loaded: Model, used: Sequence[Path], staged: Callable[[Path], Path]
) -> dict[str, str]:
    """Removes what earlier builds have written and what does not fit the new engine, with the next step.

    Args:
        output: The engine file.
        loaded: The model that the new engine is built from. Where the earlier one was built from it, or wrote
            it as its Q/DQ model, everything beside that one fits.
        used: The files that belong to the new engine although they are not written again, or that are read.
        staged: Where files are written for the time being; those that are written again are there already.

    Returns:
        The hashes of the files beside the new engine that builds have written, by the ends of their names.
    """
    before = _read(read_sidecar, output)
    unchanged = _unchanged_files(output, before)
    fits = before is not None and loaded.fingerprint in (before.model_fingerprint, before.qdq_fingerprint)
    written: dict[str, str] = {}
    for file in _files_beside(output):
        if new := _hash(staged(file)):
            written[_end_of(file, output)] = new
        elif file in unchanged and (fits or file in used):
            written[_end_of(file, output)] = unchanged[file]
        elif file in unchanged:
            for part in _parts(file):
                remove_with_others(staged(part))
    return written


def _hash(file: Path) -> str | None:
    """The SHA-256 of a file, and of the weights of a large model; None where there is none."""
    with records.reading(f"'{file}'", OutputError), contextlib.suppress(FileNotFoundError):
        return sha256_of(*_parts(file)) if is_file(file) else None
    return None


def _parts(file: Path) -> list[Path]:
    """A file and, where it is a large model, that of its weights; see :func:`save_model`."""
    weights = file.with_name(f"{file.name}.data")
    return [file, weights] if is_file(weights) else [file]


def _may_be_sidecar(file: Path) -> bool:
    """Whether a file is missing, or looks like a sidecar, also a damaged one or one of a newer trtint8."""
    if not exists(file):
        return True
    try:
        document = records.read(file)
    except (OSError, records.RecordError):
        return False
    return isinstance(document, dict) and {"format_version", "tensorrt_version"} <= document.keys()


_Content = TypeVar("_Content")


def _read(load: Callable[[Path], _Content], file: Path) -> _Content | None:
    """What a file holds; None where it is missing, or holds something else."""
    try:
        return load(file)
    except (EngineError, ModelError, TableError) as error:
        records.raise_if_unreadable(error)
        return None


def _holds_model(file: Path, wanted: str) -> bool:
    """True if a file holds the model of a fingerprint."""
    model = _read(load_model, file)
    return model is not None and model.fingerprint == wanted


def _is_calibrated(cache: Path) -> bool:
    """Whether a calibration cache is missing, or is as a calibrator has written it."""
    try:
        origin = read_origin(cache, records.read_bytes(cache))
    except FileNotFoundError:
        return True
    except (OSError, records.RecordError, TableError):
        return False
    # A table that was saved as a cache has a sidecar, too, but no size of batches.
    return origin is not None and origin.batch_size is not None


def _holds(file: Path, table: CalibrationTable, loaded: Model) -> bool:
    """Whether a file says all that a table of a model says.

    One with the same ranges may say more, such as histograms, but not of another model or of other samples.
    """
    before = _read(CalibrationTable.load, file)
    if before is None:
        return False
    said, known = table.provenance, before.provenance
    if said.data not in (None, known.data) or known.model not in (said.model, loaded.fingerprint):
        return False
    if before.fingerprint != table.fingerprint:
        return False
    # An imported table, which names no model, does not say either how its ranges were chosen.
    return said.model is None or (before.method, before.choice, before.overridden) == (
        table.method,
        table.choice,
        table.overridden,
    )


def _is_file(source: object, file: Path) -> bool:
    """Whether a source is the path of a file that is there."""
    # Not every string is a path: samples may be "random:16" or "MODULE:FUNCTION".
    if not (isinstance(source, PATH_TYPES) and is_file(source)):
        return False
    return is_file(file) and file.samefile(source)


def qdq_file_of(output: Path) -> Path:
    """The Q/DQ model beside an engine file."""
    return output.with_name(f"{output.stem}.qdq.onnx")


def cache_file_of(output: Path) -> Path:
    """TensorRT's calibration cache beside an engine file."""
    return output.with_suffix(".cache")


def float_file_of(output: Path) -> Path:
    """The float model beside an engine file."""
    return output.with_name(f"{output.stem}.float.onnx")


def tail_file_of(output: Path) -> Path:
    """The rest of a cut model beside the engine file of its first part."""
    return output.with_name(f"{output.stem}.tail.onnx")


def files_of_cut(output: Path) -> tuple[Path, Path]:
    """Returns the files beside the output of a cut model: the float model up to the cut, and the rest.

    Raises:
        OutputError: A file cannot be written.
    """
    float_file, tail_file = (check_writable(of(output), named=False) for of in (float_file_of, tail_file_of))
    return float_file, tail_file


def _files_beside(output: Path) -> tuple[Path, ...]:
    """The files that a build may write beside an engine, besides its sidecar and TensorRT's cache."""
    return tuple(of(output) for of in (float_file_of, tail_file_of, qdq_file_of, table_file_of))


def _end_of(file: Path, output: Path) -> str:
    """How the name of a file beside an engine ends."""
    return file.name.removeprefix(f"{output.stem}.")
