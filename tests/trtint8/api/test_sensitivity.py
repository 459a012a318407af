"""The cost of each layer by the public call."""

import onnx

import trtint8
from tests.trtint8.onnx_models import save_external
from trtint8.api.sensitivity import SENSITIVITY_SAMPLES
from trtint8.data import DEMO_MODEL


def test_keywords_reach_the_measurement(table, held_out):
    images = held_out["images"][:300]
    keywords = {"keep_float": ["/fc/*"], "tolerance_db": 0.0, "progress": False}
    found = trtint8.measure_sensitivity(DEMO_MODEL, table, images, **keywords)
    assert found.samples == SENSITIVITY_SAMPLES == 256
    assert not any(layer.node.startswith("/fc/") for layer in found.layers)
    assert trtint8.measure_sensitivity(DEMO_MODEL, table, images, limit=64, **keywords).samples == 64


def test_nobody_has_to_be_told_what_it_will_cost(table, held_out):
    measured = trtint8.measure_sensitivity(
        DEMO_MODEL, table, held_out["images"][:16], limit=16, on_plan=None, progress=False
    )
    assert measured.samples == 16


def test_weights_in_a_file_beside_the_model(table, held_out, tmp_path):
    path = save_external(onnx.load(DEMO_MODEL), tmp_path)
    beside, inside = (
        trtint8.measure_sensitivity(model, table, held_out["images"][:32], progress=False)
        for model in (path, DEMO_MODEL)
    )
    assert [layer.node for layer in beside.layers] == [layer.node for layer in inside.layers]
    assert beside.layers[0].noise_share == inside.layers[0].noise_share
