"""Nodes that TensorRT computes by plugins, and ONNX Runtime does not know, such as EfficientNMS_TRT."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from trtint8.models.inner_graphs import message_graphs, nodes_inside
from trtint8.models.loading.unregistered import OF_RUNTIMES

#: The domain that ONNX Runtime's own provider for TensorRT gives plugins. TensorRT's parser finds a plugin by
#: the node's operator and does not look at the domain.
DOMAIN = "trt.plugins"

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


def declare_plugins(message: onnx.ModelProto) -> None:
    """Puts nodes of ONNX's own domain whose operator ONNX does not have into that of plugins.

    NVIDIA's graphsurgeon writes plugins without a domain, which ONNX's checker refuses.

    Args:
        message: The model; changed.
    """
    functions = {function.name for function in message.functions if not function.domain}
    found = False
    for graph in message_graphs(message.graph):
        for node in graph.node:
            known = onnx.defs.has(node.op_type) or node.op_type in OF_RUNTIMES or node.op_type in functions
            if not node.domain and not known:
                node.domain, found = DOMAIN, True
    if found and DOMAIN not in {opset.domain for opset in message.opset_import}:
        message.opset_import.append(onnx.helper.make_opsetid(DOMAIN, 1))


def plugin_nodes(graph_model: ir.Model) -> list[ir.Node]:
    """The nodes of a model's main graph that are plugins, or have one inside.

    Args:
        graph_model: The model.
    """
    functions = {(domain, name) for domain, name, _ in graph_model.functions}

    def is_plugin(node: ir.Node) -> bool:
        return node.domain not in _KNOWN and (node.domain, node.op_type) not in functions

    return [node for node in graph_model.graph if any(map(is_plugin, (node, *nodes_inside(node))))]
