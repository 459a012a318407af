"""Networks that are defined by TensorRT's API, without a model."""

import types
from contextlib import contextmanager

import numpy as np

from calibrators.tensorrt.messages import shared_logger


@contextmanager
def new_network(trt):
    """An empty network; its builder lives as long."""
    builder = trt.Builder(shared_logger(trt))
    network = builder.create_network(0)
    yield network
    del network, builder


def add_residual(trt, network, offset=-3.0):
    """A block with a second branch, and a product with a bias; some tensors and layers have names.

    ``x`` -> conv -> relu ``r`` -> conv ``c2`` -> add(``r``) ``s`` -> relu ``y`` -> max pooling -> flatten ->
    product -> add(bias) -> softmax ``p``
    """
    random = np.random.default_rng(0)

    def weights(*shape):
        return random.standard_normal(shape).astype(np.float32)

    x = network.add_input("x", trt.float32, (1, 3, 8, 8))
    conv = network.add_convolution_nd(x, 4, (3, 3), weights(4, 3, 3, 3), weights(4))
    conv.padding_nd = (1, 1)
    relu = named(network.add_activation(conv.get_output(0), trt.ActivationType.RELU), "relu1", "r")
    conv = network.add_convolution_nd(relu.get_output(0), 4, (3, 3), weights(4, 4, 3, 3), weights(4))
    named(conv, "conv2", "c2").padding_nd = (1, 1)
    total = network.add_elementwise(conv.get_output(0), relu.get_output(0), trt.ElementWiseOperation.SUM)
    named(total, "add", "s")
    relu = named(network.add_activation(total.get_output(0), trt.ActivationType.RELU), "relu2", "y")
    pool = named(network.add_pooling_nd(relu.get_output(0), trt.PoolingType.MAX, (8, 8)), "pool", "pooled")
    flat = named(network.add_shuffle(pool.get_output(0)), "flatten", "flat")
    flat.reshape_dims = (1, 4)
    matrix = named(network.add_constant((4, 5), weights(4, 5)), "weights", "w")
    none = trt.MatrixOperation.NONE
    product = network.add_matrix_multiply(flat.get_output(0), none, matrix.get_output(0), none)
    named(product, "product", "xw")
    bias = named(network.add_constant((1, 5), np.full((1, 5), offset, np.float32)), "bias", "b")
    total = network.add_elementwise(product.get_output(0), bias.get_output(0), trt.ElementWiseOperation.SUM)
    named(total, "fc", "z")
    softmax = named(network.add_softmax(total.get_output(0)), "softmax", "p")
    softmax.axes = 2
    network.mark_output(softmax.get_output(0))


def named(layer, name, *outputs):
    """Gives a layer and its outputs names."""
    layer.name = name
    for index, output in enumerate(outputs):
        layer.get_output(index).name = output
    return layer


class Noting:
    """A real network of TensorRT for RTX with the setters that it has not, of TensorRT 8.5 to 10.

    They note what they are called with, no more: what TensorRT does with ranges is tested in tests/gpu.

    Args:
        real: The network, or one of its layers or tensors.
        noted: Where calls are noted: "ranges", "precisions" and "types", each by name.
    """

    def __init__(self, real, noted=None):
        vars(self)["_real"] = real
        vars(self)["noted"] = {"ranges": {}, "precisions": {}, "types": {}} if noted is None else noted

    def __getattr__(self, name):
        found = getattr(self._real, name)
        if name not in ("get_input", "get_output", "get_layer"):
            return found
        return lambda index: None if found(index) is None else Noting(found(index), self.noted)

    @property
    def __class__(self):
        return type(self._real)

    @__class__.setter
    def __class__(self, value):
        self._real.__class__ = value

    def __setattr__(self, name, value):
        if name == "precision":
            self.noted["precisions"][self.name] = value.name
        else:
            object.__setattr__(self, name, value)

    def set_output_type(self, index, value):
        self.noted["types"][self.name, index] = value.name

    def set_dynamic_range(self, low, high):
        assert low == -high
        self.noted["ranges"][self.name] = high
        return True


class NotingConfig:
    """A configuration that notes its flags."""

    int8_calibrator = None

    def __init__(self):
        self.flags = []

    def set_flag(self, flag):
        self.flags.append(flag)


def implicit_module(rtx):
    """TensorRT for RTX's module with the flags of TensorRT 8.6."""
    module = types.SimpleNamespace(**vars(rtx.module))
    names = ("FP16", "INT8", "OBEY_PRECISION_CONSTRAINTS", "PREFER_PRECISION_CONSTRAINTS")
    module.BuilderFlag = types.SimpleNamespace(__members__={name: name for name in names})
    module.IBuilderConfig = NotingConfig
    return module
