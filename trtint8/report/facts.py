"""Everything that a report says, gathered before it is rendered as a page.

That is the most important figures, where figures come from, the commands that make them again, and what is
missing or does not match.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

from calibrators.checks import doubts_among, notes_among
from calibrators.display.cards import Card
from calibrators.errors import counted
from calibrators.tensorrt.flavor import title_of
from trtint8.engine.file import NOT_LISTED, EngineInfo
from trtint8.models.model import Model
from trtint8.report.files import (
    ReportFiles,
    find_origins,
    find_table_model,
    load_original,
    was_not_used,
)
from trtint8.report.graph import NetworkGraph, make_graph
from trtint8.report.layers import (
    AuditSummary,
    Bar,
    Cell,
    KernelTable,
    SpeedRow,
    Tried,
    make_audit_summary,
    make_bars,
    make_cards,
    make_cells,
    make_kernel_table,
    make_speed_rows,
    make_tried,
)
from trtint8.report.text import sentence
from trtint8.report.worst import Worst
from trtint8.validation.accuracy import NOT_MEASURED, REFERENCE, accuracy_rows, verdicts
from trtint8.validation.fidelity import Fidelity, least_faithful, picks_note

#: Placeholders in commands for files whose names are not known.
_MODEL, _DATA, _HELDOUT, _GPU = "MODEL.onnx", "CALIBRATION_DATA", "HELDOUT_DATA", "GPU"

#: What is said of a table that the user named.
_UNUSED_TABLE = "The engine was built without the calibration table: their numbers do not belong together."


@dataclass(frozen=True)
class Command:
    """A command line.

    Attributes:
        purpose: What the command makes, or what is missing without it, in words.
        line: The command for a shell; words in capitals are placeholders for the reader's files.
    """

    purpose: str
    line: str


def commands_for_missing(
    files: ReportFiles, *, model: str | None, table_model: str | None, with_worst: bool
) -> tuple[Command, ...]:
    """What a complete report would also show, and the command that makes each of it.

    Args:
        files: The files to report on, with their contents.
        model: Path of the FP32 model; None where it was not given.
        table_model: Path of the float model that the table fits; None where it is not known.
        with_worst: Whether the worst samples are in the report.
    """
    model_word, of_table = _quoted(model, _MODEL), _quoted(table_model, _MODEL)
    table, engine = _name(files, "table"), _name(files, "engine")
    commands = []

    def add(purpose: str, line: str, kind: str = "") -> None:
        commands.append(Command(purpose, f"trtint8 {line}{kind and _name(files, kind)}"))

    if files.engine is None:
        build = f"build {of_table} {table} -o {engine}"
        add("The engine: its size, and which layers really run in INT8.", build)
    if files.table is None or not (files.table.histograms or _is_tuned(files, model, table_model)):
        # A cache has no room for histograms.
        own = shlex.quote(f"{files.stem}.table.json") if table.endswith(".cache") else table
        calibrate = f"calibrate {model_word} {_DATA} -o {own}{_image_options(files)}"
        add("A calibration table with histograms: the cards of the tensors.", calibrate)
    if files.accuracy is None:
        validated = _name(files, "engine" if "engine" in files.paths else "qdq")
        validate = f"validate {validated} {_HELDOUT} --reference {model_word} --json > "
        add("Accuracy on held-out data, beside FP32's.", validate, "accuracy")
    if files.sensitivity is None:
        measure = f"sensitivity {of_table} {table} {_HELDOUT} -o "
        add("Sensitivity: what each layer costs, and why.", measure, "sensitivity")
    if files.audit is None:
        audit = f"audit {of_table} {table} --gpu {_GPU} --json > "
        add("What INT8 gains beside FP16 on a GPU, estimated without one.", audit, "audit")
    if files.bench is None:
        bench = f"bench {engine} --baseline {model_word} --json > "
        add("Latency, measured on a GPU.", bench, "bench")
    if not with_worst:
        sources = " ".join(shlex.quote(path.name) for path in files.paths.values())
        output = shlex.quote(f"{files.stem}.html")
        report = f"report {sources} -o {output} --model {model_word} --data {_HELDOUT}"
        add("The samples on which INT8 differs most from FP32, as pictures.", report)
    return tuple(commands)


def _is_tuned(files: ReportFiles, model: str | None, table_model: str | None) -> bool:
    """Whether the table is not what a calibration of the FP32 model makes, which would replace it."""
    return files.tuning is not None or model != table_model


def commands_to_rebuild(
    files: ReportFiles, *, model: str | None, table_model: str | None
) -> tuple[Command, ...]:
    """The commands that make the table, the Q/DQ model and the engine again.

    Args:
        files: The files to report on, with their contents.
        model: Path of the FP32 model; None where it was not given.
        table_model: Path of the float model that the table fits; None where it is not known.
    """
    model_word, commands = _quoted(table_model, _MODEL), []
    table, is_tuned = _name(files, "table"), _is_tuned(files, model, table_model)
    if files.table is not None and files.table.provenance.model is not None and not is_tuned:
        samples = files.table.provenance.samples
        limit = f" --limit {samples}" if samples else ""
        line = (
            f"trtint8 calibrate {model_word} {_DATA} -o {table} --method {files.table.method}{limit}"
            f"{_image_options(files)}"
        )
        commands.append(Command("The calibration table, on the data of this fingerprint", line))
    if files.engine is not None:
        source = _name(files, "qdq") if "qdq" in files.paths else f"{model_word} {table}"
        line = f"trtint8 build {source} -o {_name(files, 'engine')} {_build_options(files.engine)}"
        commands.append(Command("The engine, from the files beside it", line))
    return tuple(commands)


def _image_options(files: ReportFiles) -> str:
    """The preprocessing of the calibration as options of the command line; empty where it is not known."""
    preprocessing = files.calibrated_inputs.images if files.calibrated_inputs else None
    if preprocessing is None:
        return ""

    def text(value: object) -> str:
        if isinstance(value, tuple):
            return ",".join(map(text, value))
        return f"{value:.9g}" if isinstance(value, float) else str(value)

    differing = [one for one in fields(preprocessing) if getattr(preprocessing, one.name) != one.default]
    # With "=", as a text that begins with a minus would pass for an option.
    options = [f"--{one.name}={text(getattr(preprocessing, one.name))}" for one in differing]
    return "".join(f" {option}" for option in options or ["--scale=1/255"])


def list_provenance(files: ReportFiles) -> tuple[tuple[str, str], ...]:
    """Names and values of everything that identifies what was measured."""
    engine, table, sensitivity, audit = files.engine, files.table, files.sensitivity, files.audit
    rows: list[tuple[str, object]] = []
    if engine:
        rows += [
            (title_of(engine.flavor), engine.tensorrt_version),
            ("Route", engine.route),
            ("Built for compute capability", ", ".join(engine.compute_capabilities)),
            ("Built by", engine.created_by),
        ]
    if table:
        by_hand = f", {len(table.overridden)} set by hand" if table.overridden else ""
        source = table.provenance
        rows += [
            ("Ranges", f"{counted(len(table.amax), 'tensor')}, {table.method}{by_hand}"),
            ("Calibration samples", source.samples and f"{source.samples:,}"),
            ("Calibrated with", ", ".join(f"{tool} {version}" for tool, version in source.versions.items())),
        ]
    rows.append(("Preprocessing of the calibration", files.calibrated_inputs))
    if files.accuracy:
        measured = f"{files.accuracy.judged}, {counted(files.accuracy.samples, 'sample', ',')}"
        rows.append(("Accuracy measured with", measured))
    if audit:
        builder = f"{title_of(audit.flavor)} {audit.tensorrt_version}"
        rows.append(("Audited with", f"{builder}, compute capability {audit.compute_capability}"))
    if sensitivity:
        certain = "" if sensitivity.converged else ". The figures are less certain than you asked for"
        rows.append(("Sensitivity measured with", f"{sensitivity.samples_text}{certain}"))
        rows += [("Picks that change", picks_note(picks)) for picks in sensitivity.picks_changed]
    fingerprints = {
        "model": engine.model_fingerprint if engine else table and table.provenance.model,
        "calibration table": table.fingerprint if table else engine and engine.table_fingerprint,
        "calibration data": table and table.provenance.data,
        "sensitivity's data": sensitivity and sensitivity.data_fingerprint,
        "engine file (SHA-256)": engine and engine.plan_sha256,
    }
    rows += [(f"Fingerprint of the {name}", value) for name, value in fingerprints.items()]
    rows.append(("Files", ", ".join(path.name for path in files.paths.values())))
    return tuple((name, str(value)) for name, value in rows if value)


def find_mismatches(
    files: ReportFiles,
    *,
    model_fingerprint: str | None = None,
    qdq_fingerprint: str | None = None,
    origins: Mapping[str, str | None] = MappingProxyType({}),
    table_was_used: bool = True,
) -> tuple[str, ...]:
    """Finds files that do not belong together.

    Args:
        files: The files to report on, with their contents.
        model_fingerprint: Fingerprint of the FP32 model; None where the model was not given.
        qdq_fingerprint: Fingerprint of the Q/DQ model; None where there is none.
        origins: Fingerprints of models to those of the float models that they were made from; see
            :func:`trtint8.report.files.find_origins`.
        table_was_used: Whether the engine, or its Q/DQ model, was made with the table, as far as they say.

    Returns:
        One sentence per mismatch.
    """
    engine, table, sensitivity = files.engine, files.table, files.sensitivity
    accuracy, audit = files.accuracy, files.audit
    models = {
        "the engine": engine and engine.model_fingerprint,
        "the Q/DQ model": qdq_fingerprint,
        "the calibration table": table and table.provenance.model,
        "the sensitivity": sensitivity and sensitivity.model_fingerprint,
        "the audit": audit and audit.model_fingerprint,
        "the FP32 model of the accuracy": accuracy and accuracy.reference_fingerprint,
        "the FP32 model given": model_fingerprint,
    }
    models = {name: origins.get(of, of) if of else None for name, of in models.items()}
    tables = {
        "the calibration table": table and table.fingerprint,
        "the engine": engine and engine.table_fingerprint,
        "the sensitivity": sensitivity and sensitivity.table_fingerprint,
        "the audit": audit and audit.table_fingerprint,
    }
    unused = [] if table_was_used else [_UNUSED_TABLE]
    return (
        *_differing(models, "model"),
        *_differing(tables, "calibration table"),
        *map(sentence, files.judged_another(qdq_fingerprint)),
        *unused,
    )


def _differing(fingerprints: Mapping[str, object], kind: str) -> list[str]:
    """One sentence for each file with another fingerprint than the first; ``kind`` says what of."""
    known = {name: value for name, value in fingerprints.items() if value}
    names = list(known)
    return [
        f"{name[0].upper()}{name[1:]} is of another {kind} than {names[0]}: "
        "their numbers do not belong together."
        for name in names[1:]
        if known[name] != known[names[0]]
    ]


def _build_options(engine: EngineInfo) -> str:
    options = [f"--target {engine.flavor} --route {engine.route}"]
    options += [
        f"--compute-capability {capability}"
        for capability in engine.compute_capabilities
        if capability != "current"
    ]
    for profile in engine.profiles:
        for name, sizes in profile.items():
            options.append(f"--profile {shlex.quote(f'{name}={sizes}')}")
    if engine.hardware_compatibility:
        options.append(f"--hardware-compatibility {engine.hardware_compatibility}")
    if engine.version_compatible:
        options.append("--version-compatible")
    return " ".join(options)


def _name(files: ReportFiles, kind: str) -> str:
    """The name of a file, or the one that it would have, quoted for a shell."""
    ending = {"engine": "engine", "qdq": "qdq.onnx"}.get(kind, f"{kind}.json")
    return shlex.quote(files.paths[kind].name if kind in files.paths else f"{files.stem}.{ending}")


def _quoted(path: str | None, otherwise: str) -> str:
    return shlex.quote(path) if path else otherwise


@dataclass(frozen=True)
class Report:
    """What a page shows; empty or None where there is nothing to show.

    Attributes:
        files: The files to report on, with their contents.
        cells: The weighted layers, in the order of the graph.
        graph: The operators and the tensors between them; None where no model has them.
        kernels: The kernels of the engine by part; None where they are not listed.
        speed: The measured speed of each engine, beside the audit's figures; empty where none was measured.
        audit: What an audit says of FP32, FP16 and INT8 engines; None without an audit.
        bars: The layers, in descending order of their shares of the noise.
        cards: The tensors that have histograms.
        worst: The samples on which INT8 differs most from FP32.
        tried: What `trtint8 tune` tried; None where it was not tuned.
        mismatches: Sentences that name files which do not belong together.
        missing: What a complete report would also show, with the commands that make it.
        provenance: Names and values that identify what was measured.
        rebuild: Commands that make the files again.
        model_bytes: Size of the FP32 model in bytes, with its weights in other files; None where it is not
            known.
        qdq_bytes: Size of the Q/DQ model in bytes, with its weights in other files; None where there is none.
    """

    files: ReportFiles
    cells: tuple[Cell, ...]
    graph: NetworkGraph | None
    kernels: KernelTable | None
    speed: tuple[SpeedRow, ...]
    audit: AuditSummary | None
    bars: tuple[Bar, ...]
    cards: tuple[Card, ...]
    worst: Worst | None
    tried: Tried | None
    mismatches: tuple[str, ...]
    missing: tuple[Command, ...]
    provenance: tuple[tuple[str, str], ...]
    rebuild: tuple[Command, ...]
    model_bytes: int | None = None
    qdq_bytes: int | None = None

    @property
    def engine_bytes(self) -> int | None:
        """Size of the engine file in bytes; None where there is none."""
        return self.files.paths["engine"].stat().st_size if "engine" in self.files.paths else None

    @property
    def why_not_counted(self) -> str:
        """Why it is not known how many layers run in INT8, in one sentence."""
        if self.files.engine is None:
            return "There is no engine yet."
        if self.files.engine.layers is not None:
            return "TensorRT tells nothing of parts that it compiled as a whole."
        return f"{NOT_LISTED[0].upper()}{NOT_LISTED[1:]}."

    @cached_property
    def lowest(self) -> Fidelity | None:
        """The output, or part of one, with the lowest SQNR; None where it is not known."""
        return least_faithful(self.files.accuracy.outputs) if self.files.accuracy else None

    @cached_property
    def first_row(self) -> tuple[str, str, str] | None:
        """The first metric, where neither top-1 nor the SQNR stands for the accuracy; None where one does.

        Its title, the value for FP32 (empty where it compares with FP32) and the value for INT8.
        """
        accuracy = self.files.accuracy
        if not accuracy or not accuracy.measures or accuracy.top1 or (accuracy.agreement and self.lowest):
            return None
        title, reference, value, *_ = self.rows[0]
        return title, reference, value

    @property
    def has_value(self) -> bool:
        """Whether the samples give :attr:`first_row` a value."""
        return self.first_row is not None and self.first_row[2] != NOT_MEASURED

    @cached_property
    def verdicts(self) -> tuple[str, ...]:
        """One sentence per comparison, the one on top-1 first where there is one."""
        accuracy = self.files.accuracy
        return tuple(verdicts(accuracy, accuracy.name)) if accuracy else ()

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the models in :attr:`rows`."""
        accuracy = self.files.accuracy
        return (REFERENCE, *((accuracy.name, *accuracy.also) if accuracy else ()))

    @cached_property
    def rows(self) -> tuple[tuple[str, ...], ...]:
        """One row per metric, as texts: the metric's name and one value per model."""
        return tuple(accuracy_rows(self.files.accuracy)) if self.files.accuracy else ()

    @property
    def doubts(self) -> tuple[str, ...]:
        """What makes the figures doubtful, in sentences: files that do not match, and warnings."""
        return (*self.mismatches, *map(sentence, doubts_among(self.files.warnings)))

    @property
    def notes(self) -> tuple[str, ...]:
        """What else was warned of, in sentences."""
        return tuple(map(sentence, notes_among(self.files.warnings)))

    @property
    def measured_in_float(self) -> int:
        """The number of layers that were measured in INT8 and are in float."""
        return sum(bool(bar.in_float) for bar in self.bars)

    @property
    def kept(self) -> float | None:
        """The share of the samples looked at that keep FP32's class; None where it is not known."""
        if self.worst is None or self.worst.flips is None:
            return None
        return 1 - self.worst.flips / self.worst.samples

    @property
    def conclusion(self) -> tuple[str, ...]:
        """What the page says first, without a full stop: of the accuracy, else of the samples looked at."""
        if self.worst is None or self.worst.flips is None or self.verdicts:
            return self.verdicts[:1]
        return (self.worst.flips_text,)

    @property
    def proved(self) -> bool:
        """Whether the precisions of the cells come from the engine's own list of layers."""
        return bool(self.files.engine and self.files.engine.layers)

    @property
    def without_histogram(self) -> int:
        """Number of tensors with a range but no histogram."""
        return len(self.files.table.amax) - len(self.cards) if self.files.table else 0


