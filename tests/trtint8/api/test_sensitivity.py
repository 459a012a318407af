"""The cost of each layer by the public call."""

import trtint8
from trtint8.api.sensitivity import SENSITIVITY_SAMPLES
from trtint8.data import DEMO_MODEL


def test_keywords_reach_the_measurement(table, held_out):
    images = held_out["images"][:300]
    keywords = {"keep_float": ["/fc/*"], "tolerance_db": 0.0, "progress": False}
    found = trtint8.measure_sensitivity(DEMO_MODEL, table, images, **keywords)
    assert found.samples == SENSITIVITY_SAMPLES == 256
    assert not any(layer.node.startswith("/fc/") for layer in found.layers)
    assert trtint8.measure_sensitivity(DEMO_MODEL, table, images, limit=64, **keywords).samples == 64
