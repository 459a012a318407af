"""Networks of TensorRT's own classes; without a GPU the bindings make none that can be looked into."""

import pytest

import trtint8
from calibrators.errors import BuildError, UnsupportedError
from calibrators.tensorrt.flavor import Flavor, flavor_of
from trtint8.builder.dynamic_ranges import OWN_PROPERTIES, RANGED


@pytest.fixture
def network(trt):
    """An object of TensorRT's class with nothing behind it: only its class may be asked for."""
    return trt.INetworkDefinition.__new__(trt.INetworkDefinition)


def test_a_network_says_which_tensorrt_it_belongs_to(trt, network):
    assert flavor_of(network) == Flavor("tensorrt", trt.__version__)
    with pytest.raises(BuildError, match="network is a ILogger; give the INetworkDefinition"):
        flavor_of(trt.ILogger.__new__(trt.ILogger))


def test_tensorrt_without_dynamic_ranges(trt, network):
    if Flavor("tensorrt", trt.__version__).implicit_int8:
        pytest.skip("this TensorRT has dynamic ranges")
    with pytest.raises(UnsupportedError, match=r"TensorRT 11\..* has no dynamic ranges, .* explicit route"):
        trtint8.set_dynamic_ranges(network, {"x": 1.0})


def test_layers_and_types_have_these_names(trt):
    for kind, (owner, name) in OWN_PROPERTIES.items():
        assert kind in trt.LayerType.__members__
        assert isinstance(getattr(getattr(trt, owner), name), property)
    assert RANGED - {"BF16"} <= trt.DataType.__members__.keys()
