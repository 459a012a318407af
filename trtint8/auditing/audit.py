"""Puts what engines of one model in FP32, FP16 and INT8 do side by side.

Says in one sentence what INT8 changes beside FP16, and which layers are the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from calibrators.tables.table import CalibrationTable
from calibrators.tensorrt.flavor import title_of
from trtint8.auditing.estimator import Estimator, EstimatorOptions, seconds_per_node
from trtint8.auditing.gpus import Gpu
from trtint8.auditing.results import Audit, AuditedEngine
from trtint8.models.model import Model, prepare
from trtint8.models.outputs.picked import left_out_nodes, runnable_part
from trtint8.quantization.quantize import QuantizeOptions, quantize_graph


def audit_model(
    model: Model,
    table: CalibrationTable,
    gpu: Gpu,
    options: EstimatorOptions,
    keep_float: Sequence[str] = (),
    keep_int8: Sequence[str] = (),
) -> Audit:
    """Builds the engines and estimates their times.

    Args:
        model: A float model.
        table: Its calibration table.
        gpu: The GPU that times are estimated for.
        options: How the engines are built.
        keep_float: Names of nodes, or patterns, that stay in float.
        keep_int8: Names of nodes, or patterns, that are in INT8 although that is estimated to be slower.

    Returns:
        The engines, side by side, without plugins at the end of the model.

    Raises:
        ModelError: The model is unusable.
        TableError: The table is of another model, or lacks a range.
        BuildError: TensorRT refuses the model, or the profile does not fit.
        UnsupportedError: This TensorRT does not list the layers of an engine.
        GpuUnavailableError: This TensorRT needs a GPU to build.
    """
    prepared = prepare(model)
    estimator = Estimator.open(runnable_part(prepared), table.provenance.input_sizes, gpu, options)
    fixed, peaks, work = estimator.model, table.peaks, estimator.work
    asked, shapes = QuantizeOptions(keep_float, keep_int8, estimator.quantization_target), estimator.shapes
    quantized, _ = quantize_graph(fixed, table, asked, largest=shapes)
    mixed, _ = quantize_graph(fixed, table, replace(asked, float16=True), largest=shapes)
    engines = (
        estimator.estimate("FP32", fixed.graph_model, peaks, fp16=False),
        estimator.estimate("FP16", fixed.graph_model, peaks, fp16=True),
        estimator.estimate("INT8", quantized, peaks, fp16=False),
        estimator.estimate("INT8+FP16", mixed, peaks, fp16=True),
    )
    builder = title_of(estimator.flavor.name)
    if estimator.of_another_gpu:
        builder = f"another TensorRT than {builder}, which runs no INT8 there,"
    verdict = judge(engines, gpu.name, builder, work.multiply_adds)
    return Audit(
        model=model.name,
        gpu=gpu,
        flavor=estimator.flavor.name,
        tensorrt_version=estimator.flavor.version,
        compute_capability=estimator.compute_capability or "current",
        shapes=shapes,
        engines=engines,
        verdict=verdict.sentence,
        reasons=verdict.reasons,
        uncounted=work.uncounted,
        model_fingerprint=model.fingerprint,
        table_fingerprint=table.fingerprint,
        left_out=left_out_nodes(prepared),
    )


#: INT8 is said to gain or lose something where the estimates differ by more than these factors.
_FASTER, _SLOWER = 1.1, 0.95

#: The number of layers that the sentence names.
_NAMED = 3

#: The least share of the bytes in requantization that the sentence names.
_WORTH_SAYING = 0.1

_FLOAT, _INT8 = "FP16", ("INT8", "INT8+FP16")


@dataclass(frozen=True)
class Verdict:
    """What INT8 changes beside FP16.

    Attributes:
        sentence: The sentence, without a full stop.
        reasons: Names of the ONNX nodes that take longer in INT8, the worst first; empty where INT8 gains.
    """

    sentence: str
    reasons: tuple[str, ...]


def judge(engines: Sequence[AuditedEngine], gpu: str, builder: str, work: Mapping[str, int]) -> Verdict:
    """Compares the faster one of the INT8 engines with the FP16 engine.

    Args:
        engines: The engines; one of them FP16, and one at least INT8.
        gpu: The name of the GPU.
        builder: The TensorRT that builds for the GPU, in words: another one makes other kernels.
        work: Name of each ONNX node that computes products to the number of its multiply-adds.

    Returns:
        The verdict.
    """
    half = next(engine for engine in engines if engine.precision == _FLOAT)
    known = [engine for engine in engines if engine.precision in _INT8 and engine.seconds]
    int8 = min(known, key=lambda engine: sum(engine.ends or ()), default=half)
    if not known or int8.traffic is None or half.traffic is None or not half.ends or not int8.ends:
        return Verdict(
            f"the builder does not list the shapes and types of all tensors, so INT8 and {_FLOAT} cannot be "
            "compared",
            (),
        )
    slowest, fastest = sorted(before / after for before, after in zip(half.ends, int8.ends, strict=True))
    bytes_ratio = int8.traffic.total / half.traffic.total
    moved = f"{int8.precision} moves {bytes_ratio:.2g}x the bytes of {_FLOAT} here{_requantized(int8)}"
    sentence = (
        f"{moved}; on {_with_article(gpu)} with {builder} expect {_expected(slowest, fastest)} "
        f"({_estimated(half.ends, int8.ends)})"
    )
    if slowest >= _FASTER:
        return Verdict(sentence, ())
    losses = _losses(half, int8, work)
    return Verdict(f"{sentence}{_attention(half, int8)}{_because(losses)}", tuple(losses))


def _expected(slowest: float, fastest: float) -> str:
    """The speed to expect, as a span where its ends differ."""
    if slowest >= _SLOWER and fastest < _FASTER:
        return "no gain"
    ends = dict.fromkeys((f"{slowest:.2g}", f"{fastest:.2g}"))
    return f"{' to '.join(ends)}x the speed of {_FLOAT}"


def _estimated(half: tuple[float, float], int8: tuple[float, float]) -> str:
    """The estimated times of both ends; only one where they are the same."""
    memory, cache = (
        f"{_milliseconds(one)} beside {_milliseconds(other)} ms"
        for one, other in zip(int8, half, strict=True)
    )
    if memory == cache:
        return f"estimated {memory}"
    return f"estimated {memory} with all bytes from memory, {cache} with what fits from the L2 cache"


def _losses(half: AuditedEngine, int8: AuditedEngine, work: Mapping[str, int]) -> list[str]:
    """The nodes that take longer in INT8, beginning with the one that loses most."""
    before, after = seconds_per_node(half, work), seconds_per_node(int8, work)
    lost = {node: after[node] - before.get(node, 0.0) for node in after}
    return sorted((node for node in lost if lost[node] > 0), key=lambda node: -lost[node])


def _because(losses: Sequence[str]) -> str:
    if not losses:
        return ""
    named, others = list(losses[:_NAMED]), len(losses) - _NAMED
    if others > 0:
        named.append(f"{others} other layer{'s' if others > 1 else ''}")
    listed = ", ".join(named[:-1]) + " and " + named[-1] if len(named) > 1 else named[0]
    return f"; {listed} {'are' if len(named) > 1 else 'is'} the reason"


def _requantized(int8: AuditedEngine) -> str:
    """Says which share of the bytes requantization moves; empty where it is small."""
    requantization, total = int8.part("requantization").traffic, int8.traffic
    share = requantization.total / total.total if requantization and total and total.total else 0.0
    return f", {100 * share:.0f} % of them in requantization" if share >= _WORTH_SAYING else ""


def _attention(half: AuditedEngine, int8: AuditedEngine) -> str:
    """Says how many fused attentions INT8 loses; empty where it loses none."""
    before, after = (engine.part("attention").kernels for engine in (half, int8))
    if after >= before:
        return ""
    return f"; {before - after} of {before} fused attentions are lost"


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}"


def _with_article(name: str) -> str:
    """A GPU's name after "a" or "an", as it is spoken: "an RTX 4090", "a T4"."""
    return f"{'an' if name[0] in 'AEFHILMNORSX' else 'a'} {name}"
