"""Layers by themselves: what their weights and their activations cost, and where the error has grown to."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtint8.sensitivity.propagation import Watch
from trtint8.sensitivity.segments import Form, Segment, Tensors
from trtint8.validation.fidelity import decibels, inner_product

#: Columns: of the layer's own output signal, noise of its weights, noise of its activations; of what its
#: segment gives signal, noise of the quantized network.
_COLUMNS = 5


class LocalMeter:
    """Adds up errors at every layer: one batch is watched, others are merged.

    Args:
        names: The layers.

    Attributes:
        samples: With how many samples layers were looked at by themselves.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self.samples = 0
        self._sums = {name: np.zeros(_COLUMNS) for name in names}
        self._channels: dict[str, NDArray[np.float64]] = {}
        self._forms: dict[str, list[bool]] = {}

    def watch(self, samples: int, *, alone: bool) -> Watch:
        """What a batch is watched with.

        Args:
            samples: How many the batch has.
            alone: Whether to run the layers by themselves as well.
        """
        self.samples += samples if alone else 0

        def see(segment: Segment, floats: Tensors, quantized: Tensors) -> None:
            assert segment.layer is not None
            sums = self._sums[segment.layer.name]
            for name in segment.behind[segment.layer.output]:
                sums[3:] += _powers(floats[name], quantized[name])
            if alone:
                self._see_alone(segment, floats)

        return see

    def _see_alone(self, segment: Segment, floats: Tensors) -> None:
        layer = segment.layer
        assert layer is not None
        sums = self._sums[layer.name]
        exact = segment.run_layer(Form.FLOAT, floats)
        sums[0] += _powers(exact, exact)[0]
        if layer.weights:
            sums[1] += _powers(exact, segment.run_layer(Form.WEIGHTS, floats))[1]
        if layer.activations:
            sums[2] += _powers(exact, segment.run_layer(Form.ACTIVATIONS, floats))[1]
        self._forms[layer.name] = [bool(layer.weights), bool(layer.activations)]
        if layer.activations:
            values = floats[layer.activations[0].tensor]
            self._see_channels(layer.name, values)

    def _see_channels(self, name: str, values: NDArray[Any]) -> None:
        if values.ndim < 2:
            return
        # Images have channels on axis 1, sequences of vectors on the last.
        axis = 1 if values.ndim == 4 else values.ndim - 1
        others = tuple(i for i in range(values.ndim) if i != axis)
        self._channels[name] = np.abs(values).max(axis=others).astype(np.float64)

    def merge(self, other: LocalMeter) -> None:
        """Takes what another one of the same layers has seen, in batches after its own.

        Batch by batch the sums are the same, to the last bit, wherever each batch was seen.
        """
        self.samples += other.samples
        for name, sums in other._sums.items():
            self._sums[name] += sums
        for name, largest in other._channels.items():
            self._channels[name] = np.maximum(self._channels.get(name, 0.0), largest)
        self._forms |= other._forms

    def levels(self, name: str) -> tuple[float | None, float | None, float | None]:
        """SQNR of a layer's output from its weights, from its activations, and of what leaves its segment."""
        signal, weights, activations, passing, noise = self._sums[name]
        has_weights, has_activations = self._forms.get(name, (False, False))
        return (
            decibels(signal, weights) if has_weights else None,
            decibels(signal, activations) if has_activations else None,
            decibels(passing, noise) if passing else None,
        )

    def channels(self, name: str) -> NDArray[np.float64] | None:
        """The largest magnitude of each channel of a layer's first activation; None where unknown."""
        return self._channels.get(name)

    def state(self) -> dict[str, Any]:
        """A form that JSON can hold; see :meth:`from_state`."""
        return {
            "samples": self.samples,
            "sums": {name: sums.tolist() for name, sums in self._sums.items()},
            "channels": {name: largest.tolist() for name, largest in self._channels.items()},
            "forms": self._forms,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> LocalMeter:
        """The inverse of :meth:`state`."""
        meter = cls(())
        meter.samples = state["samples"]
        meter._sums = {name: np.array(sums) for name, sums in state["sums"].items()}
        meter._channels = {name: np.array(largest) for name, largest in state["channels"].items()}
        meter._forms = state["forms"]
        return meter


def _powers(exact: NDArray[Any], rounded: NDArray[Any]) -> tuple[float, float]:
    """Sums of squares of a tensor and of its error."""
    wanted = exact.astype(np.float64)
    error = wanted - rounded.astype(np.float64)
    return inner_product(wanted, wanted), inner_product(error, error)
