"""Runs the float network layer by layer, to give the inputs of each quantized layer."""

from __future__ import annotations

from collections.abc import Iterator

from calibrators.data.feeds import FeedDict
from trtint8.sensitivity.segments import Form, Layer, Network, Segment, Tensors


def float_layers(network: Network, feed: FeedDict) -> Iterator[tuple[Segment, Layer, Tensors]]:
    """Runs one batch through the float network and stops before every quantized layer.

    Args:
        network: The model, cut into segments.
        feed: One batch.

    Yields:
        The segment that begins with the layer, the layer, and the tensors so far by name: at least those that
        the segment reads. Tensors that nothing reads any more are dropped.

    Raises:
        CalibrationDataError: The model fails on the batch.
    """
    tensors: Tensors = dict(feed)
    for number, segment in enumerate(network.segments):
        if segment.layer is not None:
            yield segment, segment.layer, tensors
        tensors |= segment.run(Form.FLOAT, tensors)
        for name in network.last_read_by(number):
            tensors.pop(name, None)
