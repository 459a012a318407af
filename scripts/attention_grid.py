"""Whether INT8 keeps the fused attention that FP16 has: every size, mask and compute capability in a grid.

python scripts/attention_grid.py                  # the whole grid, about 20 minutes on 2 cores
python scripts/attention_grid.py --smallest       # a few of its corners

Each attention is built twice by TensorRT for RTX, which needs no GPU: in FP16, and quantized for the target
``rtx`` with FP16 around it. Fused attentions are the layers whose name holds ``_mha``.
"""

from __future__ import annotations

import argparse
import itertools
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from calibrators.tables.table import CalibrationTable
from calibrators.tensorrt import flavor
from trtint8.builder.build import Build
from trtint8.models.model import Model, load_model, prepare
from trtint8.models.serialization import runnable
from trtint8.quantization.float16 import to_float16
from trtint8.quantization.placement import placed_tensors
from trtint8.quantization.quantize import QuantizeOptions, quantize_graph
from trtint8.quantization.targets import target_named

_MASKS = ("none", "added", "causal", "chosen", "guarded", "infinite")
_LENGTHS = (16, 65, 197, 384, 512, 513, 1024)
_HEADS = (8, 16, 24, 32, 48, 64, 80, 96, 128, 256)
_CAPABILITIES = ("8.0", "8.6", "8.9", "12.0")


@dataclass(frozen=True)
class Case:
    """One attention of two heads between linear layers.

    Attributes:
        length: The number of queries.
        keys: The number of keys.
        head: Channels per head.
        mask: One of "none", "added", "causal" and "chosen"; or, with the guard against NaN that PyTorch
            writes behind the softmax, "guarded" for finite numbers and "infinite" for minus infinity.
        capability: The compute capability that is built for.
    """

    length: int
    keys: int
    head: int
    mask: str
    capability: str


@dataclass(frozen=True)
class Result:
    """What became of the attentions of one model.

    Attributes:
        float16: The number of fused attentions of the FP16 engine.
        mixed: The number of fused attentions of the engine in INT8 and FP16.
        in_int8: How many of these compute in INT8.
    """

    float16: int
    mixed: int
    in_int8: int

    @property
    def kept(self) -> bool:
        """Whether INT8 has at least as many fused attentions as FP16."""
        return self.mixed >= self.float16


def grid(smallest: bool) -> Iterator[Case]:
    """The cases: every combination of length, head, mask and compute capability, and some of other keys."""
    if smallest:
        corners = itertools.product((64, 512, 513), (32, 48, 64), ("none", "causal"), ("8.6",))
        yield from (
            Case(length, length, head, mask, capability) for length, head, mask, capability in corners
        )
        return
    for length, head, mask, capability in itertools.product(_LENGTHS, _HEADS, _MASKS, _CAPABILITIES):
        yield Case(length, length, head, mask, capability)
    for (length, keys), head in itertools.product(((600, 64), (64, 600), (1, 128), (128, 77)), (32, 64, 80)):
        yield Case(length, keys, head, "none", "8.6")


def measure(case: Case) -> Result:
    """Builds both engines of a case and counts their fused attentions."""
    return measure_model(attention(case), case.capability)


def measure_model(model: onnx.ModelProto, capability: str) -> Result:
    """Builds both engines of a model and counts their fused attentions.

    Args:
        model: A float model.
        capability: The compute capability that is built for.
    """
    prepared = prepare(load_model(model))
    table = CalibrationTable(dict.fromkeys(placed_tensors(prepared.graph_model), 1.0))
    quantized, _ = quantize_graph(prepared, table, QuantizeOptions(target=target_named("rtx", capability)))
    (float16, _), (mixed, in_int8) = (
        _fused(graph_model, prepared, capability) for graph_model in (prepared.graph_model, quantized)
    )
    return Result(float16, mixed, in_int8)


def _fused(graph_model: ir.Model, prepared: Model, capability: str) -> tuple[int, int]:
    """The number of fused attentions of an engine, and how many of them read INT8."""
    typed, _ = to_float16(graph_model, float32_io=True, peaks=None, name=prepared.name)
    with runnable(typed) as serialized:
        build = Build(flavor.load("rtx"), prepared.inputs, compute_capabilities=[capability], progress=False)
        built = build.run(serialized, int8=True)
    assert built.report is not None, "TensorRT for RTX lists its layers"
    fused = [layer for layer in built.report.layers if "_mha" in layer.name]
    return len(fused), sum("Int8" in layer.inputs for layer in fused)


class _Graph:
    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._random = np.random.default_rng(0)

    def constant(self, array: NDArray[np.generic]) -> str:
        name = f"constant{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def weights(self, *shape: int) -> str:
        return self.constant(self._random.standard_normal(shape).astype(np.float32) * np.float32(0.05))

    def op(self, operator: str, inputs: Sequence[str], name: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(operator, inputs, [f"{name}_out"], name, **attributes))
        return f"{name}_out"


