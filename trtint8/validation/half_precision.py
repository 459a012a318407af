"""Finds overflow of FP16 models where ONNX Runtime hides it.

ONNX Runtime has hardly any kernels for FP16 on a CPU. It computes such operators in FP32, and leaves out the
casts between them, so that a value beyond FP16's largest number goes from one to the next as if nothing were
wrong. A GPU makes it infinite. So the float model is run beside, and tells how large the tensors become.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from calibrators.checks import warn_user
from calibrators.data.batches import Batches
from calibrators.data.feeds import FeedDict
from calibrators.words import counted
from trtint8.models.graph import computes_in, graph_values, take_name, value_names
from trtint8.models.model import Model, prepare
from trtint8.models.passes.simplify import InferShapesPass
from trtint8.models.session import ModelSession, open_graph_model
from trtint8.validation.comparison import observed

_HALF, _FLOAT = ir.DataType.FLOAT16, ir.DataType.FLOAT

_LARGEST = float(np.finfo(np.float16).max)


def half_tensors(graph_model: ir.Model) -> tuple[str, ...]:
    """Names of the tensors that a model holds in FP16 at some place.

    Args:
        graph_model: The model; not changed.

    Returns:
        Names in FP16, and of what a Cast makes FP16.
    """
    if not computes_in(graph_model, _HALF):
        return ()
    inferred = graph_model.clone()
    InferShapesPass()(inferred)
    found = [value.name for value in graph_values(inferred.graph) if value.dtype == _HALF]
    found += [
        node.inputs[0].name
        for node in inferred.graph
        if node.op_type == "Cast" and node.inputs[0] is not None and node.outputs[0].dtype == _HALF
    ]
    return tuple(dict.fromkeys(name for name in found if name))


@contextlib.contextmanager
def warning_of_overflow(
    half: Mapping[str, Collection[str]], reference: Model, batches: Batches, threads: int | None
) -> Iterator[Batches]:
    """Warns, when the samples were read, of tensors that do not fit the FP16 that models hold them in.

    Args:
        half: Names of models in results to the tensors that they hold in FP16 while ONNX Runtime runs them.
        reference: The float model.
        batches: The samples.
        threads: Threads of ONNX Runtime; its choice where None.

    Yields:
        The same samples, for one pass in this process.

    Warns:
        UserWarning: A tensor goes beyond FP16's largest number in the float model.
    """
    asked = {name for names in half.values() for name in names}
    magnitudes = _Magnitudes.open(reference, asked, threads) if asked else None
    if magnitudes is None:
        yield batches
        return
    yield observed(batches, magnitudes)
    for model, names in half.items():
        beyond = [name for name in names if magnitudes.found.get(name, 0.0) > _LARGEST]
        if beyond:
            others = f", and {counted(len(beyond) - 1, 'other tensor')}" if len(beyond) > 1 else ""
            reaches = f"{magnitudes.found[beyond[0]]:.6g}{others}"
            warn_user(
                f"{model} holds '{beyond[0]}' in FP16, and the float model's reaches {reaches}: a GPU makes "
                f"what is beyond {_LARGEST:.0f} infinite, and ONNX Runtime on a CPU, which computes FP16 in "
                "FP32, does not; keep it in FP32"
            )


class _Magnitudes:
    """Runs a float model for the largest magnitudes of some tensors.

    Attributes:
        found: Name of a tensor to its largest magnitude so far.
    """

    def __init__(self, session: ModelSession, names: Sequence[str]) -> None:
        self._session, self._names = session, names
        self.found = dict.fromkeys(names, 0.0)

    @classmethod
    def open(cls, reference: Model, asked: Collection[str], threads: int | None) -> _Magnitudes | None:
        """Opens the model with a maximum behind each tensor; None where it computes none of them."""
        graph_model = prepare(reference).graph_model.clone()
        graph = graph_model.graph
        values = [value for value in graph_values(graph) if value.name in asked and value.dtype == _FLOAT]
        if not values:
            return None
        taken = value_names(graph)
        outputs = []
        for value in values:
            absolute = ir.Node("", "Abs", [value])
            largest = ir.Node("", "ReduceMax", [absolute.outputs[0]], [ir.AttrInt64("keepdims", 0)])
            for node in (absolute, largest):
                node.outputs[0].name = take_name(f"{value.name}_{node.op_type}", taken)
                graph.append(node)
            largest.outputs[0].type, largest.outputs[0].shape = ir.TensorType(_FLOAT), ir.Shape(())
            outputs.append(largest.outputs[0])
        del graph.outputs[:]
        graph.outputs.extend(outputs)
        session = open_graph_model(graph_model, threads=threads, used_up=True)
        return cls(session, [value.name or "" for value in values])

    def observe(self, feed: FeedDict) -> None:
        """Runs the model on a batch."""
        for name, largest in zip(self._names, self._session.run(feed), strict=True):
            self.found[name] = max(self.found[name], _number(float(largest)))


def _number(largest: float) -> float:
    """A maximum as a magnitude; that of no elements is minus infinity."""
    return 0.0 if math.isnan(largest) else max(largest, 0.0)
