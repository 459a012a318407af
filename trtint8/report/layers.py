"""What a report shows of layers and tensors: cells, bars of noise, cards, tuning, kernels and speed."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from calibrators.data.inputs import shape_text
from calibrators.display.cards import Card, card_of
from calibrators.errors import titled
from calibrators.operators import operator_named, operator_of
from calibrators.tables.table import CalibrationTable
from trtint8.auditing.results import Audit, AuditedEngine, AuditedPart, Cost
from trtint8.engine.file import EngineInfo
from trtint8.engine.kernels import PARTS, PartTotal, Traffic, total_traffic
from trtint8.models.graph import made_by, modules_of
from trtint8.report.files import ReportFiles
from trtint8.report.text import duration, figure, layers_text, size
from trtint8.runtime.bench import BenchReport
from trtint8.sensitivity.results import LayerSensitivity, Sensitivity
from trtint8.tuning.tune import TuningLog
from trtint8.validation.meters import DECIBELS

#: The precisions of a :class:`Cell` whose layer is known not to be in INT8.
IN_FLOAT = ("FP16", "BF16", "FP32", "float")

#: The shares of the noise at which the next level of the legend begins.
LEVELS = (0.01, 0.03, 0.1, 0.3)


@dataclass(frozen=True)
class Cell:
    """One weighted layer.

    Attributes:
        node: The name of the layer's node.
        operator: The node's operator; empty where it is not known.
        precision: ``INT8``, ``FP16``, ``BF16``, ``FP32``, ``float`` where the Q/DQ model is the only source,
            or ``unknown``.
        noise_share: The layer's share of the noise of all layers, each measured alone, in [0, 1]; None where
            it was not measured.
        level: The level of ``noise_share``, from 0 to ``len(LEVELS)``; None where it was not measured.
        alone_db: SQNR of the network's output with only this layer in INT8, in decibels.
        cumulative_db: SQNR of the layer's output with every layer in INT8, in decibels.
        module: The path of the module of PyTorch that the node comes from; empty where it is not known.
    """

    node: str
    operator: str
    precision: str
    noise_share: float | None = None
    level: int | None = None
    alone_db: float | None = None
    cumulative_db: float | None = None
    module: str = ""

    @property
    def title(self) -> str:
        """The name of the node, and its module."""
        return titled(self.node, self.module)


def make_cells(
    qdq: ir.Model | None, engine: EngineInfo | None, sensitivity: Sensitivity | None
) -> tuple[Cell, ...]:
    """Makes the cells of the weighted layers, in the order of the graph.

    Precisions are taken from the engine's own list of layers. Without it they are those that the Q/DQ pairs
    ask for.

    Args:
        qdq: The Q/DQ model, or None.
        engine: The engine's sidecar, or None.
        sensitivity: The sensitivity of the layers, or None.

    Returns:
        One cell per weighted layer; empty where no source names the layers.
    """
    measured = {layer.node: layer for layer in sensitivity.layers} if sensitivity else {}
    modules = dict(engine.modules) if engine else {}
    modules |= {name: layer.module for name, layer in measured.items()}
    modules |= modules_of(qdq.graph) if qdq else {}
    cells = []
    for node, (operator, intended) in _intended(qdq, engine, sensitivity).items():
        precision = intended
        if engine and engine.layers:
            precision = engine.layers.precision_of(node) or "unknown"
        cells.append(make_cell(node, operator, precision, measured.get(node), modules.get(node, "")))
    return tuple(cells)


def noise_level(noise_share: float) -> int:
    """The level of a share of the noise: 0 below the first of :data:`LEVELS`, one more at each of them."""
    return bisect_right(LEVELS, noise_share)


def make_cell(
    node: str, operator: str, precision: str, measured: LayerSensitivity | None, module: str
) -> Cell:
    """Makes the cell of one node; ``measured`` is what its quantization costs, None where not measured.

    What was measured of a layer in INT8 is not that of one that is in float.
    """
    if measured is None or (precision in IN_FLOAT and operator_named(operator).is_weighted):
        return Cell(node, operator, precision, module=module)
    share, alone_db = measured.noise_share, measured.only.sqnr_db
    return Cell(
        node, operator, precision, share, noise_level(share), alone_db, measured.cumulative_db, module
    )


def _intended(
    qdq: ir.Model | None, engine: EngineInfo | None, sensitivity: Sensitivity | None
) -> dict[str, tuple[str, str]]:
    """The name of each weighted node to its operator and to the precision that it was meant to have."""
    if qdq is not None:
        return {
            node.name or "": (node.op_type, "INT8" if reads_int8(node) else "float")
            for node in qdq.graph
            if operator_of(node).is_weighted
        }
    if engine is not None:
        in_float = [name for name, _ in engine.float_nodes]
        return dict.fromkeys(engine.quantized_nodes, ("", "INT8")) | dict.fromkeys(in_float, ("", "float"))
    layers = sensitivity.layers if sensitivity else ()
    return {
        layer.node: (layer.operator, "INT8") for layer in layers if operator_named(layer.operator).is_weighted
    }


def reads_int8(node: ir.Node) -> bool:
    """Whether a node's first two inputs are dequantized."""
    return all(map(is_dequantized, node.inputs[:2]))


