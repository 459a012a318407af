"""Nodes that TensorRT computes by plugins, and ONNX Runtime does not know, such as EfficientNMS_TRT.

Operators that ONNX does not have in a model's opset, and that ONNX Runtime and TensorRT take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import onnx
import onnx_ir as ir
from onnx import helper

from calibrators.errors import ModelError
from calibrators.operators import RUNTIME_DOMAINS, operator_named, operator_of
from trtint8.models.graph import message_containers, message_graphs, nodes_inside

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
        *RUNTIME_DOMAINS,
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

    def is_known(operator: str) -> bool:
        runs = operator_named(operator).runs_below > _opset(message)
        return runs or operator in functions or onnx.defs.has(operator)

    _declare_in(message.graph, message, is_known)
    for function in message.functions:
        found = _declare_in(function, function, is_known)
        import_domains(found, message)


def _declare_in(
    container: onnx.GraphProto | onnx.FunctionProto,
    importing: onnx.ModelProto | onnx.FunctionProto,
    is_known: Callable[[str], bool],
) -> set[str]:
    """Does that in one graph or function, and returns the domains of what was found."""
    found: set[str] = set()
    for graph in message_graphs(container):
        for node in graph.node:
            if not node.domain and not is_known(node.op_type):
                usual = node.op_type in _PLUGINS or any(part in node.op_type for part in _PLUGIN_NAMES)
                node.domain = DOMAIN if usual else _UNKNOWN
                found.add(node.domain)
    import_domains(found, importing)
    return found


def import_domains(domains: Iterable[str], importing: onnx.ModelProto | onnx.FunctionProto) -> None:
    """Imports the first version of those domains that are not imported yet."""
    for domain in sorted(set(domains) - {opset.domain for opset in importing.opset_import}):
        importing.opset_import.append(helper.make_opsetid(domain, 1))


def is_unknown(node: ir.Node) -> bool:
    """True of a node of a checked model whose operator is neither ONNX's nor known to be a plugin."""
    return node.domain == _UNKNOWN


def unknown_nodes(graph_model: ir.Model) -> list[ir.Node]:
    """The nodes of a model's main graph whose operators are neither ONNX's nor known to be plugins.

    Args:
        graph_model: A checked model.
    """
    return list(filter(is_unknown, graph_model.graph))


def runtime_nodes(graph_model: ir.Model) -> list[ir.Node]:
    """The nodes of a model's main graph that ONNX Runtime's optimizer writes, and that only it computes.

    Those that compute on the integers of quantized tensors, which can be written as Q/DQ pairs, are left out.

    Args:
        graph_model: The model.
    """
    return [
        node
        for node in graph_model.graph
        if node.domain in RUNTIME_DOMAINS
        and not (operator_of(node).integers or operator_of(node).half_of_pair)
    ]


def plugin_nodes(graph_model: ir.Model) -> list[ir.Node]:
    """The nodes of a model's main graph that are plugins, or have one inside.

    Args:
        graph_model: The model.
    """
    return [
        node
        for node in graph_model.graph
        if any(each.domain not in _KNOWN for each in (node, *nodes_inside(node)))
    ]


#: The domain of such operators while onnx looks at a model, which would refuse them.
HIDDEN = "trtint8.hidden"

#: Operators that ONNX has withdrawn from some opsets because a later one changed them.
_WITHDRAWN = frozenset({"GroupNormalization"})


def hide(message: onnx.ModelProto) -> onnx.ModelProto:
    """Puts the operators that onnx would refuse into a domain of which it does not know anything.

    Args:
        message: The model; changed.

    Returns:
        The same message.
    """
    for container in message_containers(message):
        for node in container.node:
            if not node.domain and _is_unregistered(node.op_type, _opset(message)):
                node.domain = HIDDEN
                import_domains([HIDDEN], message)
    return message


def show(graph_model: ir.Model) -> None:
    """Puts the operators back that :func:`hide` has hidden.

    Args:
        graph_model: The model; changed.
    """
    for node in graph_model.graph.all_nodes():
        if node.domain == HIDDEN:
            node.domain = ""
    graph_model.opset_imports.pop(HIDDEN, None)


def needed_opset(message: onnx.ModelProto) -> int:
    """The oldest opset that has all operators of ONNX in a model, where its own has not; else its own.

    ONNX Runtime's optimizer for transformers writes LayerNormalization into models of any opset.

    Args:
        message: The model.
    """
    operators = {
        node.op_type
        for container in message_containers(message)
        for node in container.node
        if not node.domain and onnx.defs.has(node.op_type)
    }
    return max([_opset(message), *(_first_version(operator) for operator in operators)])


def _opset(message: onnx.ModelProto) -> int:
    return next((opset.version for opset in message.opset_import if not opset.domain), 0)


def _is_unregistered(operator: str, opset: int) -> bool:
    if not onnx.defs.has(operator):
        return operator_named(operator).runs_below > opset
    try:
        return bool(onnx.defs.get_schema(operator, opset, "").deprecated) and operator in _WITHDRAWN
    except onnx.defs.SchemaError:
        return True


def _first_version(operator: str) -> int:
    version = int(onnx.defs.get_schema(operator).since_version)
    while version > 1:
        try:
            version = int(onnx.defs.get_schema(operator, version - 1, "").since_version)
        except onnx.defs.SchemaError:
            break
    return version
