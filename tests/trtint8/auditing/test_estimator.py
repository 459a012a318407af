import dataclasses

import pytest

from calibrators.data.samples import SampleSizes
from calibrators.errors import BuildError, UnsupportedError
from tests.trtint8.onnx_models import conv_relu_conv
from trtint8.auditing import estimator as module
from trtint8.auditing.estimator import Estimator, EstimatorOptions
from trtint8.auditing.gpus import find_gpu
from trtint8.builder.options import BuildOptions
from trtint8.engine.profiles import ShapeRange
from trtint8.models.model import load_model, prepare


@pytest.fixture
def prepared():
    return prepare(load_model(conv_relu_conv(quantized=False).SerializeToString()))


def opened(prepared, sizes=None, **options):
    return Estimator.open(
        prepared, sizes or {}, find_gpu("A10"), EstimatorOptions("rtx", progress=False, **options)
    )


def test_shapes_and_work(rtx, prepared):
    estimator = opened(prepared)
    assert estimator.shapes == {"images": (8, 3, 16, 16)}
    assert estimator.compute_capability == "8.6"
    assert estimator.work.multiply_adds == {
        "first": 8 * 16 * 16 * 16 * 3 * 9,
        "second": 8 * 16 * 16 * 16 * 16 * 9,
    }
    profile = {"images": ShapeRange((1, 3, 16, 16), (2, 3, 16, 16), (4, 3, 16, 16))}
    assert opened(prepared, profile=profile).shapes == {"images": (2, 3, 16, 16)}


def test_open_sizes_are_those_of_the_samples(rtx):
    model = conv_relu_conv(quantized=False, size=("height", "width"))
    prepared = prepare(load_model(model.SerializeToString()))
    sizes = {"images": SampleSizes((3, 16, 8), (3, 32, 8))}
    assert opened(prepared, sizes).shapes == {"images": (8, 3, 32, 8)}


def test_types_of_an_engine(rtx, prepared):
    estimator = opened(prepared)
    found = {}
    for precision, fp16 in (("FP32", False), ("FP16", True)):
        engine = estimator.estimate(precision, estimator.model.graph_model, {"images": 1.0}, fp16=fp16)
        assert engine.precision == precision and engine.seconds > 0
        found[precision] = engine.multiply_adds
    total = sum(estimator.work.multiply_adds.values())
    assert found == {"FP32": {"FP32": total}, "FP16": {"FP16": total}}


def test_a_profile_that_does_not_fit(rtx, prepared):
    with pytest.raises(BuildError, match="give three shapes of 4 dimensions"):
        opened(prepared, profile={"images": ShapeRange((1,), (1,), (1,))})


def test_layers_that_are_not_listed(rtx, prepared, monkeypatch):
    original = module.build_engine
    monkeypatch.setattr(
        module, "build_engine", lambda *a, **k: dataclasses.replace(original(*a, **k), report=None)
    )
    estimator = opened(prepared, build=BuildOptions())
    with pytest.raises(UnsupportedError, match="does not list the layers of its engines"):
        estimator.estimate("FP32", estimator.model.graph_model, {}, fp16=False)
