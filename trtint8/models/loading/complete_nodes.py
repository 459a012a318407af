"""Checks that nodes have the inputs and attributes that they need, and weights that are numbers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators.display.counts import counted
from calibrators.errors import ModelError
from calibrators.operators import operator_of
from trtint8.models.graph_constants import read_constant
from trtint8.models.inner_graphs import all_nodes
from trtint8.models.onnx_errors import run_passes
from trtint8.models.passes.inline_functions import InlineFunctionsPass

_Option = onnx.defs.OpSchema.FormalParameterOption


def check_complete(graph_model: ir.Model, name: str) -> None:
    """Refuses nodes that leave out an input or an attribute which their operators need.

    ONNX's checker does not see what is left out where a function is called, nor in a list of inputs, with
    which ONNX Runtime crashes.

    Args:
        graph_model: Any model.
        name: The model's name in messages.

    Raises:
        ModelError: Something is left out; names the node.
    """
    for node in all_nodes(graph_model):
        missing = next(_missing(node, graph_model), None)
        if missing is not None:
            made = node.outputs[0].name if node.outputs else ""
            raise ModelError(
                f"the node '{node.name or made}' ({node.op_type}) of '{name}' has no {missing}, "
                "which it needs; export the model again"
            )


def _missing(node: ir.Node, graph_model: ir.Model) -> Iterator[str]:
    """The inputs and attributes that a node needs and lacks, in words."""
    # The pairs of ONNX Runtime's own domain take what ONNX's take.
    domain = "" if operator_of(node).half_of_pair else node.domain
    try:
        schema = onnx.defs.get_schema(node.op_type, graph_model.opset_imports.get(domain, 1), domain)
    except onnx.defs.SchemaError:  # not one of ONNX's operators
        return
    for index, formal in enumerate(schema.inputs):
        if formal.option == _Option.Variadic:
            lacks = None in node.inputs[index:]
        else:
            lacks = formal.option == _Option.Single and node.inputs[index : index + 1] in ((), (None,))
        if lacks:
            yield f"input '{formal.name}'"
    for attribute in schema.attributes.values():
        if attribute.required and attribute.name not in node.attributes:
            yield f"attribute '{attribute.name}'"
    if (node.domain, node.op_type) == ("", "Constant") and not node.attributes:
        yield "value"


def check_weights(graph_model: ir.Model, name: str) -> None:
    """Refuses weights that are no numbers, as training that diverged and files that were cut leave them.

    Args:
        graph_model: Any model.
        name: The model's name in messages.

    Raises:
        ModelError: A constant that a node computes with holds NaN, or weights are infinite; names both.
    """
    if graph_model.functions:  # whose constants stand where they are called
        inlined = graph_model.clone()
        with contextlib.suppress(ModelError):  # who prepares the model is told
            run_passes(inlined, name, InlineFunctionsPass())
            graph_model = inlined
    nodes = list(all_nodes(graph_model))
    looks_for_nan = any(node.op_type == "IsNaN" for node in nodes)
    for node in nodes:
        weights = operator_of(node).weights
        if weights is None or (looks_for_nan and not weights):
            continue
        # What is wrong with the scale of a pair, the check of pairs says.
        for index, value in enumerate(node.inputs[:1] if node.op_type == "QuantizeLinear" else node.inputs):
            if value is None or value.dtype is None or not value.dtype.is_floating_point():
                continue
            array = read_constant(value)
            if array is not None and (bad := _not_numbers(array, bool(weights), index in weights)):
                made_by = node.name or node.outputs[0].name
                raise ModelError(
                    f"the constant '{value.name}' of '{name}', which node '{made_by}' ({node.op_type}) "
                    f"computes with, holds {bad} among {counted(array.size, 'value')}; take weights from "
                    "before training diverged, or export or download the model again"
                )


def _not_numbers(array: NDArray[Any], is_layer: bool, is_weight: bool) -> str:
    """How many values of an array are none to compute with, in words; nothing where all are."""
    with np.errstate(all="ignore"):
        # Finite sums are of finite numbers, and are found faster.
        sums = array.dtype in (np.float32, np.float64) and np.isfinite(array.sum())
    if sums or np.isfinite(array).all():
        return ""
    if nans := int(np.isnan(array).sum()):
        return f"NaN {counted(nans, 'time')}"
    infinities = int((np.isinf(array) if is_weight else np.isposinf(array)).sum()) if is_layer else 0
    return f"infinity {counted(infinities, 'time')}" if infinities else ""