def is_dequantized(value: ir.Value | None) -> bool:
    """Whether a DequantizeLinear makes a value."""
    return made_by(value, "DequantizeLinear") is not None


@dataclass(frozen=True)
class Bar:
    """One layer.

    Attributes:
        layer: What the layer costs.
        width: The layer's share of the noise divided by the largest share of a layer, in [0, 1].
        in_float: The precision of the layer, which was measured in INT8, if it is in float; else empty.
    """

    layer: LayerSensitivity
    width: float
    in_float: str = ""

    @property
    def weights_part(self) -> float | None:
        """The part of the layer's noise that its weights cause; see :func:`weights_part`."""
        return weights_part(self.layer.weights_db, self.layer.activations_db)

    @property
    def alone_half_db(self) -> float | None:
        """Half the width of the 95 % interval of the SQNR with the layer alone in INT8; None if infinite."""
        half = self.layer.only.interval_db[1] - self.layer.only.sqnr_db
        return half if math.isfinite(half) else None


def make_bars(
    sensitivity: Sensitivity, cells: Iterable[Cell] = (), qdq: ir.Model | None = None
) -> tuple[Bar, ...]:
    """Makes one bar per layer, in descending order of their shares of the noise.

    Args:
        sensitivity: The sensitivity of the layers.
        cells: The cells of these layers and of others.
        qdq: The Q/DQ model, or None.
    """
    in_float = {}
    if qdq is not None:  # what it lacks was cut off, and stays in float
        quantized = {node.name for node in qdq.graph if any(map(is_dequantized, node.inputs))}
        in_float = {one.node: "float" for one in sensitivity.layers if one.node not in quantized}
    in_float |= {cell.node: cell.precision for cell in cells if cell.level is None}
    largest = max((layer.noise_share for layer in sensitivity.layers), default=0.0) or 1.0
    ordered = sorted(sensitivity.layers, key=lambda layer: -layer.noise_share)
    return tuple(Bar(layer, layer.noise_share / largest, in_float.get(layer.node, "")) for layer in ordered)


def weights_part(weights_db: float | None, activations_db: float | None) -> float | None:
    """The part of a layer's noise that its weights cause, from two SQNRs of the same signal.

    An SQNR of x dB means that the noise has 10^(-x/10) of the signal's power. The powers of both noises are
    assumed to add up.

    Args:
        weights_db: SQNR with only the weights quantized; None where the layer has no quantized weights.
        activations_db: SQNR with only the activations quantized; None where the layer has none.

    Returns:
        The part, in [0, 1]; None where there are neither weights nor activations, or there is no noise.
    """
    weights, activations = (0.0 if db is None else _noise(db) for db in (weights_db, activations_db))
    total = weights + activations
    return weights / total if 0 < total < math.inf else None


def _noise(db: float) -> float:
    """The power of the noise in units of the signal's; infinite where no float holds it."""
    return 10 ** (-db / 10) if db > -3000 else math.inf


