"""Binds sequences to the float model that records their states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import onnx_ir as ir

from calibrators.data.feeds import listed
from calibrators.data.inputs import shape_text
from calibrators.data.sequences import RecordedSteps, StateSequences, StepRunner
from calibrators.errors import CalibrationDataError, such_as
from trtint8.models.model import Model
from trtint8.models.session import open_graph_model

_Data = TypeVar("_Data")


def with_recorded_states(data: _Data, model: Model, threads: int | None = None) -> _Data | RecordedSteps:
    """Lets the float model record the states of sequences; other data stays as it is.

    Args:
        data: Any data.
        model: The float model, which is run in ONNX Runtime on the CPU at each pass over the data.
        threads: Threads per operator; ONNX Runtime's choice where None.

    Returns:
        What :func:`calibrators.data.opening.open_data` takes.

    Raises:
        CalibrationDataError: A state is no input of the model, what returns it is no output, or the two
            differ in element type or shape.
    """
    if not isinstance(data, StateSequences):
        return data
    _check_states(data.states, model)

    def open_model() -> StepRunner:
        session = open_graph_model(model.graph_model, threads=threads)
        names = session.output_names
        return lambda feed: dict(zip(names, session.run(feed), strict=True))

    return RecordedSteps(data, open_model)


def _check_states(states: Mapping[str, str], model: Model) -> None:
    if not states:
        raise CalibrationDataError(
            "no input is named as a state; name each with the output that the next step takes"
        )
    graph = model.graph_model.graph
    inputs = {value.name: value for value in graph.inputs}
    outputs = {value.name: value for value in graph.outputs}
    for name, output in states.items():
        if name not in {spec.name for spec in model.inputs}:
            raise CalibrationDataError(
                f"a state is given for '{name}', which is no input of the model; it has "
                f"{listed(model.inputs)}: name one of these"
            )
        if output not in outputs:
            raise CalibrationDataError(
                f"the state '{name}' is said to come from '{output}', which is no output of the model; it "
                f"has {such_as(outputs)}: name one of these"
            )
        if not _fit(inputs[name], outputs[output]):
            raise CalibrationDataError(
                f"the state '{name}' ({_described(inputs[name])}) cannot come from '{output}' "
                f"({_described(outputs[output])}): element type and shape have to be the same; name the "
                "output that is fed to it"
            )


def _fit(state: ir.Value, output: ir.Value) -> bool:
    """Whether an output can be fed to an input; dimensions that are not fixed are compared as it runs."""
    if None not in (state.dtype, output.dtype) and state.dtype != output.dtype:
        return False
    if state.shape is None or output.shape is None:
        return True
    if len(state.shape) != len(output.shape):
        return False
    pairs = zip(state.shape, output.shape, strict=True)
    return all(a == b for a, b in pairs if isinstance(a, int) and isinstance(b, int))


def _described(value: ir.Value) -> str:
    dtype = "unknown type" if value.dtype is None else value.dtype.numpy().name
    if value.shape is None:
        return f"{dtype}, unknown shape"
    return f"{dtype}, {shape_text([dim if isinstance(dim, int) else dim.value for dim in value.shape])}"
