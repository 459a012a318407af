"""Tables that an engine was built with, and those of earlier builds."""

import dataclasses

from calibrators.tables.table import CalibrationTable, Provenance
from tests.trtint8.onnx_models import conv_relu_conv
from trtint8.models.model import load_model, record_calibration
from trtint8.report.files import has_ranges_of, was_not_used

#: The ranges of the activations of the quantized model, whose scales are all 0.02.
RANGES = {"images": 2.54, "relu_out": 2.54}


def made(ranges=RANGES, data="samples"):
    return CalibrationTable(ranges, provenance=Provenance(model="float", data=data, samples=100))


def quantized():
    model = load_model(conv_relu_conv())
    record_calibration(model.graph_model, "samples", 100)
    return model


def test_a_model_has_the_ranges_of_a_table_of_its_samples_and_scales():
    assert has_ranges_of(quantized(), made())
    assert not has_ranges_of(quantized(), made(data="others"))
    assert not has_ranges_of(quantized(), made({"images": 1.0, "relu_out": 1.0}))


def test_a_table_that_an_engine_was_not_built_with(found):
    without = dataclasses.replace(found.engine, table_fingerprint=None)
    assert was_not_used(made({"images": 1.0, "relu_out": 1.0}), without, quantized())
    assert was_not_used(made(), without, None)
    assert not was_not_used(made(), without, quantized())  # the model was quantized with it
    assert not was_not_used(made(), found.engine, None)  # another table than the engine's is said elsewhere
    assert not was_not_used(made(), None, quantized()) and not was_not_used(None, without, None)
