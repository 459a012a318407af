"""Nodes that TensorRT computes by plugins, and ONNX Runtime does not know, such as EfficientNMS_TRT."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from calibrators.errors import ModelError
from trtint8.models.inner_graphs import message_graphs, nodes_inside
from trtint8.models.loading.unregistered import OF_RUNTIMES

#: The domain that ONNX Runtime's own provider for TensorRT gives plugins. TensorRT's parser finds a plugin by
#: the node's operator and does not look at the domain.
DOMAIN = "trt.plugins"

#: The domain of nodes without a domain whose operators nobody knows: of the implementations that TensorRT has
#: of such operators, all are called ``..._TRT`` or ``...Plugin...``, except a few.
_UNKNOWN = "trt.unknown"
_PLUGIN_NAMES = ("_TRT", "Plugin", "PLUGIN")
_PLUGINS = frozenset(
    {
        "CoordConvAC",
        "CropAndResize",
        "CropAndResizeDynamic",
        "ModulatedDeformConv2d",
        "Proposal",
        "ProposalDynamic",
    }
)

#: Domains whose operators ONNX Runtime computes.
_KNOWN = frozenset(
    (
        "",
        "ai.onnx",
        "ai.onnx.ml",
        "ai.onnx.training",
        "ai.onnx.preview.training",
        "com.microsoft",
        "com.microsoft.nchwc",
        "com.ms.internal.nhwc",
    )
)


#: Operators that quantize and that only the tool knows which wrote them, by domain and operator, to the tool
#: and how it writes ONNX's operators instead.
_QUANTIZERS = {
    **dict.fromkeys(
        (("org.openvinotoolkit", "FakeQuantize"), ("org.openvinotoolkit", "FakeConvert")),
        (
            "NNCF",
            "quantize the ONNX model with nncf.quantize, which writes QuantizeLinear and DequantizeLinear",
        ),
    ),
    **dict.fromkeys(
        (
            (domain, operator)
            for domain in ("qonnx.custom_op.general", "finn.custom_op.general", "onnx.brevitas")
            for operator in ("BipolarQuant", "FloatQuant", "IntQuant", "Quant", "Trunc")
        ),
        ("Brevitas or QONNX", "export it with brevitas.export.export_onnx_qcdq"),
    ),
    **dict.fromkeys(
        (
            (f"aimet.customop.{device}", operator)
            for device in ("cpu", "cuda")
            for operator in ("GroupedBlockQuantizeDequantize", "QcQuantizeOp")
        ),
        ("AIMET", "export it with to_onnx_qdq()"),
    ),
    **dict.fromkeys(
        (("trt", "TRT_INT8QuantizeLinear"), ("trt", "TRT_INT8DequantizeLinear")),
        (
            "an older Model Optimizer",
            "export it with a newer version, which writes QuantizeLinear and DequantizeLinear",
        ),
    ),
}


def refuse_tool_quantizers(message: onnx.ModelProto, name: str) -> None:
    """Refuses quantizers of other tools: without them a quantized model would be taken for a float one.

    Args:
        message: The model.
        name: Its name in messages.

    Raises:
        ModelError: A node is such a quantizer.
    """
    functions = {(function.domain, function.name) for function in message.functions}
    for nodes in (one.node for one in (*message_graphs(message.graph), *message.functions)):
        for node in nodes:
            kind = node.domain, node.op_type
            if kind in _QUANTIZERS and kind not in functions:
                tool, advice = _QUANTIZERS[kind]
                raise ModelError(
                    f"'{name}' is quantized by {tool}: node '{node.name or node.output[0]}' is {kind[1]} of "
                    f"the domain '{kind[0]}', which neither ONNX Runtime nor TensorRT has; {advice}"
                )


def declare_plugins(message: onnx.ModelProto) -> None:
    """Puts nodes of ONNX's own domain whose operator ONNX does not have into domains of their own.

    NVIDIA's graphsurgeon writes plugins without a domain, which ONNX's checker refuses. A node whose operator
    has no name of a plugin may be one as well, or a mistake of an exporter; see :func:`unknown_nodes`.

    Args:
        message: The model; changed.
    """
    functions = {function.name for function in message.functions if not function.domain}
    _declare_in(message.graph, message, functions)
    for function in message.functions:
        found = _declare_in(function, function, functions)
        _import(found, message)


def _declare_in(
    container: onnx.GraphProto | onnx.FunctionProto,
    importing: onnx.ModelProto | onnx.FunctionProto,
    functions: set[str],
) -> set[str]:
    """Does that in one graph or function, and returns the domains of what was found."""
    found: set[str] = set()
    for graph in message_graphs(container):
        for node in graph.node:
            known = onnx.defs.has(node.op_type) or node.op_type in OF_RUNTIMES or node.op_type in functions
            if not node.domain and not known:
                usual = node.op_type in _PLUGINS or any(part in node.op_type for part in _PLUGIN_NAMES)
                node.domain = DOMAIN if usual else _UNKNOWN
                found.add(node.domain)
    _import(found, importing)
    return found


def _import(domains: set[str], importing: onnx.ModelProto | onnx.FunctionProto) -> None:
    for domain in sorted(domains - {opset.domain for opset in importing.opset_import}):
        importing.opset_import.append(onnx.helper.make_opsetid(domain, 1))


def is_unknown(node: ir.Node) -> bool:
    """True of a node of a checked model whose operator is neither ONNX's nor known to be a plugin."""
    return node.domain == _UNKNOWN


def unknown_nodes(graph_model: ir.Model) -> list[ir.Node]:
    """The nodes of a model's main graph whose operators are neither ONNX's nor known to be plugins.

    Args:
        graph_model: A checked model.
    """
    return list(filter(is_unknown, graph_model.graph))


def plugin_nodes(graph_model: ir.Model) -> list[ir.Node]:
    """The nodes of a model's main graph that are plugins, or have one inside.

    Args:
        graph_model: The model.
    """
    functions = {(domain, name) for domain, name, _ in graph_model.functions}

    def is_plugin(node: ir.Node) -> bool:
        return node.domain not in _KNOWN and (node.domain, node.op_type) not in functions

    return [node for node in graph_model.graph if any(map(is_plugin, (node, *nodes_inside(node))))]
