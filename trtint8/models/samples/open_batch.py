"""Networks that take a fixed number of samples, as ones that take any number."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from trtint8.models.garbage_collection import pause_garbage_collection
from trtint8.models.graph_constants import constant_integers, set_constant_input
from trtint8.models.passes.infer_shapes import InferShapesPass
from trtint8.models.samples.separate import joined_by_graph
from trtint8.models.static_shapes import declared_sizes

#: What the first axis of every input is called.
_SAMPLES = "samples"


@pause_garbage_collection()
def with_open_batch(graph_model: ir.Model) -> ir.Model:
    """A model that computes the same for any number of samples.

    Args:
        graph_model: From :func:`trtint8.models.model.prepare`; not changed.

    Returns:
        A copy; the model itself where its inputs do not fix one number of samples above 1, or where samples
        may depend on each other.
    """
    batch = _fixed_batch(graph_model)
    if batch is None:
        return graph_model
    opened = graph_model.clone()
    for node in opened.graph:
        if node.op_type == "Reshape" and node.domain == "":
            _keep_samples(node, batch)
    for value in opened.graph.inputs:
        assert value.shape is not None
        value.shape = ir.Shape([_SAMPLES, *value.shape[1:]])
    for node in opened.graph:
        for output in node.outputs:
            output.shape = None  # declared for the fixed number
    InferShapesPass()(opened)
    return opened if joined_by_graph(opened).has_rows else graph_model


def _fixed_batch(graph_model: ir.Model) -> int | None:
    """The number of samples that all inputs fix; None where they do not, or where it is 1."""
    sizes = [declared_sizes(value) or (None,) for value in graph_model.graph.inputs]
    first = {size[0] for size in sizes}
    batch = first.pop() if len(first) == 1 else None
    return batch if batch is not None and batch > 1 else None


def _keep_samples(node: ir.Node, batch: int) -> None:
    """Has a Reshape that keeps the fixed number of samples take over whatever number there is."""
    data, target = node.inputs[0], constant_integers(node.inputs[1])
    sizes = declared_sizes(data) if data is not None else None
    if target and target[0] == batch and sizes and sizes[0] == batch:
        set_constant_input(node, 1, np.array([0, *target[1:]], np.int64))
