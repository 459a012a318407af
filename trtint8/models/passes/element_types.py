"""Element types that ONNX's inference leaves open, from those beside them.

ONNX infers nothing of what operators give out that it does not define, as plugins and com.microsoft's fused
operators, nor of anything behind them. But operators that it defines have inputs and outputs of one type:
what is added to a float32 tensor is float32. Whatever stays open after that stands between two operators of
which nothing is known, and nothing else reads it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import onnx
import onnx_ir as ir

from trtint8.models.inner_graphs import holds_graphs


def settle_element_types(model: ir.Model) -> None:
    """Declares the element types of a graph's tensors that follow from others; shapes stay open.

    Args:
        model: A float32 model with inferred types; changed in place. What a QuantizeLinear reads is float32.
    """
    waiting = [node for node in model.graph if any(map(_is_open, (*node.inputs, *node.outputs)))]
    while waiting:
        node = waiting.pop()
        for value, dtype in _settled(node, model):
            value.type = ir.TensorType(dtype)
            beside = [value.producer(), *(reader for reader, _ in value.uses())]
            waiting += [one for one in beside if one is not None and one.graph is model.graph]


def _settled(node: ir.Node, model: ir.Model) -> Iterator[tuple[ir.Value, ir.DataType]]:
    """The open values beside a node whose type follows from its operator."""
    if holds_graphs(node):
        return
    if node.domain == "" and node.op_type == "QuantizeLinear" and (source := node.inputs[0]) is not None:
        if _is_open(source):
            yield source, ir.DataType.FLOAT
        return
    version = model.opset_imports.get(node.domain, 1)
    kinds = _type_names(node.op_type, version, node.domain, len(node.inputs), len(node.outputs))
    if kinds is None:
        return
    values = list(zip((*node.inputs, *node.outputs), kinds, strict=True))
    known = {kind: value.dtype for value, kind in values if value is not None and value.dtype is not None}
    for value, kind in values:
        if value is None or not _is_open(value):
            continue
        dtype = _CONCRETE.get(kind) or known.get(kind)
        if dtype is not None:
            yield value, dtype


@functools.cache
def _type_names(
    operator: str, version: int, domain: str, inputs: int, outputs: int
) -> tuple[str, ...] | None:
    """The types of inputs and outputs in an operator's schema: names of variables, or of types.

    None of an operator that ONNX does not define.
    """
    try:
        schema = onnx.defs.get_schema(operator, version, domain)
    except onnx.defs.SchemaError:
        return None
    names: list[str] = []
    for formals, count in ((schema.inputs, inputs), (schema.outputs, outputs)):
        for index in range(count):
            # The last formal parameter may be variadic, with a type for each or one for all.
            formal = formals[min(index, len(formals) - 1)]
            names.append(formal.type_str if formal.is_homogeneous else f"{formal.type_str} {index}")
    return tuple(names)


def _is_open(value: ir.Value | None) -> bool:
    return value is not None and value.type is None


#: Names of types in schemas to element types.
_CONCRETE = {
    "tensor(bool)": ir.DataType.BOOL,
    "tensor(float)": ir.DataType.FLOAT,
    "tensor(int32)": ir.DataType.INT32,
    "tensor(int64)": ir.DataType.INT64,
}
