"""One batch through a network in all its variants, sharing what they have in common."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from calibrators.data.feeds import FeedDict
from trtint8.sensitivity.segments import Form, Network, Segment, Tensors

#: Sees a segment's inputs and outputs in the float network and in the quantized one.
Watch = Callable[[Segment, Tensors, Tensors], None]


@dataclass(frozen=True)
class Propagated:
    """What came out for one batch.

    Attributes:
        reference: The float network's outputs.
        quantized: Those of the network with every layer in INT8.
        only: Layer name to the outputs of the network with that layer alone in INT8.
        without: Layer name to those with every layer but that one.
    """

    reference: Tensors
    quantized: Tensors
    only: Mapping[str, Tensors]
    without: Mapping[str, Tensors]


def propagate(network: Network, feed: FeedDict, watch: Watch) -> Propagated:
    """Runs the float and the quantized network, and their variants that differ in one layer.

    Layers before the one that differs are shared; a variant carries only the tensors that its layer has
    changed. Half the network is computed for each variant on average.

    Args:
        network: The cut model.
        feed: One batch.
        watch: Called after each segment that begins with a layer.

    Returns:
        The outputs.
    """
    float_side, int8_side = _Side(Form.FLOAT, feed), _Side(Form.INT8, feed)
    for number, segment in enumerate(network.segments):
        for side in (float_side, int8_side):
            side.advance(segment)
        if segment.layer is not None:
            watch(segment, float_side.tensors, int8_side.tensors)
        for side in (float_side, int8_side):
            side.forget(network.last_read_by(number))
    return Propagated(
        _only(network.outputs, float_side.tensors),
        _only(network.outputs, int8_side.tensors),
        {name: _only(network.outputs, float_side.tensors | own) for name, own in float_side.variants.items()},
        {name: _only(network.outputs, int8_side.tensors | own) for name, own in int8_side.variants.items()},
    )


def run_float(network: Network, feed: FeedDict) -> Tensors:
    """Runs the float network alone.

    Args:
        network: The cut model.
        feed: One batch.

    Returns:
        Its outputs, those that :func:`propagate` finds.
    """
    side = _Side(Form.FLOAT, feed)
    for number, segment in enumerate(network.segments):
        side.tensors |= segment.run(Form.FLOAT, side.tensors)
        side.forget(network.last_read_by(number))
    return _only(network.outputs, side.tensors)


def estimate_seconds(network: Network, feed: FeedDict) -> float:
    """How long :func:`propagate` will take for a batch, told from two runs of every segment.

    Args:
        network: The cut model; its sessions are open afterwards.
        feed: One batch.

    Returns:
        Seconds.
    """
    sides = {form: _Side(form, feed) for form in (Form.FLOAT, Form.INT8)}
    seconds = 0.0
    for segment in network.segments:
        for form, side in sides.items():
            segment.run(form, side.tensors)  # the first run allocates
            start = time.perf_counter()
            side.tensors |= segment.run(form, side.tensors)
            once = time.perf_counter() - start
            reached = [name for name, own in side.variants.items() if _changed(segment, own)]
            # The network itself, its variants, and the new one that runs this layer in the other form.
            seconds += once * (1 + len(reached) + (segment.layer is not None))
            for name in reached:
                side.variants[name] |= {one: side.tensors[one] for one in segment.outputs}
            if segment.layer is not None:
                changed = segment.behind[segment.layer.output]
                side.variants[segment.layer.name] = {one: side.tensors[one] for one in changed}
    return seconds


class _Side:
    """A network all in one form, and for each layer that it has passed a variant with that one in the other.

    Attributes:
        tensors: Those that are still needed, inputs included.
        variants: Layer name to the tensors that differ in its variant.
    """

    def __init__(self, form: Form, feed: FeedDict) -> None:
        self._form = form
        self._other = Form.INT8 if form is Form.FLOAT else Form.FLOAT
        self.tensors: Tensors = dict(feed)
        self.variants: dict[str, Tensors] = {}

    def advance(self, segment: Segment) -> None:
        """Runs a segment for the network and for every variant whose tensors it reads."""
        for own in self.variants.values():
            changed = _changed(segment, own)
            if changed:
                own |= _only(changed, segment.run(self._form, self.tensors | own))
        if segment.layer is not None:
            changed = segment.behind[segment.layer.output]
            outputs = segment.run(self._other, self.tensors)
            self.variants[segment.layer.name] = _only(changed, outputs)
        self.tensors |= segment.run(self._form, self.tensors)

    def forget(self, names: set[str]) -> None:
        """Drops tensors that nothing reads any more."""
        for tensors in (self.tensors, *self.variants.values()):
            for name in names:
                tensors.pop(name, None)


def _changed(segment: Segment, own: Mapping[str, NDArray[Any]]) -> frozenset[str]:
    read = [segment.behind[name] for name in segment.inputs if name in own]
    return frozenset().union(*read)


def _only(names: Container[str], tensors: Mapping[str, NDArray[Any]]) -> Tensors:
    return {name: array for name, array in tensors.items() if name in names}