def attention(case: Case) -> onnx.ModelProto:
    """The model of a case: three linear layers, attention, and a linear layer."""
    g, heads, width = _Graph(), 2, 2 * case.head
    inputs = {"x": [1, case.length, width]}
    if case.keys != case.length:
        inputs["y"] = [1, case.keys, width]

    def part(name: str, source: str, perm: Sequence[int]) -> str:
        linear = g.op("MatMul", [source, g.weights(width, width)], f"{name}_linear")
        sizes = g.constant(np.array([0, 0, heads, case.head]))
        return g.op(
            "Transpose", [g.op("Reshape", [linear, sizes], f"{name}_cut")], f"{name}_heads", perm=perm
        )

    other = "y" if "y" in inputs else "x"
    queries, keys = part("q", "x", [0, 2, 1, 3]), part("k", other, [0, 2, 3, 1])
    scale = g.constant(np.asarray(case.head**-0.5, np.float32))
    scores = g.op("MatMul", [g.op("Mul", [queries, scale], "scale"), keys], "scores")
    zero = g.constant(np.zeros((), np.float32))
    low = np.full((case.length, case.keys), -1e4, np.float32)
    if case.mask == "added":
        inputs["mask"] = [1, 1, 1, case.keys]
        scores = g.op("Add", [scores, "mask"], "mask_add")
    elif case.mask == "causal":
        scores = g.op("Add", [scores, g.constant(np.triu(low, 1))], "mask_add")
    elif case.mask == "chosen":
        visible = g.constant(np.tril(np.ones(low.shape, np.bool_)))
        scores = g.op("Where", [visible, scores, g.constant(np.asarray(-1e4, np.float32))], "mask_where")
    elif case.mask in ("guarded", "infinite"):
        inputs["mask"] = [1, 1, 1, case.keys]
        hidden = g.constant(
            np.asarray(-np.inf if case.mask == "infinite" else np.finfo(np.float32).min, np.float32)
        )
        seen = g.op("Cast", ["mask"], "seen", to=TensorProto.BOOL)
        mask = g.op("Where", [seen, zero, hidden], "mask_where")
        scores = g.op("Add", [scores, mask], "mask_add")
    softmax = g.op("Softmax", [scores], "softmax", axis=-1)
    if case.mask in ("guarded", "infinite"):
        softmax = g.op("Where", [g.op("IsNaN", [softmax], "nan"), zero, softmax], "guard")
    context = g.op("MatMul", [softmax, part("v", other, [0, 2, 1, 3])], "context")
    sizes = g.constant(np.array([0, 0, width]))
    joined = g.op("Reshape", [g.op("Transpose", [context], "turn", perm=[0, 2, 1, 3]), sizes], "join")
    y = g.op("MatMul", [joined, g.weights(width, width)], "out_linear")
    graph = helper.make_graph(
        g.nodes,
        "attention",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(y, TensorProto.FLOAT, [1, case.length, width])],
        g.constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def table_of(results: Mapping[Case, Result]) -> str:
    """A Markdown table: a row per length, a column per head."""
    heads = sorted({case.head for case in results})
    lines = [
        "Fused attentions in INT8 + in FP16, of those that FP16 fuses; all masks and compute capabilities.",
        "",
        f"| queries x keys | {' | '.join(f'D {head}' for head in heads)} |",
        f"|---|{'---|' * len(heads)}",
    ]
    for size in dict.fromkeys((case.length, case.keys) for case in results):
        cells = []
        for head in heads:
            found = [r for case, r in results.items() if (case.length, case.keys, case.head) == (*size, head)]
            in_int8, mixed = sum(r.in_int8 for r in found), sum(r.mixed for r in found)
            cells.append(f"{in_int8} + {mixed - in_int8} of {sum(r.float16 for r in found)}" if found else "")
        lines.append(f"| {size[0]} x {size[1]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measures the grid and prints it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--smallest", action="store_true", help="a few corners of the grid")
    parser.add_argument("--part", metavar="I/N", default="1/1", help="only every N-th case, from the I-th on")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    first, step = map(int, options.part.split("/"))
    start, results = time.perf_counter(), {}
    for case in itertools.islice(grid(options.smallest), first - 1, None, step):
        results[case] = measure(case)
        if not results[case].kept:
            print("lost:", case, results[case], flush=True)
    print(table_of(results))
    kept, seconds = sum(result.kept for result in results.values()), time.perf_counter() - start
    print(f"\n{kept} of {len(results)} keep their fusion ({kept / len(results):.1%}), {seconds:.0f} s")


if __name__ == "__main__":
    main()
