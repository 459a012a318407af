"""A float model and a table become a model with Q/DQ pairs."""

import gc

import pytest

from calibrators.errors import ModelError, TableError
from calibrators.tables.table import CalibrationTable, Provenance
from tests.trtint8.onnx_models import Shaped
from trtint8.models.model import load_model, prepare
from trtint8.quantization.quantize import QuantizeOptions, quantize_graph, quantized_model


@pytest.fixture(scope="module")
def prepared():
    g = Shaped(quantized=False)
    x = g.op("Conv", ["x", g.weights(4, 4, 1, 1)], "first")
    return prepare(
        load_model(g.model({"x": ["N", 4, 8, 8]}, g.op("Conv", [x, g.weights(4, 4, 1, 1)], "second")))
    )


TABLE = CalibrationTable({"x": 1.0, "first_out": 2.0})


def test_every_weighted_node_gets_pairs_and_the_model_stays_as_it_is(prepared):
    model, placement = quantize_graph(prepared, TABLE)
    assert placement.quantized_nodes == ("first", "second")
    found = [node.op_type for node in model.graph]
    assert (found.count("QuantizeLinear"), found.count("DequantizeLinear")) == (4, 4)
    assert [node.op_type for node in prepared.graph_model.graph] == ["Conv", "Conv"]
    assert gc.isenabled()


def test_nodes_that_are_kept_float_get_none(prepared):
    model, placement = quantize_graph(prepared, TABLE, QuantizeOptions(["sec*"]))
    assert placement.quantized_nodes == ("first",)
    assert [node.op_type for node in model.graph].count("QuantizeLinear") == 2
    with pytest.raises(ModelError, match="'third' matches no node"):
        quantize_graph(prepared, TABLE, QuantizeOptions(["third"]))


def test_a_table_must_be_of_the_model_and_cover_it(prepared):
    with pytest.raises(TableError, match="no range for 1 tensor"):
        quantize_graph(prepared, CalibrationTable({"x": 1.0}))
    stale = CalibrationTable(TABLE.amax, provenance=Provenance(model="another"))
    with pytest.raises(TableError, match="stale"):
        quantize_graph(prepared, stale)


def test_what_is_outside_int8_becomes_fp16_where_asked(prepared):
    left = quantized_model(prepared, TABLE, QuantizeOptions(keep_float=["second"]))
    assert (left.placement.quantized_nodes, left.float32) == (("first",), {})
    options = QuantizeOptions(keep_float=["second"], float16=True, float32_io=True)
    typed = quantized_model(prepared, TABLE, options)
    assert [node.op_type for node in typed.graph_model.graph][-1] == "Cast"
    assert left.graph_model.graph[-1].op_type == "Conv"
