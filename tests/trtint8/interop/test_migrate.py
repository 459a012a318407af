"""The ranges of a calibration cache, put where Q/DQ pairs need them."""

import pytest

from calibrators.errors import ModelError, TableError
from calibrators.tables.table import CalibrationTable
from tests.trtint8.onnx_models import Shaped
from trtint8.interop.extract import extract_table
from trtint8.interop.migrate import migrate
from trtint8.models.model import load_model, prepare


@pytest.fixture(scope="module")
def prepared():
    """A convolution, a Relu and a MaxPool, which has the range of the Relu, and a convolution."""
    g = Shaped(quantized=False)
    first = g.op("Relu", [g.op("Conv", ["x", g.weights(4, 4, 1, 1)], "first")], "relu")
    pool = g.op("MaxPool", [first], "pool", kernel_shape=[2, 2])
    return prepare(
        load_model(g.model({"x": ["N", 4, 8, 8]}, g.op("Conv", [pool, g.weights(4, 4, 1, 1)], "second")))
    )


def test_every_range_is_used(prepared, tmp_path):
    migrated = migrate(prepared, CalibrationTable({"x": 1.0, "relu_out": 2.0, "pool_out": 2.0}))
    assert migrated.placement.quantized_nodes == ("first", "second")
    saved = load_model(migrated.save(tmp_path / "q.onnx"))
    assert saved.is_quantized
    assert sorted(set(extract_table(saved).amax.values())) == pytest.approx([1.0, 2.0])


def test_a_gap_is_filled_only_where_asked(prepared):
    gap = CalibrationTable({"x": 1.0, "relu_out": 2.0})
    with pytest.raises(
        TableError, match="the cache has no range for 1 tensor that needs one: 'pool_out'; all of"
    ):
        migrate(prepared, gap)
    migrated = migrate(prepared, gap, fill=True)
    assert migrated.plan.fills == {"pool_out": 2.0}
    assert repr(migrated) == "<Migrated: 2 nodes in INT8, 1 tensor without a range in the cache>"
    assert migrated.placement.quantized_nodes == ("first", "second")


def test_a_gap_that_nothing_fills(prepared):
    with pytest.raises(TableError, match="'x'; calibrate the model, or add ranges with 'trtint8 table set'"):
        migrate(prepared, CalibrationTable({"relu_out": 2.0, "pool_out": 2.0}), fill=True)


def test_a_tensor_that_had_another_name(prepared):
    with pytest.raises(TableError) as caught:
        migrate(prepared, CalibrationTable({"before": 1.0, "relu_out": 2.0, "pool_out": 2.0}))
    assert str(caught.value) == (
        "the cache has no range for 1 tensor that needs one: 'x'; it has one for 'before', which the model "
        "lacks (was a tensor renamed?); calibrate the model, or add ranges with 'trtint8 table set'"
    )


def test_layers_in_float_need_no_range(prepared):
    migrated = migrate(prepared, CalibrationTable({"x": 1.0}), keep_float=["second"])
    assert migrated.placement.quantized_nodes == ("first",)
    with pytest.raises(ModelError, match="'third' matches no node"):
        migrate(prepared, CalibrationTable({"x": 1.0}), keep_float=["third"])
