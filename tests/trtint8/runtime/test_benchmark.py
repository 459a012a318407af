"""Random values to take the time with."""

from types import SimpleNamespace

import numpy as np
import pytest

from calibrators.errors import CalibrationDataError
from tests.trtint8.onnx_models import conv_relu_conv
from trtint8.engine.file import TensorSpec
from trtint8.engine.profiles import ShapeRange
from trtint8.runtime import benchmark
from trtint8.runtime.benchmark import BenchOptions, random_feed
from trtint8.runtime.loading import LoadingOptions

IMAGES = TensorSpec("images", "float32", (None, 3, None, None))


IDS = TensorSpec("ids", "int64", (None, 16))


FIXED = TensorSpec("fixed", "float16", (4, 3))


PROFILE = {
    "images": ShapeRange((1, 3, 8, 8), (2, 3, 16, 16), (4, 3, 32, 32)),
    "ids": ShapeRange((1, 16), (2, 16), (4, 16)),
}


def test_random_values_have_the_shapes_of_the_profile():
    feed = random_feed((IMAGES, IDS, FIXED), (PROFILE,), None)
    assert {name: (array.shape, array.dtype.name) for name, array in feed.items()} == {
        "images": ((2, 3, 16, 16), "float32"),
        "ids": ((2, 16), "int64"),
        "fixed": ((4, 3), "float16"),
    }
    assert feed["images"].std() == pytest.approx(1, abs=0.1)
    assert not feed["ids"].any()


def test_random_values_of_types_that_numpy_lacks():
    values = random_feed((TensorSpec("x", "bfloat16", (64, 64)),), (), None)["x"]
    assert values.dtype.name == "bfloat16"
    assert values.astype(np.float32).std() == pytest.approx(1, abs=0.1)


def test_a_batch_size_replaces_dynamic_first_dimensions_only():
    feed = random_feed((IMAGES, FIXED), (PROFILE,), 3)
    assert (feed["images"].shape, feed["fixed"].shape) == ((3, 3, 16, 16), (4, 3))
    assert random_feed((FIXED,), (), 4)["fixed"].shape == (4, 3)


@pytest.mark.parametrize(
    ("inputs", "batch_size", "message"),
    [
        ((FIXED,), 8, "batch_size is 8 but the engine has a fixed batch of 4; leave it out"),
        ((IMAGES,), 0, "batch_size is 0; give a positive integer"),
        (
            (TensorSpec("more", "int32", (None,)),),
            None,
            "no profile says a shape for input 'more'; give data=...",
        ),
    ],
)
def test_shapes_that_no_random_values_can_have(inputs, batch_size, message):
    with pytest.raises(CalibrationDataError) as caught:
        random_feed(inputs, (PROFILE,), batch_size)
    assert str(caught.value) == message


@pytest.mark.parametrize(("strongly_typed", "fp16"), [(False, [False, True]), (True, [False, None])])
def test_a_baseline_is_built_and_loaded_with_the_plugins(monkeypatch, strongly_typed, fp16):
    loaded, built = [], []

    def load(source, device, plugins, allow_host_code=False):
        loaded.append((source, device, list(plugins), allow_host_code))
        return SimpleNamespace(profiles=(), flavor=SimpleNamespace(strongly_typed_only=strongly_typed))

    def build_engine(_model, _inputs, *, options, **_more):
        built.append(options)
        return SimpleNamespace(plan=b"plan")

    monkeypatch.setattr(benchmark.Engine, "load", load)
    monkeypatch.setattr(benchmark, "build_engine", build_engine)
    options = BenchOptions(device=1, loading=LoadingOptions(allow_host_code=True, plugins=["p.so"]))
    engines = benchmark._engines(["x.engine"], conv_relu_conv(False), options)
    assert [name for name, _ in engines] == ["x.engine", "FP32", "FP16"]
    assert loaded == [("x.engine", 1, ["p.so"], True), *[(b"plan", 1, ["p.so"], False)] * 2]
    assert [(one.plugins, one.device, one.fp16) for one in built] == [(("p.so",), 1, one) for one in fp16]
