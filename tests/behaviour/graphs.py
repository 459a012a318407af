"""ONNX models as lines of text that do not depend on how names were made up for what was put in."""

from collections import Counter

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from tests.behaviour.text import number

_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"


def graph_lines(model):
    """The nodes by operator, with ``[x]`` for an input that passes through a pair, and the pairs."""
    lines = [f"opset {one.domain or 'onnx'} {one.version}" for one in model.opset_import]
    lines += [f"input {_value(one)}" for one in model.graph.input]
    lines += [f"output {_value(one)}" for one in model.graph.output]
    return [*sorted(lines), *_nodes(model.graph, "")]


def operators(model):
    """How often each operator stands in a model, in one line."""
    counts = Counter(node.op_type for node in model.graph.node)
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


def constants(graph):
    """How many constants of each type a graph has, in one line."""
    counts = Counter(TensorProto.DataType.Name(one.data_type).lower() for one in graph.initializer)
    return ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items()))


def _value(value):
    tensor = value.type.tensor_type
    dims = [str(d.dim_value) if d.HasField("dim_value") else d.dim_param or "?" for d in tensor.shape.dim]
    return f"{value.name} {TensorProto.DataType.Name(tensor.elem_type).lower()} {'x'.join(dims) or 'scalar'}"


def _nodes(graph, indent):
    values = {one.name: one for one in graph.initializer}
    makers = {output: node for node in graph.node for output in node.output}
    pairs, nodes = {}, []
    for node in graph.node:
        if node.op_type == _DEQUANTIZE:
            source, line = _pair(node, makers, values)
            pairs.setdefault(source, []).append(line)
    for node in graph.node:
        if node.op_type in (_QUANTIZE, _DEQUANTIZE):
            continue
        inputs = " ".join(_source(name, makers) for name in node.input)
        outputs = " ".join(node.output)
        nodes.append(f"{indent}{node.op_type} {_stable(node)}: {inputs} -> {outputs}")
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                nodes += [f"{indent}  {attribute.name}", *_nodes(attribute.g, indent + "    ")]
    lines = [f"{indent}pair {source}: {line}" for source, ones in pairs.items() for line in sorted(set(ones))]
    # Nodes with a graph inside keep its lines below them; others are sorted.
    nested = any(line.startswith(f"{indent} ") for line in nodes)
    return [*(nodes if nested else sorted(nodes)), *sorted(lines), f"{indent}constants: {constants(graph)}"]


def _stable(node):
    return node.name if "Cast" not in node.op_type else ""


def _source(name, makers):
    maker = makers.get(name)
    if maker is None or maker.op_type != _DEQUANTIZE:
        return name or "-"
    return f"[{_origin(maker, makers)}]"


def _origin(dequantize, makers):
    quantize = makers.get(dequantize.input[0])
    return (
        quantize.input[0] if quantize is not None and quantize.op_type == _QUANTIZE else dequantize.input[0]
    )


def _pair(dequantize, makers, initializers):
    quantize = makers.get(dequantize.input[0])
    kind = "Q DQ" if quantize is not None and quantize.op_type == _QUANTIZE else "DQ"
    scale = initializers.get(dequantize.input[1])
    values = np.zeros(0) if scale is None else numpy_helper.to_array(scale).astype(np.float64)
    axis = next((f"axis {one.i} " for one in dequantize.attribute if one.name == "axis" and values.ndim), "")
    zero = initializers.get(dequantize.input[2]) if len(dequantize.input) > 2 else None
    if zero is None:
        quantized = "int8"
    else:
        points = numpy_helper.to_array(zero)
        quantized = points.dtype.name + (f" zero {points.min()}..{points.max()}" if points.any() else "")
    if not values.size:
        shown = f"scale {dequantize.input[1]}"
    elif values.ndim:
        shown = f"{values.size} scales {number(values.min())} .. {number(values.max())}"
    else:
        shown = f"scale {number(values)}"
    return _origin(dequantize, makers), f"{kind} {axis}{quantized} {shown}"
