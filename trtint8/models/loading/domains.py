"""The domains of a model's operators, and which versions of them it imports."""

from __future__ import annotations

import onnx
from onnx import helper

from calibrators.errors import ModelError
from trtint8.models.inner_graphs import message_containers

#: The other name of ONNX's own domain, which is usually written as ``""``.
_ALIAS = "ai.onnx"

#: Domains of ONNX Runtime, which knows one version of each, whether a model says so or not.
_OF_ONNX_RUNTIME = ("com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc")

#: The version of ONNX's operators in a model that imports those of other domains only. ONNX Runtime takes the
#: newest that it knows.
_UNSAID = 21


def settle_domains(message: onnx.ModelProto, name: str) -> None:
    """Writes ONNX's own domain in one way, and imports the domains that ONNX Runtime takes without.

    ONNX's checker tells ``ai.onnx`` and ``""`` apart, and ONNX Runtime and TensorRT do not.

    Args:
        message: The model; changed.
        name: What to call the model in messages.

    Raises:
        ModelError: Nothing is imported, or two versions of one domain, of which every reader takes another.
    """
    for container in message_containers(message):
        for node in container.node:
            if node.domain == _ALIAS:
                node.domain = ""
    for function in message.functions:
        if function.domain == _ALIAS:
            function.domain = ""
        _import_each_once(function, name)
    _import_each_once(message, name)
    imported = {opset.domain for opset in message.opset_import}
    used = {node.domain for container in message_containers(message) for node in container.node}
    if not imported:
        raise ModelError(f"'{name}' does not say of which opset its operators are; export it again")
    if "" not in imported:
        message.opset_import.append(helper.make_opsetid("", _UNSAID))
    for domain in _OF_ONNX_RUNTIME:
        if domain in used and domain not in imported:
            message.opset_import.append(helper.make_opsetid(domain, 1))


def _import_each_once(importing: onnx.ModelProto | onnx.FunctionProto, name: str) -> None:
    versions: dict[str, int] = {}
    for opset in importing.opset_import:
        domain = "" if opset.domain == _ALIAS else opset.domain
        if versions.setdefault(domain, opset.version) != opset.version:
            raise ModelError(
                f"'{name}' says that its operators are those of opset {versions[domain]}, and of opset "
                f"{opset.version}, in the domain '{domain or _ALIAS}'; export it again"
            )
    del importing.opset_import[:]
    importing.opset_import.extend(helper.make_opsetid(*item) for item in versions.items())
