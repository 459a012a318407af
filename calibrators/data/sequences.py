"""Sequences of steps for recurrent networks, whose states are recorded by running the float model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from calibrators.checks import PATH_TYPES, FilePath, located, refuse_empty_path
from calibrators.data.feeds import (
    LABELS,
    Array,
    Binding,
    FeedDict,
    NamedArrays,
    as_array,
    batch_rows,
    listed,
    named_arrays,
    one_sample,
)
from calibrators.data.inputs import DataOptions, InputSpec, Tensor, shape_text
from calibrators.data.samples import check_feed
from calibrators.data.sources.arrays import ARRAY_SUFFIXES, labels_array, read_arrays
from calibrators.data.sources.folders import array_files
from calibrators.data.sources.random_samples import RANDOM
from calibrators.data.sources.streams import (
    Stream,
    is_dataset,
    is_indexed,
    refuse_shuffling,
    restartable,
)
from calibrators.errors import Argument, CalibrationDataError
from calibrators.files import exists, is_folder


@dataclass(frozen=True, eq=False)
class StateSequences:
    """Sequences for a recurrent network, whose states are recorded by running the float model along them.

    A sequence is one array per input that is no state, with its steps along axis 0: for an input of shape
    (batch, 512), an array (steps, 512). Each step is fed by itself, with a batch of 1. Several sequences of
    the same length may be stacked: (sequences, steps, 512). Inputs that are one number are fed at every step.

    The states of the first step are zeros, unless the data has arrays under their names, of the shape of one
    sample. Every step counts as a sample; ``labels`` has one entry per step.

    Attributes:
        data: A .npz or .npy file; a folder of these, each with one sequence or several; an array or a dict of
            arrays; or an iterable, or a callable that returns one, of such arrays or dicts.
        states: Name of each input that is a state, to the name of the output that becomes this input in the
            next step.
        axes: Input name to the axis of its steps, counted without the axis of stacked sequences; 0 for other
            inputs.

    Examples:
        >>> data = trtint8.StateSequences("sequences.npz", {"state": "next_state"})
        >>> table = trtint8.calibrate("recurrent.onnx", data)
    """

    data: FilePath | Mapping[str, Any] | Iterable[Any] | Callable[[], Iterable[Any]]
    states: Mapping[str, str]
    axes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class StepSequence:
    """One sequence of steps.

    Attributes:
        arrays: Input name to array, with the steps along the input's axis; states are not among them.
        first: State name to its value at the first step, as far as the data gives it.
        labels: One label per step; None where there are none.
        steps: How many steps there are.
    """

    arrays: FeedDict
    first: FeedDict
    labels: Array | None
    steps: int


@dataclass(frozen=True)
class SequenceReader:
    """Reads sequences.

    Attributes:
        given: What the user said.
        fed: Says what feeds the inputs that are no states, and along which axis their steps lie.
        ranks: Name of each state to its rank; None where that is not known.
    """

    given: StateSequences
    fed: Binding
    ranks: Mapping[str, int | None]

    def start(self) -> Callable[[], Iterator[dict[str, Any]]]:
        """How to begin a pass over the data: dicts of arrays, each with one sequence or with stacked ones.

        Raises:
            CalibrationDataError: There is no such data, or it has no sequences.
        """
        data: Any = self.given.data
        if isinstance(data, PATH_TYPES):
            paths = _files(data)
            return lambda: (read_arrays(path, self.fed) for path in paths)
        if isinstance(data, np.ndarray | Tensor):
            arrays = {self.fed.only_input("an array").name: as_array(data)}
            return lambda: iter([arrays])
        if isinstance(data, Mapping):
            arrays = {name: as_array(array) for name, array in data.items()}
            return lambda: iter([arrays])
        if is_dataset(data):
            raise CalibrationDataError(
                "the rows of a Ray Dataset have no order, so states cannot be recorded along them; pass "
                "files, or an iterable with one sequence per item"
            )
        if is_indexed(data):
            return lambda: (self._named(data[index]) for index in range(len(data)))
        start = restartable(data)
        return lambda: map(self._named, start())

    def _named(self, item: object) -> dict[str, Any]:
        """The arrays of an item by name, first states included."""
        if isinstance(item, tuple | list) and len(item) == 2 and isinstance(item[0], Mapping):
            item = {**item[0], LABELS: item[1]}
        if not isinstance(item, Mapping):
            return named_arrays(item, self.fed)
        states = self.given.states
        first = {name: as_array(array) for name, array in item.items() if name in states}
        others = {name: array for name, array in item.items() if name not in states}
        return {**named_arrays(others, self.fed), **first}

    def cut(self, arrays: Mapping[str, Any]) -> Iterator[StepSequence]:
        """The sequences that arrays hold.

        Args:
            arrays: By name: inputs, perhaps first states and labels.

        Raises:
            CalibrationDataError: Names do not fit the model, or arrays do not fit one another.
        """
        first = {name: array for name, array in arrays.items() if name in self.given.states}
        fed, given = self.fed.split({name: array for name, array in arrays.items() if name not in first})
        labels = None if given is None else _as_labels(given)
        if not self._are_stacked(fed):
            yield self._sequence(fed, first, labels)
            return
        own = {name for name, array in first.items() if np.ndim(array) == (self.ranks[name] or 0) + 1}
        counts = {name: len(array) for name, array in fed.items() if array.ndim}
        counts |= {name: len(first[name]) for name in sorted(own)}
        if labels is not None:
            counts[LABELS] = len(labels)
        if len(set(counts.values())) != 1:
            raise CalibrationDataError(
                f"the arrays have different numbers of sequences along axis 0: {_counted(counts)}; give all "
                "of them the same"
            )
        for row in range(next(iter(counts.values()))):
            yield self._sequence(
                {name: np.asarray(array[row]) if array.ndim else array for name, array in fed.items()},
                {name: array[row] if name in own else array for name, array in first.items()},
                None if labels is None else labels[row],
            )

    def _are_stacked(self, fed: FeedDict) -> bool:
        """Whether the arrays hold several sequences: they have one axis more than the inputs."""
        one: list[str] = []
        several: list[str] = []
        for spec in self.fed.inputs:
            array = fed[spec.name]
            if not array.ndim:
                continue
            if spec.shape is None:
                raise CalibrationDataError(
                    f"the rank of input '{spec.name}' is unknown, so one sequence cannot be told from "
                    "several; export the model with its shapes"
                )
            if not spec.shape and array.ndim > 1:
                raise CalibrationDataError(
                    f"the data for input {spec} has the shape {shape_text(array.shape)}, and an input of one "
                    "number is the same at every step; give one number, or one per sequence"
                )
            if array.ndim - len(spec.shape) not in (0, 1):
                raise CalibrationDataError(
                    f"the data for input {spec} has the shape {shape_text(array.shape)}, which has no axis "
                    "of steps; give an array with the steps along axis 0, or with sequences along axis 0 and "
                    "steps along axis 1"
                )
            (several if array.ndim > len(spec.shape) else one).append(spec.name)
        if not (one or several):
            raise CalibrationDataError(
                "every input is one number, with no axis of steps; give an array with the steps along axis 0"
            )
        if one and several:
            raise CalibrationDataError(
                f"'{one[0]}' holds one sequence and '{several[0]}' several, by the numbers of their "
                "dimensions; give all of them an axis of sequences, or none"
            )
        return bool(several)

    def _sequence(self, fed: FeedDict, first: FeedDict, labels: Array | None) -> StepSequence:
        counts = {}
        for name, array in fed.items():
            axis = self.fed.batch_axes.get(name, 0)
            if not isinstance(axis, int) or isinstance(axis, bool) or not 0 <= axis < max(array.ndim, 1):
                raise CalibrationDataError(
                    f"the axis of the steps of '{name}' is {axis!r}, and its array has the shape "
                    f"{shape_text(array.shape)}; give one of its axes, counted from 0"
                )
            if array.ndim:
                counts[name] = array.shape[axis]
        if labels is not None:
            counts[LABELS] = len(_as_labels(labels))
        if len(set(counts.values())) != 1:
            raise CalibrationDataError(
                f"the arrays have different numbers of steps: {_counted(counts)}; give all of them the same"
            )
        steps = next(iter(counts.values()))
        if not steps:
            raise CalibrationDataError("it has no steps; leave it out")
        return StepSequence(fed, first, labels, steps)


def _as_labels(labels: Any) -> Array:
    """Labels as an array that has an axis."""
    array = labels_array(labels, f"'{LABELS}'", "give one label per step, all of one shape")
    if not array.ndim:
        raise CalibrationDataError(
            f"'{LABELS}' is no more than one value; give an array with one label per step, and with the axis "
            "of sequences before it where they are stacked"
        )
    return array


def _files(data: FilePath) -> list[Path]:
    """The array files that a path names."""
    refuse_empty_path("the data", data, CalibrationDataError)
    if str(data).startswith(RANDOM):
        raise CalibrationDataError(
            f"the data is '{data}', and states are recorded along sequences, which random values are not; "
            "give a .npz, or a folder of them"
        )
    path = Path(data)
    if is_folder(path):
        if not (paths := array_files(path)):
            raise CalibrationDataError(
                f"the folder '{path}' has no sequences; put array files (.npy .npz) into it, one per sequence"
            )
        return paths
    if not exists(path):
        raise CalibrationDataError(f"the data '{path}' does not exist; check the path")
    if path.suffix.lower() not in ARRAY_SUFFIXES:
        raise CalibrationDataError(
            f"cannot take sequences from the file '{path}'; pass a .npz, a .npy, or a folder of these"
        )
    return [path]


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"'{name}' {count}" for name, count in counts.items())


#: Runs a model on one step: what it is fed, to its outputs by name.
StepRunner: TypeAlias = Callable[[FeedDict], NamedArrays]


@dataclass(frozen=True, eq=False)
class RecordedSteps:
    """Sequences and the float model that records their states.

    Attributes:
        sequences: The sequences.
        open_model: Opens the model; called at the beginning of each pass over the data.
    """

    sequences: StateSequences
    open_model: Callable[[], StepRunner]


@dataclass(frozen=True, eq=False)
class Steps(Stream):
    """The steps of sequences: what the float model was fed at each, its recorded states included."""

    @classmethod
    def open(cls, data: Any, binding: Binding, options: DataOptions) -> Stream:
        """Opens sequences with the model that records their states.

        Raises:
            CalibrationDataError: There is no such model; or see :func:`_recorded_steps`.
        """
        if isinstance(data, StateSequences):
            raise CalibrationDataError(
                "states are recorded by running the float model, and here is none; give the states of each "
                f"step as data, such as a .npz with {Argument('BatchAxes')}"
            )
        start = _recorded_steps(data, binding)
        refuse_shuffling(options)
        return cls.of(start, binding, options, passes_on=True)


def _recorded_steps(data: RecordedSteps, binding: Binding) -> Callable[[], Iterator[FeedDict]]:
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
        for step in range(sequence.steps):
            with located(f"step {step}"):
                feed = {**one_sample(sequence.arrays, self.axes, step), **states}
                prepared = self._prepared(feed)
                yield feed if sequence.labels is None else {**feed, LABELS: sequence.labels[[step]]}
                if step + 1 < sequence.steps:
                    states = self._returned(run(prepared), states)

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

    def _returned(self, outputs: NamedArrays, states: FeedDict) -> FeedDict:
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


def _first_state(spec: InputSpec, given: Array | None) -> Array:
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