def make_cards(table: CalibrationTable) -> tuple[Card, ...]:
    """Makes one card per tensor with a histogram, in ascending order of the SQNR by the range in use.

    Args:
        table: A calibration table; tensors without a histogram, such as those of imported ranges, are left
            out.
    """
    cards = [
        card_of(index, name, table.histograms[name], amax, table.method_of(name))
        for index, (name, amax) in enumerate(table.amax.items())
        if name in table.histograms and table.histograms[name].total
    ]
    return tuple(sorted(cards, key=lambda card: (card.used.sqnr_db, card.index)))


@dataclass(frozen=True)
class TriedCandidate:
    """One candidate.

    Attributes:
        what: What was tried, in words.
        int8_share: The share of the network's arithmetic that is not left in float, in [0, 1].
        in_float: Number of layers in float.
        value: The metric's value, in the unit of :class:`Tried`; NaN where it is not known.
        shown: The value as a text.
        taken: Whether the search continued from this candidate.
        chosen: Whether this candidate is the result.
    """

    what: str
    int8_share: float
    in_float: int
    value: float
    shown: str
    taken: bool
    chosen: bool


@dataclass(frozen=True)
class Tried:
    """All candidates.

    Attributes:
        metric: The metric's name.
        unit: The unit of its values: ``%``, ``dB``, or empty for its own.
        goal: What the result had to keep, in words; empty where it is not known.
        candidates: The candidates, in the order in which they were tried.
    """

    metric: str
    unit: str
    goal: str
    candidates: tuple[TriedCandidate, ...]

    @property
    def drawn(self) -> tuple[TriedCandidate, ...]:
        """The candidates that have a place in a chart: those whose value is finite."""
        return tuple(candidate for candidate in self.candidates if math.isfinite(candidate.value))

    @property
    def chosen(self) -> TriedCandidate | None:
        """The result; None where the log does not say which it is."""
        return next((candidate for candidate in self.candidates if candidate.chosen), None)


def make_tried(log: TuningLog | None) -> Tried | None:
    """Gathers what was tried; None where there is no log, or nothing was tried.

    Logs of earlier versions have no value of the metric for some candidates; then all are shown by the SQNR.
    """
    if log is None or not log.trials:
        return None
    by_metric = bool(log.metric) and all(trial.score.value is not None for trial in log.trials)
    metric, unit = (log.metric, log.unit) if by_metric else ("sqnr", DECIBELS)
    candidates = []
    for number, trial in enumerate(log.trials):
        value = trial.score.value if by_metric else trial.score.sqnr_db
        assert value is not None  # by_metric says so
        candidates.append(
            TriedCandidate(
                trial.what,
                1.0 - trial.float_cost,
                trial.keep_float,
                value,
                figure(value, unit),
                trial.taken,
                number == log.chosen,
            )
        )
    return Tried(metric, unit, log.goal, tuple(candidates))


#: What is shown where an engine has no kernels of a part.
_NONE = ""

#: How many layers are named where only some are.
_NAMED = 3


