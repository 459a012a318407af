import pytest

from calibrators.tables.table import CalibrationTable
from tests.trtint8.onnx_models import conv_relu_conv
from trtint8.models.model import load_model, prepare
from trtint8.quantization.placement import place


@pytest.fixture(scope="session")
def prepared():
    """A network of two convolutions."""
    return prepare(load_model(conv_relu_conv(quantized=False).SerializeToString()))


@pytest.fixture(scope="session")
def ranges(prepared):
    """Its table."""
    return CalibrationTable(dict.fromkeys(place(prepared.graph_model).tensors, 4.0))


@pytest.fixture(scope="session")
def bare(wild_table):
    """The demo model's ruined table as an imported one, without histograms: weights and layers are left."""
    return CalibrationTable(wild_table.amax, "minmax", wild_table.provenance)