def gather(files: ReportFiles, *, model: Path | None = None, worst: Worst | None = None) -> Report:
    """Gathers what a report says.

    Args:
        files: The files to report on, with their contents.
        model: Path of the FP32 model, for its size, its fingerprint and the commands; None where not given.
        worst: The samples on which INT8 differs most from FP32; None where they were not looked for.

    Raises:
        ModelError: A model cannot be read, or the one given as FP32 holds Q/DQ pairs.
        EngineError: The engine was built from another Q/DQ model.
    """
    original = load_original(model) if model else None
    loaded = files.qdq_model()
    qdq = loaded.graph_model if loaded else None
    # Without a Q/DQ model only the engine's own list says what the layers of the float model became.
    listed = original.graph_model if original and files.engine and files.engine.layers else None
    path = str(model) if model else None
    table_model = find_table_model(files, original, path)
    cells = make_cells(qdq, files.engine, files.sensitivity)
    return Report(
        files,
        cells=cells,
        graph=make_graph(qdq or listed, files.engine, files.sensitivity),
        kernels=make_kernel_table(files.engine),
        speed=make_speed_rows(files),
        audit=make_audit_summary(files.audit),
        bars=make_bars(files.sensitivity, cells, qdq) if files.sensitivity else (),
        cards=make_cards(files.table) if files.table else (),
        worst=worst,
        tried=make_tried(files.tuning),
        mismatches=find_mismatches(
            files,
            model_fingerprint=original.fingerprint if original else None,
            qdq_fingerprint=loaded.fingerprint if loaded else None,
            origins=find_origins(files, original, loaded),
            table_was_used=not was_not_used(files.table, files.engine, loaded),
        ),
        missing=commands_for_missing(
            files, model=path, table_model=table_model, with_worst=worst is not None
        ),
        provenance=list_provenance(files),
        rebuild=commands_to_rebuild(files, model=path, table_model=table_model),
        model_bytes=_bytes_of(model, original) if model and original else None,
        qdq_bytes=_bytes_of(files.paths["qdq"], loaded) if loaded else None,
    )


def _bytes_of(path: Path, model: Model) -> int:
    """The size of a model's file and of the files with its weights, in bytes."""
    return sum(file.stat().st_size for file in (path, *model.data_files))
