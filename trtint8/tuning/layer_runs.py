"""The float network, layer by layer: what each quantized layer reads."""

from __future__ import annotations

from collections.abc import Iterator

from calibrators.data.feeds import FeedDict
from trtint8.sensitivity.segments import Form, Layer, Network, Segment, Tensors


def float_layers(network: Network, feed: FeedDict) -> Iterator[tuple[Segment, Layer, Tensors]]:
    """Runs one batch through the float network and stops before every layer.

    Args:
        network: The cut model.
        feed: One batch.

    Yields:
        The segment that begins with a layer, the layer, and at least the tensors that the segment reads. Only
        what is still to be read is kept.
    """
    tensors: Tensors = dict(feed)
    for number, segment in enumerate(network.segments):
        if segment.layer is not None:
            yield segment, segment.layer, tensors
        tensors |= segment.run(Form.FLOAT, tensors)
        for name in network.last_read_by(number):
            tensors.pop(name, None)
