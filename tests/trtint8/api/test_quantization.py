"""Q/DQ pairs by the public call."""

import re

import onnx
import pytest

import trtint8
from calibrators.errors import CalibrationDataError, ModelError, TableError, UnsupportedError
from trtint8.data import DEMO_MODEL


def test_keep_float_keeps_a_node_out_of_int8(table):
    model = trtint8.quantize(DEMO_MODEL, table, keep_float=["/fc/*"])
    gemm = next(node for node in model.graph.node if node.op_type == "Gemm")
    assert not gemm.input[0].endswith("_dequantized") and not gemm.input[1].endswith("_dequantized")


def test_a_stale_table_is_refused(split, table):
    model = onnx.load(DEMO_MODEL)
    weight = model.graph.initializer[0]
    weight.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weight) * 2, weight.name))
    with pytest.raises(TableError, match="stale"):
        trtint8.quantize(model, table)


def test_patterns_are_compared_with_the_model_whatever_they_are_for(table):
    with pytest.raises(ModelError, match="keep_int8: 'nowhere' matches no node"):
        trtint8.quantize(DEMO_MODEL, table, float16=True, keep_int8=["nowhere"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"keep_int8": ["*"]}, "keep_int8 names layers that would be in FP16 otherwise; add float16=True"),
        (
            {"float32_io": True},
            "float32_io says what stays FP32 when the rest becomes FP16; add float16=True",
        ),
        (
            {"limit": 3},
            "batch_size, limit and preprocessing say how the samples of equalize are read; add equalize=DATA",
        ),
        ({"compute_capability": "8.6"}, "compute_capability is that of a target's GPU; add target=..."),
    ],
)
def test_what_would_have_no_effect_is_refused(table, given, message):
    with pytest.raises((ModelError, UnsupportedError), match=f"^{re.escape(message)}$"):
        trtint8.quantize(DEMO_MODEL, table, **given)


@pytest.mark.parametrize("target", ["tensorrt", "rtx"])
def test_what_is_no_compute_capability_is_refused(table, target):
    with pytest.raises(UnsupportedError, match="'abc' is no compute capability"):
        trtint8.quantize(DEMO_MODEL, table, target=target, compute_capability="abc")
    if target != "tensorrt":
        trtint8.quantize(DEMO_MODEL, table, target=target, compute_capability=8.6)


@pytest.mark.parametrize("ranges", [{"images": 1.0}, None])
def test_what_is_no_table_is_refused(ranges):
    with pytest.raises(TableError, match=f"given as {type(ranges).__name__}; give a CalibrationTable"):
        trtint8.quantize(DEMO_MODEL, ranges)


def test_options_of_data_are_checked_without_data(table):
    with pytest.raises(CalibrationDataError, match="limit is -3; give a positive integer"):
        trtint8.quantize(DEMO_MODEL, table, limit=-3)


def test_names_of_nodes_are_strings(table):
    with pytest.raises(ModelError, match=r"^keep_float: 5 is no name of a node; give strings$"):
        trtint8.quantize(DEMO_MODEL, table, keep_float=[5])
