"""Whether samples may be joined along axis 0: by the graph, else tried on two of them, joined and apart.

Networks that take a fixed number of samples, as ones that take any number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from calibrators.data.batches import Batches
from calibrators.data.feeds import Array, FeedDict, Floats, batch_rows, is_float, joined
from calibrators.data.inputs import InputShapes, InputSpec
from calibrators.data.sources.random_samples import drawn
from calibrators.errors import ModelError
from calibrators.host.session import run_session
from trtint8.models.garbage_collection import pause_garbage_collection
from trtint8.models.graph import constant_integers, set_constant_input
from trtint8.models.model import Model
from trtint8.models.passes.simplify import InferShapesPass
from trtint8.models.samples.separate import Joined, Joining, joined_by_graph
from trtint8.models.session import open_graph_model
from trtint8.models.shapes import declared_sizes

#: Errors below this share of an output's spread are those of rounding, which depends on the batch size.
_ROUNDING = 0.01


#: The same of sorted values, which come close to those of other samples.
_SORTED = 1e-4


#: Gives the pairs of samples to try, each with an axis of 1 in front and of the same shapes.
Pairs: TypeAlias = Callable[[], Iterable[tuple[FeedDict, FeedDict]]]


def joined_samples(graph_model: ir.Model, pairs: Pairs, known: Joined | None = None) -> Joined:
    """Whether samples may be joined along axis 0: by the graph, and where it does not show it, by trying.

    Args:
        graph_model: The network.
        pairs: Called where it has to be tried. The first pair that shows something decides.
        known: What the graph shows, where it was asked already: see
            :func:`~trtint8.models.samples.separate.joined_by_graph`.

    Returns:
        The answer. It is not known where there is no pair, or none shows anything: the network fails on
        single samples too, it gives NaN, or its outputs are random.

    Raises:
        ModelError: ONNX Runtime refuses the network.
    """
    known = known or joined_by_graph(graph_model)
    if known.joining is not None:
        return known
    for first, second in pairs():
        if (found := _tried(graph_model, first, second)) is not None:
            return replace(found, separate=known.separate)
    return known


def _tried(graph_model: ir.Model, first: FeedDict, second: FeedDict) -> Joined | None:
    """What two samples show that are run joined and apart; None where they show nothing."""
    run = partial(run_session, open_graph_model(graph_model).session)
    try:
        alone = [run(first), run(second)]
    except Exception:  # noqa: BLE001  # whatever ONNX Runtime raises
        return None
    try:
        together = run(joined([first, second]))
    except Exception:  # noqa: BLE001
        return Joined(Joining.REFUSED, "the network takes one sample, and fails on two")
    if any(is_float(array.dtype) and np.isnan(array).any() for array in (*alone[0], *alone[1])):
        return None
    found = [_joining_of(*arrays) for arrays in zip(together, *alone, strict=True)]
    if Joining.CHANGED in found:
        again = run(first)
        if not all(map(_is_same, again, alone[0])):
            return None
        output = graph_model.graph.outputs[found.index(Joining.CHANGED)].name
        return Joined(Joining.CHANGED, f"output '{output}' of one sample changes with the samples beside it")
    if Joining.APART in found:
        output = graph_model.graph.outputs[found.index(Joining.APART)].name
        return Joined(Joining.APART, f"output '{output}' does not have one row for each sample")
    return Joined(Joining.ROWS, "two samples have the same outputs joined and apart")


def two_samples(feeds: Iterable[FeedDict]) -> tuple[FeedDict, FeedDict] | None:
    """Chooses two samples to try, those with the largest values: padding would show nothing.

    Args:
        feeds: The first feeds of the data.

    Returns:
        The samples, with an axis of 1 in front; None where there are no two of the same shapes along axis 0.
    """
    samples = [
        {name: array[row : row + 1] for name, array in feed.items()}
        for feed in feeds
        for row in range(batch_rows(feed) or 0)
    ]
    samples.sort(key=_magnitude, reverse=True)
    for other in samples[1:]:
        if all(array.shape == samples[0][name].shape for name, array in other.items()):
            return samples[0], other
    return None


def takes_one_sample(model: Model, batches: Batches) -> bool:
    """Whether a model takes one sample at a time, although it leaves open how many.

    Args:
        model: The model.
        batches: Samples, which must be iterable more than once.
    """
    known = joined_by_graph(model.graph_model)
    if known.separate or any(spec.static_batch is not None for spec in model.inputs):
        return False

    def pairs() -> Iterator[tuple[FeedDict, FeedDict]]:
        if (pair := two_samples(islice(batches, 2))) is not None:
            yield pair

    return joined_samples(model.graph_model, pairs, known).joining is Joining.REFUSED


def takes_joined_samples(
    graph_model: ir.Model, inputs: Sequence[InputSpec], shapes: InputShapes
) -> bool | None:
    """Whether samples of several users may be joined along axis 0, and the outputs divided again.

    Args:
        graph_model: The network.
        inputs: Its inputs.
        shapes: Input name to a shape that it takes; may lack inputs that leave nothing open.

    Returns:
        Whether every output has one row along axis 0 for each sample, which does not depend on the others.
        It is tried with random values where the graph does not show it. None where it cannot be tried.
    """
    known = joined_by_graph(graph_model)
    if not known.has_rows and any(spec.static_batch is not None or not spec.shape for spec in inputs):
        return False
    try:
        found = joined_samples(graph_model, partial(_random_pairs, inputs, shapes), known)
    except ModelError:  # ONNX Runtime has no such operator
        return None
    return None if found.joining is None else found.joining is Joining.ROWS


def _random_pairs(inputs: Sequence[InputSpec], shapes: InputShapes) -> Iterator[tuple[FeedDict, FeedDict]]:
    """Two random samples, and the same without signs: some networks begin with a logarithm or a root."""
    generators = [np.random.default_rng(number) for number in range(2)]
    samples: tuple[FeedDict, FeedDict] = ({}, {})
    for spec in inputs:
        shape = tuple(shapes.get(spec.name) or (size for size in spec.shape or () if isinstance(size, int)))
        if len(shape) != len(spec.shape or ()):
            return
        for sample, generator in zip(samples, generators, strict=True):
            sample[spec.name] = drawn(spec, shape[1:], generator)[np.newaxis]
    yield samples
    first, second = ({name: np.abs(array) for name, array in sample.items()} for sample in samples)
    yield first, second


def _is_same(one: Array, other: Array) -> bool:
    """Whether two outputs differ by no more than rounding."""
    return one.shape == other.shape and _error(one, other) <= _ROUNDING


def _joining_of(together: Array, first: Array, second: Array) -> Joining:
    """What becomes of one output."""
    if not together.ndim == first.ndim == second.ndim:
        return Joining.CHANGED
    sizes = list(zip(together.shape, first.shape, second.shape, strict=True))
    along = [axis for axis, (size, one, other) in enumerate(sizes) if size == one + other]
    if any(axis not in along and not size == one == other for axis, (size, one, other) in enumerate(sizes)):
        return Joining.CHANGED
    # Where there is a row and a column for each sample, those of others lie beside the diagonal.
    own = (
        together[tuple(slice(0, one) for _, one, _ in sizes)],
        together[tuple(slice(size - other, size) for size, _, other in sizes)],
    )
    if _are_kept(own, (first, second)):
        return Joining.ROWS if along == [0] and len(first) == len(second) == 1 else Joining.APART
    for axis in along:  # as where time comes before the samples in rows of both
        others = [np.take(together, range(start, together.shape[axis], 2), axis) for start in (0, 1)]
        if _are_kept(others, (first, second)):
            return Joining.APART
    return Joining.APART if _hold_the_same(together, first, second) else Joining.CHANGED


def _hold_the_same(together: Array, first: Array, second: Array) -> bool:
    """Whether an output holds the values of both samples in another order, as where it is sorted."""
    alone = np.concatenate([first.ravel(), second.ravel()])
    if together.size != alone.size:
        return False
    return _error(np.sort(together, None), np.sort(alone)) <= _SORTED


def _are_kept(found: Sequence[Array], alone: Sequence[Array]) -> bool:
    """Whether each of two samples has the output that it has apart."""
    return all(
        _is_same(one, other) or _differs_in_columns(one, other)
        for one, other in zip(found, alone, strict=True)
    )


def _differs_in_columns(one: Array, other: Array) -> bool:
    """Whether most values of a list are the same: detections have the number of their image with them."""
    if one.shape != other.shape or one.ndim < 2 or len(one) == 1:
        return False
    differ = np.abs(_as_floats(one) - _as_floats(other)) > _ROUNDING * _spread(other)
    return bool(differ.sum() <= 2 / 3 * np.count_nonzero(one.astype(bool) | other.astype(bool)))


def _error(one: Array, other: Array) -> float:
    """The error as a share of the spread of the values."""
    exact, found = _as_floats(other), _as_floats(one)
    with np.errstate(invalid="ignore"):
        differences = np.where(exact == found, 0.0, exact - found)
    error = math.sqrt(float(np.mean(np.square(differences)))) if differences.size else 0.0
    return error / _spread(other) if error else 0.0


def _spread(array: Array) -> float:
    """The standard deviation of the finite values, or their magnitude where they are all the same."""
    values = _as_floats(array)
    values = values[np.isfinite(values)]
    if not values.size:
        return 1.0
    return float(values.std()) or float(np.abs(values).max()) or 1.0


def _as_floats(array: Array) -> Floats:
    return array.astype(np.float64)


def _magnitude(sample: FeedDict) -> float:
    """The sum of what an array's values are on average, over the arrays of numbers."""
    numbers = [array for array in sample.values() if array.size and array.dtype.kind != "O"]
    return math.fsum(float(np.abs(_as_floats(array)).mean()) for array in numbers)


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
