"""The steps of sequences as samples: what the float model was fed at each, its recorded states included."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from calibrators.data.axes import one_sample
from calibrators.data.feeds import LABELS, Binding, FeedDict, batch_rows, listed
from calibrators.data.inputs import InputSpec, shape_text
from calibrators.data.preflight import check_feed
from calibrators.data.sequences import SequenceReader, StateSequences, StepSequence
from calibrators.errors import CalibrationDataError

#: Runs a model on one step: what it is fed, to its outputs by name.
StepRunner: TypeAlias = Callable[[FeedDict], Mapping[str, NDArray[Any]]]


@dataclass(frozen=True, eq=False)
class RecordedSteps:
    """Sequences and the float model that records their states.

    Attributes:
        sequences: The sequences.
        open_model: Opens the model; called at the beginning of each pass over the data.
    """

    sequences: StateSequences
    open_model: Callable[[], StepRunner]


def recorded_steps(data: RecordedSteps, binding: Binding) -> Callable[[], Iterator[FeedDict]]:
    """How to begin a pass over the steps of all sequences, one after another.

    Args:
        data: The sequences, and the model that records their states.
        binding: Says what feeds the model.

    Returns:
        A function that returns a new iterator of feed dicts, one per step, not prepared. Beside the data
        itself, only the states of one step are in memory.

    Raises:
        CalibrationDataError: All inputs are states, an axis is of no other input, or there is no such data;
            while iterating, a sequence does not fit the model or its states.
    """
    states, axes = data.sequences.states, dict(data.sequences.axes)
    fed = tuple(spec for spec in binding.inputs if spec.name not in states)
    if not fed:
        raise CalibrationDataError(
            f"all inputs of the model are states: {listed(binding.inputs)}; one has to come from the data"
        )
    if unknown := sorted(axes.keys() - {spec.name for spec in fed}):
        reason = "its states are recorded" if unknown[0] in states else "the model has no such input"
        raise CalibrationDataError(f"a batch axis is given for '{unknown[0]}', but {reason}; leave it out")
    ranks = {spec.name: None if spec.shape is None else len(spec.shape) for spec in binding.inputs}
    reader = SequenceReader(data.sequences, replace(binding, inputs=fed, batch_axes=axes), ranks)
    recorder = _Recorder(states, axes, binding)
    start = reader.start()

    def steps() -> Iterator[FeedDict]:
        run, index = data.open_model(), 0
        for arrays in start():
            try:
                for sequence in reader.cut(arrays):
                    yield from recorder.record(sequence, run)
                    index += 1
            except CalibrationDataError as error:
                raise CalibrationDataError(f"sequence {index}: {error.template}") from error

    return steps


@dataclass(frozen=True)
class _Recorder:
    """Runs the model along sequences.

    Attributes:
        states: Name of each state to the output that returns it.
        axes: Input name to the axis of its steps.
        binding: Says what feeds the model.
    """

    states: Mapping[str, str]
    axes: Mapping[str, int]
    binding: Binding

    def record(self, sequence: StepSequence, run: StepRunner) -> Iterator[FeedDict]:
        """What each step of a sequence is fed, not prepared, with its label where there is one."""
        states = {
            spec.name: _first_state(spec, sequence.first.get(spec.name))
            for spec in self.binding.inputs
            if spec.name in self.states
        }
        step = 0
        try:
            for step in range(sequence.steps):
                feed = {**one_sample(sequence.arrays, self.axes, step), **states}
                prepared = self._prepared(feed)
                yield feed if sequence.labels is None else {**feed, LABELS: sequence.labels[[step]]}
                if step + 1 < sequence.steps:
                    states = self._returned(run(prepared), states)
        except CalibrationDataError as error:
            raise CalibrationDataError(f"step {step}: {error.template}") from error

    def _prepared(self, feed: FeedDict) -> FeedDict:
        self.binding.check(feed)
        prepared = self.binding.prepare(feed)
        check_feed(prepared, self.binding.inputs)
        if (rows := batch_rows(prepared)) not in (None, 1):
            raise CalibrationDataError(
                f"one step is fed at a time, and this one has {rows} rows along axis 0 of every input; "
                "export the model with the batch as the first dimension of one of them"
            )
        return prepared

    def _returned(self, outputs: Mapping[str, NDArray[Any]], states: FeedDict) -> FeedDict:
        """The states that a step returned, for the next one."""
        returned = {}
        for name, output in self.states.items():
            if outputs[output].shape != states[name].shape:
                raise CalibrationDataError(
                    f"the state '{name}' is fed in the shape {shape_text(states[name].shape)} and returned "
                    f"as '{output}' in the shape {shape_text(outputs[output].shape)}; only states that keep "
                    "their shape can be recorded: give the states of each step as data"
                )
            # What a session returns lies in its memory and keeps all of it as long as the step is kept.
            returned[name] = outputs[output].copy()
        return returned


def _first_state(spec: InputSpec, given: NDArray[Any] | None) -> NDArray[Any]:
    """The state that the first step is fed: what the data gives, else zeros."""
    dynamic = 0 if spec.shape is None else sum(not isinstance(dim, int) for dim in spec.shape)
    is_known = spec.shape is not None and dynamic <= 1
    shape = tuple(dim if isinstance(dim, int) else 1 for dim in spec.shape or ())
    if given is None:
        if not is_known:
            raise CalibrationDataError(
                f"the model does not say the shape of the state {spec}; give its first value in the data, "
                "under the same name"
            )
        return np.zeros(shape, spec.dtype)
    if is_known and np.shape(given) != shape:
        raise CalibrationDataError(
            f"the data gives the state '{spec.name}' in the shape {shape_text(np.shape(given))}, and it is "
            f"recorded: only its first value, of shape {shape_text(shape)}, can be given; leave it out, or "
            "do not declare it as a state"
        )
    return np.asarray(given)
