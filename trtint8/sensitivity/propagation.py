"""Runs one batch through all variants of a network; what variants have in common is computed once."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from calibrators.data.feeds import FeedDict
from trtint8.sensitivity.segments import Form, Network, Segment, Tensors

#: Called with a segment, and with its inputs and outputs in the float network and in the quantized network.
Watch = Callable[[Segment, Tensors, Tensors], None]


@dataclass(frozen=True)
class Propagated:
    """The outputs of all variants for one batch.

    Attributes:
        reference: The outputs of the float network.
        quantized: The outputs of the network with every layer in INT8.
        only: Layer name to the outputs of the network with only that layer in INT8.
        without: Layer name to the outputs of the network with every layer except that one in INT8.
    """

    reference: Tensors
    quantized: Tensors
    only: Mapping[str, Tensors]
    without: Mapping[str, Tensors]


def propagate(network: Network, feed: FeedDict, watch: Watch) -> Propagated:
    """Runs the float and the quantized network, and their variants that differ in one layer.

    Segments before the layer that differs are computed once for all variants, and of each variant only the
    tensors that depend on its layer are kept. On average half the network is computed per variant.

    Args:
        network: The model, cut into segments.
        feed: One batch.
        watch: Called after each segment that begins with a layer.

    Returns:
        The outputs of all variants.

    Raises:
        CalibrationDataError: The model fails on the batch.
    """
    outputs = network.outputs
    floats, quantized = _State(Form.FLOAT, feed), _State(Form.INT8, feed)
    for number, segment in enumerate(network.segments):
        for state in (floats, quantized):
            state.advance(segment)
        if segment.layer is not None:
            watch(segment, floats.tensors, quantized.tensors)
        for state in (floats, quantized):
            state.drop(network.last_read_by(number))
    return Propagated(
        _select(outputs, floats.tensors),
        _select(outputs, quantized.tensors),
        {name: _select(outputs, floats.tensors | own) for name, own in floats.variants.items()},
        {name: _select(outputs, quantized.tensors | own) for name, own in quantized.variants.items()},
    )


def run_float(network: Network, feed: FeedDict) -> Tensors:
    """Runs the float network alone.

    Args:
        network: The model, cut into segments.
        feed: One batch.

    Returns:
        The float network's outputs, the same as those of :func:`propagate`.

    Raises:
        CalibrationDataError: The model fails on the batch.
    """
    state = _State(Form.FLOAT, feed)
    for number, segment in enumerate(network.segments):
        state.tensors |= segment.run(Form.FLOAT, state.tensors)
        state.drop(network.last_read_by(number))
    return _select(network.outputs, state.tensors)


def estimate_seconds(network: Network, feed: FeedDict) -> float:
    """Estimates how long :func:`propagate` takes for a batch, from two runs of every segment.

    Args:
        network: The model, cut into segments; its ONNX Runtime sessions are open afterwards.
        feed: One batch.

    Returns:
        The estimate in seconds.

    Raises:
        CalibrationDataError: The model fails on the batch.
    """
    states = {form: _State(form, feed) for form in (Form.FLOAT, Form.INT8)}
    seconds = 0.0
    for segment in network.segments:
        for form, state in states.items():
            segment.run(form, state.tensors)  # the first run allocates memory, so it is not timed
            start = time.perf_counter()
            state.tensors |= segment.run(form, state.tensors)
            once = time.perf_counter() - start
            reached = [name for name, own in state.variants.items() if _changed(segment, own)]
            # The network itself, its variants, and the new variant with this layer in the other form.
            seconds += once * (1 + len(reached) + (segment.layer is not None))
            for name in reached:
                state.variants[name] |= {output: state.tensors[output] for output in segment.outputs}
            if segment.layer is not None:
                changed = segment.dependents[segment.layer.output]
                state.variants[segment.layer.name] = {output: state.tensors[output] for output in changed}
    return seconds


class _State:
    """The tensors of a network in one form, and of its variants with one layer in the other form.

    Args:
        form: The network's form, ``FLOAT`` or ``INT8``.
        feed: One batch.

    Attributes:
        tensors: The network's tensors that are still needed, its inputs included.
        variants: Layer name to the tensors that differ in the variant with that layer in the other form; for
            the layers that have run.
    """

    def __init__(self, form: Form, feed: FeedDict) -> None:
        self._form = form
        self._other = Form.INT8 if form is Form.FLOAT else Form.FLOAT
        self.tensors: Tensors = dict(feed)
        self.variants: dict[str, Tensors] = {}

    def advance(self, segment: Segment) -> None:
        """Runs a segment for the network, and for every variant in which its inputs differ."""
        for own in self.variants.values():
            changed = _changed(segment, own)
            if changed:
                own |= _select(changed, segment.run(self._form, self.tensors | own))
        if segment.layer is not None:
            changed = segment.dependents[segment.layer.output]
            outputs = segment.run(self._other, self.tensors)
            self.variants[segment.layer.name] = _select(changed, outputs)
        self.tensors |= segment.run(self._form, self.tensors)

    def drop(self, names: set[str]) -> None:
        """Drops tensors that nothing reads any more."""
        for tensors in (self.tensors, *self.variants.values()):
            for name in names:
                tensors.pop(name, None)


def _changed(segment: Segment, own: Mapping[str, NDArray[Any]]) -> frozenset[str]:
    """The outputs of a segment that differ in a variant, whose differing tensors are ``own``."""
    changed = [segment.dependents[name] for name in segment.inputs if name in own]
    return frozenset().union(*changed)


def _select(names: Container[str], tensors: Mapping[str, NDArray[Any]]) -> Tensors:
    return {name: array for name, array in tensors.items() if name in names}
