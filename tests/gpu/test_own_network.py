"""Engines of networks that TensorRT's API defines, with ranges by the public call.

Both convolutions copy their input, so what comes out of INT8 is known: the input, rounded and clipped.
"""

import numpy as np
import pytest

import trtint8
from calibrators.cuda import primary_context
from calibrators.data.inputs import InputSpec
from calibrators.tensorrt.calibrators import calibrator_class
from calibrators.tensorrt.messages import shared_logger
from tests.gpu.conftest import OPTIONS
from trtint8.builder.build import network_flags
from trtint8.builder.config import configure

SHAPE = (4, 32, 16, 16)
X = np.random.default_rng(0).uniform(-1, 1, SHAPE).astype(np.float32)
FLOAT = np.maximum(X, 0)


class Build:
    """A builder with a network ``x`` -> conv1 -> relu ``r`` -> conv2 ``y``."""

    def __init__(self, flavor):
        self.trt = trt = flavor.module
        self.builder = trt.Builder(shared_logger(trt))
        self.network = network = self.builder.create_network(network_flags(trt, flavor))
        self.config = self.builder.create_builder_config()
        configure(trt, flavor, self.builder, self.config, OPTIONS, int8=False)
        self.x = network.add_input("x", trt.float32, SHAPE)
        self.convolutions = [self._copy(self.x, "conv1")]
        relu = network.add_activation(self.convolutions[0].get_output(0), trt.ActivationType.RELU)
        relu.name, relu.get_output(0).name = "relu", "r"
        self.convolutions.append(self._copy(relu.get_output(0), "conv2"))
        self.y = self.convolutions[1].get_output(0)
        self.y.name = "y"
        network.mark_output(self.y)

    def _copy(self, tensor, name):
        weights = np.eye(32, dtype=np.float32).reshape(32, 32, 1, 1)
        layer = self.network.add_convolution_nd(tensor, 32, (1, 1), weights, np.zeros(32, np.float32))
        layer.name = name
        return layer

    def in_int8(self):
        """Both convolutions have to be in INT8."""
        self.config.set_flag(self.trt.BuilderFlag.OBEY_PRECISION_CONSTRAINTS)
        for layer in self.convolutions:
            layer.precision = self.trt.int8

    def set_ranges(self, ranges, **options):
        return trtint8.set_dynamic_ranges(self.network, ranges, config=self.config, **options)

    def output(self, x=X):
        plan = self.builder.build_serialized_network(self.network, self.config)
        assert plan is not None
        with trtint8.Engine.load(bytes(plan)) as engine:
            return engine.infer({"x": x})["y"]


@pytest.fixture
def build(implicit_flavor):
    with primary_context(0):
        made = Build(implicit_flavor)
        yield made
        del made


@pytest.mark.parametrize("amax", [1.0, 0.5])
def test_int8_rounds_and_clips_as_the_ranges_say(build, amax):
    build.in_int8()
    done = build.set_ranges({"x": (-amax, amax), "r": amax, "y": amax})
    assert (done.missing, list(done.followed.values())) == ((), [amax])
    step = amax / 127
    expected = np.clip(FLOAT, 0, amax)
    output = build.output()
    np.testing.assert_allclose(output, expected, atol=step)
    assert np.abs(output - expected).max() > step / 4


def test_layers_that_stay_in_float_do_not_clip(build):
    done = build.set_ranges({"x": 0.5, "r": 0.5, "y": 0.5}, keep_float=["*"])
    assert done.missing == ()
    np.testing.assert_allclose(build.output(), FLOAT, atol=1e-3)


def test_half_precision_is_neither_float_nor_int8(build):
    build.set_ranges({}, keep_float={"*": "fp16"})
    output = build.output()
    np.testing.assert_allclose(output, FLOAT.astype(np.float16), atol=1e-3)
    assert not np.array_equal(output, FLOAT)


def test_nothing_is_in_int8_around_tensors_without_a_range(build):
    done = build.set_ranges({"x": 0.5})
    assert [(one.tensor, one.layer) for one in done.missing][1:] == [("r", "relu"), ("y", "conv2")]
    np.testing.assert_allclose(build.output(), FLOAT, atol=1e-3)


def test_inputs_and_outputs_that_are_int8(build):
    build.in_int8()
    for tensor in (build.x, build.y):
        tensor.dtype = build.trt.int8
        tensor.allowed_formats = 1 << int(build.trt.TensorFormat.LINEAR)
    assert build.set_ranges({"x": 1.0, "r": 1.0, "y": 1.0}).missing == ()
    x = np.rint(X * 127).astype(np.int8)
    output = build.output(x)
    assert output.dtype == np.int8
    assert np.array_equal(output, np.maximum(x, 0))


def test_a_calibrators_cache_without_data(implicit_flavor, tmp_path):
    cache = tmp_path / "own.cache"
    with primary_context(0):
        first = Build(implicit_flavor)
        inputs = (InputSpec("x", np.dtype(np.float32), SHAPE),)
        calibrator = calibrator_class("MinMaxCalibrator", implicit_flavor)(
            X, inputs, batch_size=len(X), cache=cache, progress=False
        )
        calibrator.prepare()
        first.config.set_flag(first.trt.BuilderFlag.INT8)
        first.config.int8_calibrator = calibrator
        with pytest.raises(trtint8.BuildError, match="config has an int8_calibrator"):
            first.set_ranges({"x": 1.0})
        first.output()
        calibrator.raise_failure()
        second = Build(implicit_flavor)
        second.in_int8()
        done = second.set_ranges(cache)
        assert (done.missing, done.unused) == ((), ())
        assert done.given["x"] == pytest.approx(np.abs(X).max(), rel=0.02)
        np.testing.assert_allclose(second.output(), FLOAT, atol=0.02)


def test_networks_whose_int8_stands_in_the_graph(implicit_flavor):
    trt = implicit_flavor.module
    with primary_context(0):
        pairs = Build(implicit_flavor)
        scale = pairs.network.add_constant((), np.array(0.5, np.float32)).get_output(0)
        pairs.network.add_quantize(pairs.x, scale)
        with pytest.raises(trtint8.UnsupportedError, match="holds Q/DQ layers"):
            pairs.set_ranges({"x": 1.0})
        flags = trt.NetworkDefinitionCreationFlag.__members__
        if "STRONGLY_TYPED" not in flags:
            pytest.skip("this TensorRT has no strongly typed networks")
        builder = trt.Builder(shared_logger(trt))
        network = builder.create_network(1 << int(flags["STRONGLY_TYPED"]))
        network.add_input("x", trt.float32, SHAPE)
        with pytest.raises(trtint8.UnsupportedError, match="strongly typed"):
            trtint8.set_dynamic_ranges(network, {"x": 1.0})
        del network, builder