@dataclass(frozen=True)
class KernelTable:
    """A table of texts.

    Attributes:
        columns: The headings of the columns, without that of the first one.
        rows: The rows: a name and one text per column.
        total: The last row, which sums up the others.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    total: tuple[str, ...]


@dataclass(frozen=True)
class AuditSummary:
    """What an audit says.

    Attributes:
        verdict: What INT8 changes beside FP16, in one sentence without a full stop.
        gpu: The name of the GPU that times are estimated for.
        shapes: The shapes of the model's inputs, in words.
        kernels: The number of kernels of each engine by part.
        traffic: What they read and write, by part.
        seconds: The estimated times, by part.
        costs: What INT8 takes longer for than FP16, by kind; None where that is nothing or not known.
        measured: Whether the times of the costs were measured.
    """

    verdict: str
    gpu: str
    shapes: str
    kernels: KernelTable
    traffic: KernelTable
    seconds: KernelTable
    costs: KernelTable | None = None
    measured: bool = False


def make_kernel_table(engine: EngineInfo | None) -> KernelTable | None:
    """The kernels of the engine by part, with what they read and write; None where they are not listed."""
    parts = engine.parts if engine else ()
    if not parts:
        return None
    whole = PartTotal("all", sum(part.kernels for part in parts), total_traffic(p.traffic for p in parts))
    # Only fixed shapes say what is read and written.
    moved = ("read", "written") if any(part.traffic is not None for part in parts) else ()
    columns = ("kernels", *moved)
    rows = tuple(_part_row(part)[: 1 + len(columns)] for part in parts)
    return KernelTable(columns, rows, _part_row(whole)[: 1 + len(columns)])


def make_audit_summary(audit: Audit | None) -> AuditSummary | None:
    """What an audit says; None where there is none."""
    if audit is None:
        return None
    engines = audit.engines
    totals = [engine.seconds for engine in engines]
    parts = [name for name in PARTS if any(engine.part(name).kernels for engine in engines)]

    def table(of_part: Callable[[AuditedPart], str], of_all: Callable[[AuditedEngine], str]) -> KernelTable:
        columns = tuple(engine.precision for engine in engines)
        found = {name: [engine.part(name) for engine in engines] for name in parts}
        texts = {name: (of_part(one) if one.kernels else _NONE for one in own) for name, own in found.items()}
        rows = tuple((name, *own) for name, own in texts.items())
        return KernelTable(columns, rows, ("all", *map(of_all, engines)))

    return AuditSummary(
        audit.verdict,
        audit.gpu.name,
        ", ".join(f"{name} {shape_text(shape, '×')}" for name, shape in audit.shapes.items()),
        table(lambda part: str(part.kernels), lambda engine: str(len(engine.kernels))),
        table(lambda part: _moved(part.traffic), lambda engine: _moved(engine.traffic)),
        table(lambda part: duration(part.seconds, totals), lambda engine: duration(engine.seconds, totals)),
        _cost_table(audit.costs),
        any(cost.source == "measured" for cost in audit.costs),
    )


def _cost_table(costs: Sequence[Cost]) -> KernelTable | None:
    if not costs:
        return None
    times = [*(cost.seconds for cost in costs), sum(cost.seconds for cost in costs)]
    return KernelTable(
        ("kernels", "layers", "time"),
        tuple(
            (cost.kind, str(cost.kernels), layers_text(cost.layers, _NAMED), duration(cost.seconds, times))
            for cost in costs
        ),
        ("all", str(sum(cost.kernels for cost in costs)), _NONE, duration(times[-1], times)),
    )


def _part_row(part: PartTotal) -> tuple[str, ...]:
    traffic = part.traffic
    return (
        part.part,
        str(part.kernels),
        size(traffic.read if traffic else None),
        size(traffic.written if traffic else None),
    )


def _moved(traffic: Traffic | None) -> str:
    return size(traffic.total if traffic else None)


@dataclass(frozen=True)
class SpeedRow:
    """One engine that was measured.

    Attributes:
        measured: Its measured latency and throughput.
        speedup: Throughput divided by that of the slowest engine; None for a single engine.
        moved_bytes: Bytes that an audit says it reads and writes per inference, for the audit's shapes; None
            where no audit has an engine of its precision.
        seconds: The time that the audit estimates per inference, in seconds; None where it has none.
    """

    measured: BenchReport
    speedup: float | None
    moved_bytes: int | None
    seconds: float | None


def make_speed_rows(files: ReportFiles) -> tuple[SpeedRow, ...]:
    """One row per engine that was measured, in the order in which they were measured.

    An audit's engine of the same precision is that of the name, ``FP32`` or ``FP16``; for the engine that the
    report is about it is the audit's INT8 engine.
    """
    if files.bench is None:
        return ()
    own = files.paths["engine"].name if "engine" in files.paths else None
    slowest = min((report.samples_per_second for report in files.bench.reports), default=0.0)
    several = len(files.bench.reports) > 1
    rows = []
    for report in files.bench.reports:
        audited = _audited(files.audit, report.name, is_own=report.name == own)
        traffic = audited.traffic if audited else None
        rows.append(
            SpeedRow(
                report,
                report.samples_per_second / slowest if several else None,
                traffic.total if traffic else None,
                audited.seconds if audited else None,
            )
        )
    return tuple(rows)


def _audited(audit: Audit | None, name: str, *, is_own: bool) -> AuditedEngine | None:
    """The audit's engine that is built like one that was measured."""
    if audit is None:
        return None
    alike = [
        engine
        for engine in audit.engines
        if engine.precision == name or (is_own and engine.precision.startswith("INT8"))
    ]
    return alike[-1] if alike else None
