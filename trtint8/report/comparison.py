"""Compares several runs: one row per figure and one value per run, and the layers whose precisions differ."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from calibrators.checks import NOTE, FilePath, doubts_among, notes_among, several
from calibrators.data.images.preprocessing import Preprocessing
from calibrators.data.inputs import LabelSource
from calibrators.data.opening import DataSource
from calibrators.errors import Argument, ModelError, TableError, counted, titled
from calibrators.records import Result
from trtint8.engine.kernels import PARTS, total_traffic
from trtint8.models.model import Model
from trtint8.quantization.config import ArithmeticName
from trtint8.report.files import ReportFiles, find_report_files, refuse_given
from trtint8.report.layers import Cell, make_cells
from trtint8.report.text import time_text
from trtint8.validation.accuracy import (
    REFERENCE,
    Accuracy,
    Measure,
    accuracy_rows,
    measure_title,
    measure_unit,
)
from trtint8.validation.significance import Estimate, Share, as_number
from trtint8.validation.validate import validate

#: The share by which numbers of bytes, and times, may differ and mean the same.
_MARGIN = 0.01

#: How many digits of the fingerprint of a table or a model are shown: enough to tell them apart.
_SHOWN_OF_FINGERPRINT = 8


@dataclass(frozen=True)
class ComparedRow:
    """One figure of all runs.

    Attributes:
        name: What the figure is.
        values: One text per run; None where a run's files do not have the figure.
        significant: Whether two runs differ by more than chance, for a figure that samples estimate, or by
            more than ``margin``, for a figure that has it. None for all other figures.
        margin: The share by which bytes and times may differ and still count as equal; None for all other
            figures.
        module: For the row of a layer, the path of the module of PyTorch that it comes from, if it is known.
    """

    name: str
    values: tuple[str | None, ...]
    significant: bool | None = None
    margin: float | None = None
    module: str = ""

    @property
    def title(self) -> str:
        """What the figure is, with the module of a layer."""
        return titled(self.name, self.module)

    @property
    def is_compared(self) -> bool:
        """True if at least two runs have the figure."""
        return sum(value is not None for value in self.values) > 1

    @property
    def differs(self) -> bool:
        """True if two runs differ in the figure, by more than chance or by more than its margin."""
        return self._is_uneven and self.significant is not False

    @property
    def mark(self) -> str:
        """The mark beside the values: ``differs``, ``within chance``, ``within 1 %``, or nothing."""
        if not self._is_uneven:
            return ""
        if self.differs:
            return "differs"
        return "within chance" if self.margin is None else f"within {100 * self.margin:g} %"

    @property
    def _is_uneven(self) -> bool:
        return len({value for value in self.values if value is not None}) > 1


@dataclass(frozen=True, repr=False)
class RunComparison(Result):
    """Several runs side by side.

    Attributes:
        runs: The name of each run.
        rows: The figures that at least one run has.
        layers: The weighted layers that are not in the same precision in all runs whose engines list them.
        differences: Names of the figures that differ.
        files: What was read.
        verdicts: Which run is better, by how much, and whether that is more than chance. There is one
            sentence for accuracy and one for latency, if two runs have them.
        warnings: What was warned of, each with the name of its run. One that begins with "note: " makes no
            figure doubtful, the others may.
    """

    runs: tuple[str, ...]
    rows: tuple[ComparedRow, ...]
    layers: tuple[ComparedRow, ...]
    differences: tuple[str, ...]
    files: tuple[Path, ...]
    verdicts: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        rows = counted(len(self.rows), "figure")
        return f"<RunComparison: {', '.join(self.runs)}; {len(self.differences)} of {rows} differ>"


def compare_runs(
    sources: Iterable[FilePath],
    *,
    arithmetic: ArithmeticName | None = None,
    model: FilePath | None = None,
    data: DataSource | None = None,
    labels: LabelSource | None = None,
    batch_size: int | None = None,
    limit: int | None = None,
    preprocessing: Preprocessing | None = None,
    skip_bad: bool = False,
) -> RunComparison:
    """Compares several runs.

    Args:
        sources: Two or more, one per run: a folder that ``trtint8 build`` wrote to; an engine, whose files
            beside it are also read; or a single file that :func:`trtint8.write_report` takes.
        arithmetic: Judges each run's table, or its Q/DQ model if it has no table, with the integers of a
            backend, as in :func:`validate`. Needs ``model`` and ``data``.
        model: With ``arithmetic``, the float model.
        data: With ``arithmetic``, held-out samples, which are read once for each run.
        labels: Labels that do not come with the data.
        batch_size: Samples per batch.
        limit: Use only this many samples.
        preprocessing: How raw images become inputs.
        skip_bad: Leave out the files of a folder that cannot be read, such as damaged images, with their
            labels, and warn of them by name. By default the first such file is an error.

    Raises:
        TableError: There are fewer than two runs, a file is missing or malformed, or no two runs have a
            figure in common.
        ModelError: A Q/DQ model cannot be read.
        EngineError: An engine and its sidecar do not belong together.

    Examples:
        >>> comparison = trtint8.compare_runs(["entropy/model.engine", "mse/model.engine"])
        >>> comparison.differences
        ('calibration method', 'calibration table')
    """
    sources = several(sources)
    if len(sources) < 2:
        raise TableError("a comparison needs at least two runs; give two or more engines, folders or files")
    runs = [find_report_files([source]) for source in sources]
    options: dict[str, Any] = {"labels": labels, "batch_size": batch_size, "limit": limit}
    options |= {"preprocessing": preprocessing, "skip_bad": skip_bad or None}
    runs = [_judged(run, arithmetic, model, data, options) for run in runs]
    stems = tuple(run.stem for run in runs)
    # A file that is only called "accuracy.json" has no name of its own.
    have_names = len(set(stems)) == len(stems) and not any(run.stem in run.paths for run in runs)
    names = stems if have_names else tuple(str(Path(source)) for source in sources)
    used = {part.part for run in runs if run.engine for part in run.engine.parts}
    parts = [name for name in PARTS if name in used]
    estimated = [engine.seconds for run in runs if run.audit for engine in run.audit.engines]
    # Where there is an engine, what its model asks for is not set beside what it runs.
    models = [None if run.engine else run.qdq_model() for run in runs]
    asked = [make_cells(model.graph_model, None, None) if model else () for model in models]
    rows = _table(
        [
            {**_of_model(model, cells), **_figures(run, parts, estimated)}
            for run, model, cells in zip(runs, models, asked, strict=True)
        ]
    )
    if not rows:
        raise TableError(
            f"nothing in '{runs[0].read[0]}' is compared; give engines, Q/DQ models, tables, or what "
            "validate, tune, bench or audit printed as JSON"
        )
    if not any(row.is_compared for row in rows):
        raise TableError(
            f"no figure of '{names[0]}' stands in the files of another run; compare files of the same kind, "
            "or folders that 'trtint8 build' wrote to"
        )
    engines = [run.engine if run.engine and run.engine.layers else None for run in runs]
    listed = [make_cells(None, engine, None) for engine in engines] if any(engines) else asked
    layers = _table([{cell.node: cell.precision for cell in cells} for cells in listed])
    modules = {cell.node: cell.module for cells in listed for cell in cells}
    judged = [run.accuracy for run in runs]
    rows = tuple(
        replace(row, significant=_differ(row.name, judged)) if row.margin is None else row for row in rows
    )
    named = list(zip(names, runs, strict=True))
    return RunComparison(
        names,
        rows,
        tuple(replace(row, module=modules[row.name]) for row in layers if row.differs),
        tuple(row.name for row in rows if row.differs),
        tuple(path for run in runs for path in run.read),
        tuple(filter(None, (_accuracy_verdict(names, judged), _latency_verdict(names, runs)))),
        (
            *(
                f"{name}: {said}"
                for (name, run), model in zip(named, models, strict=True)
                for said in run.judged_another(model.fingerprint if model else None)
            ),
            *(f"{name}: {said}" for name, run in named for said in doubts_among(run.warnings)),
            *(f"{NOTE}{name}: {said}" for name, run in named for said in notes_among(run.warnings)),
        ),
    )


def _measures(accuracy: Accuracy | None) -> dict[str, Measure]:
    """The measures of a run that have a value, by what their rows are called."""
    measures = accuracy.measures if accuracy else ()
    return {measure_title(one): one for one in measures if math.isfinite(as_number(one.value))}


def _estimates(measures: Sequence[Measure | None]) -> list[Estimate | None]:
    """What samples say of a metric of each run: its difference from FP32 where all have it, or its share."""
    against_fp32 = [_beside_reference(one) for one in measures if one]
    if None not in against_fp32 and len({as_number(one.reference) for one in measures if one}) == 1:
        return [_beside_reference(one) if one else None for one in measures]
    values = [one.value if one else None for one in measures]
    return [Estimate(one.value, one.interval) if isinstance(one, Share) else None for one in values]


def _beside_reference(measure: Measure) -> Estimate | None:
    found = [one for one in measure.comparisons if one.against == REFERENCE]
    return Estimate(found[0].difference, found[0].interval) if found else None


def _differ(name: str, judged: Sequence[Accuracy | None]) -> bool | None:
    """Whether two runs differ in a metric by more than chance; None where no samples estimate it."""
    estimates = _estimates([_measures(accuracy).get(name) for accuracy in judged])
    known = [one for one in estimates if one is not None]
    pairs = list(itertools.combinations(known, 2))
    return any(one.minus(other).is_above_chance for one, other in pairs) if pairs else None


def _accuracy_verdict(names: Sequence[str], judged: Sequence[Accuracy | None]) -> str | None:
    """Which run is more accurate by the first metric that two runs have; by SQNR where there is none."""
    measured = [_measures(accuracy) for accuracy in judged]
    for title in dict.fromkeys(title for measures in measured for title in measures):
        if sum(title in one for one in measured) > 1:
            return _by_measure(title, names, judged, [one.get(title) for one in measured])
    outputs = [accuracy.outputs if accuracy else () for accuracy in judged]
    for name in dict.fromkeys(one.name for some in outputs for one in some):
        found = {index: one.sqnr_db for index, some in enumerate(outputs) for one in some if one.name == name}
        levels = {index: level for index, level in found.items() if math.isfinite(level)}
        if len(levels) > 1:
            return _verdict(f"SQNR of '{name}'", names, levels, lambda above: f"{above:.2f} dB above")
    return None


def _by_measure(
    title: str,
    names: Sequence[str],
    judged: Sequence[Accuracy | None],
    measures: Sequence[Measure | None],
) -> str:
    """The run that is best by a metric, beside the next one."""
    unit, estimates = next(measure_unit(one) for one in measures if one), _estimates(measures)
    factor, digits = (100, ".2f") if unit == "points" else (1, ".4g")
    values = {index: factor * as_number(one.value) for index, one in enumerate(measures) if one}
    best, second = _best_two(values)
    verdict = _verdict(title, names, values, lambda above: f"{above:{digits}}{unit and ' '}{unit} above")
    one, other = estimates[best], estimates[second]
    if one is None or other is None:
        return verdict
    difference = one.minus(other)
    counts = dict.fromkeys(f"{accuracy.samples:,}" for accuracy in (judged[best], judged[second]) if accuracy)
    samples = f"{' and '.join(counts)} samples"
    low, high = (f"{factor * end:+{digits}}" for end in difference.interval)
    meaning = f"more than chance on {samples}"
    if not difference.is_above_chance:
        meaning = f"no difference that {samples} can show"
    return f"{verdict} (95 % interval {low} to {high}): {meaning}"


def _latency_verdict(names: Sequence[str], runs: Sequence[ReportFiles]) -> str | None:
    """Which run is faster by its median latency."""
    times = {
        index: run.bench.reports[0].phases["latency"].median
        for index, run in enumerate(runs)
        if run.bench and run.bench.reports
    }
    if len(times) < 2 or not all(times.values()):
        return None
    speeds = {index: -time for index, time in times.items()}
    best, second = (times[index] for index in _best_two(speeds))
    fast = _verdict("latency", names, speeds, lambda _: f"{second / best:.2f} times as fast as")
    return f"{fast} ({best:.3f} ms beside {second:.3f} ms)"


def _best_two(values: Mapping[int, float]) -> tuple[int, int]:
    """The indices of the two largest values."""
    best, second, *_ = sorted(values, key=lambda index: -values[index])
    return best, second


def _verdict(
    title: str, names: Sequence[str], values: Mapping[int, float], better: Callable[[float], str]
) -> str:
    best, second = _best_two(values)
    above = values[best] - values[second]
    than = better(above) if above else "level with"
    return f"{title}: '{names[best]}' is {than} '{names[second]}'"


def _judged(
    run: ReportFiles,
    arithmetic: ArithmeticName | None,
    model: FilePath | None,
    data: DataSource | None,
    options: Mapping[str, Any],
) -> ReportFiles:
    """A run with the accuracy that it has in an arithmetic; the run itself without one."""
    if arithmetic is None:
        refuse_given({"model": model, "data": data, **options}, "arithmetic")
        return run
    for name, value in (("model", model), ("data", data)):
        if value is None:
            raise ModelError(
                f"{Argument('arithmetic', '...')} runs the float model on held-out samples; give "
                f"{Argument(name, '...')}"
            )
    assert model is not None and data is not None
    judged = model if run.table is not None else run.paths.get("qdq")
    if judged is None:
        raise TableError(
            f"'{run.read[0]}' is a run without a calibration table or a Q/DQ model, of which '{arithmetic}' "
            "could take the ranges; give one with it"
        )
    accuracy = validate(judged, data, reference=model, table=run.table, arithmetic=arithmetic, **options)
    return replace(run, accuracy=accuracy)


@dataclass(frozen=True)
class _Amount:
    """A number of bytes, or a time, whose last digits mean nothing.

    Attributes:
        number: The number.
        text: The same as it is shown.
    """

    number: float
    text: str

    @classmethod
    def of_bytes(cls, count: int) -> _Amount:
        return cls(count, f"{count:,}")


#: One figure of a run.
_Figure = str | _Amount


def _table(columns: Sequence[Mapping[str, _Figure]]) -> tuple[ComparedRow, ...]:
    """One row per name that a column has, in the order in which the names first appear."""
    names = dict.fromkeys(name for column in columns for name in column)
    return tuple(_row(name, [column.get(name) for column in columns]) for name in names)


def _row(name: str, figures: Sequence[_Figure | None]) -> ComparedRow:
    texts = tuple(one.text if isinstance(one, _Amount) else one for one in figures)
    numbers = [one.number for one in figures if isinstance(one, _Amount)]
    if not numbers:
        return ComparedRow(name, texts)
    return ComparedRow(name, texts, max(numbers) > (1 + _MARGIN) * min(numbers), _MARGIN)


def _figures(run: ReportFiles, parts: Sequence[str], estimated: Sequence[float | None]) -> dict[str, _Figure]:
    """What is known of one run, by name.

    Args:
        run: The files of the run, with their contents.
        parts: The parts that an engine of a run has.
        estimated: All times in the audits of all runs, in seconds.
    """
    return {
        **_of_engine(run, parts),
        **_of_accuracy(run),
        **_of_tuning(run),
        **_of_bench(run),
        **_of_audit(run, estimated),
    }


def _of_model(model: Model | None, cells: Sequence[Cell]) -> dict[str, str]:
    if model is None:
        return {}
    quantized = sum(cell.precision == "INT8" for cell in cells)
    return {
        "Q/DQ model": model.fingerprint[:_SHOWN_OF_FINGERPRINT],
        "weighted layers with Q/DQ pairs": f"{quantized} of {len(cells)}",
    }


def _of_engine(run: ReportFiles, parts: Sequence[str]) -> dict[str, _Figure]:
    figures: dict[str, _Figure] = {}
    engine, table = run.engine, run.table
    method = (engine.method if engine else None) or (table.method if table else None)
    if method:
        figures["calibration method"] = method
    fingerprint = engine.table_fingerprint if engine else (table.fingerprint if table else None)
    if fingerprint:
        figures["calibration table"] = fingerprint[:_SHOWN_OF_FINGERPRINT]
    if engine is None:
        return figures
    figures["TensorRT"] = str(engine.built_with).removeprefix("TensorRT ")
    figures["built for"] = ", ".join(engine.compute_capabilities)
    for number, profile in enumerate(engine.profiles):
        figures |= {f"profile {number}, '{name}'": str(shapes) for name, shapes in profile.items()}
    if engine.int8_layers:
        figures["weighted layers in INT8"] = "{} of {}".format(*engine.int8_layers)
    kernels = {part.part: part for part in engine.parts}
    if kernels:
        if len(engine.profiles) > 1:
            figures["kernels and bytes"] = "those of profile 0"
        figures["kernels"] = str(sum(part.kernels for part in engine.parts))
        figures |= {
            f"kernels: {name}": str(kernels[name].kernels if name in kernels else 0) for name in parts
        }
        traffic = total_traffic(part.traffic for part in engine.parts)
        if traffic is not None:
            figures["bytes read per inference"] = _Amount.of_bytes(traffic.read)
            figures["bytes written per inference"] = _Amount.of_bytes(traffic.written)
    if engine.weights_bytes is not None:
        figures["bytes of weights"] = _Amount.of_bytes(engine.weights_bytes)
    figures["bytes of the engine file"] = _Amount.of_bytes(run.paths["engine"].stat().st_size)
    return figures


def _of_accuracy(run: ReportFiles) -> dict[str, str]:
    if run.accuracy is None:
        return {}
    rows = {title: value for title, _, value, *_ in accuracy_rows(run.accuracy)}
    figures = {"samples": f"{run.accuracy.samples:,}", **rows}
    if integers := run.accuracy.in_integers:
        layer, largest = max(integers.largest_sums.items(), key=lambda item: item[1])
        figures |= {"arithmetic": integers.arithmetic, "largest sum": f"{largest:,} in '{layer}'"}
    if tensors := run.accuracy.tensors:
        figures["first tensor more than a step apart"] = tensors.first_divergence or "none"
    return figures


def _of_tuning(run: ReportFiles) -> dict[str, str]:
    if run.tuning is None:
        return {}
    layers, percent = len(run.tuning.keep_float), 100 * run.tuning.float_cost
    figures = {
        "tuned for": run.tuning.goal,
        "changed weights": ", ".join(run.tuning.remedies) or "none",
        "layers in float": f"{layers}, {percent:.1f} % of the arithmetic",
        "candidates tried": f"{len(run.tuning.trials)}",
    }
    return {name: text for name, text in figures.items() if text}  # earlier versions wrote no goal


def _of_bench(run: ReportFiles) -> dict[str, _Figure]:
    if run.bench is None or not run.bench.reports:
        return {}
    report = run.bench.reports[0]
    latency = report.phases["latency"]
    return {
        "measured on": f"{run.bench.gpu}, batch of {report.batch_size}",
        "latency, median": _Amount(latency.median, f"{latency.median:.3f} ms"),
        "latency, 99 %": _Amount(latency.p99, f"{latency.p99:.3f} ms"),
        "samples per second": _Amount(report.samples_per_second, f"{report.samples_per_second:,.0f}"),
    }


def _of_audit(run: ReportFiles, estimated: Sequence[float | None]) -> dict[str, _Figure]:
    if run.audit is None:
        return {}
    figures: dict[str, _Figure] = {"audited for": run.audit.gpu.name}
    for engine in run.audit.engines:
        if engine.traffic is not None:
            figures[f"bytes of {engine.precision}, audited"] = _Amount.of_bytes(engine.traffic.total)
        if engine.seconds is not None:
            figures[f"time of {engine.precision}, estimated"] = _Amount(
                engine.seconds, time_text(engine.seconds, estimated)
            )
    return {**figures, "verdict": run.audit.verdict}
