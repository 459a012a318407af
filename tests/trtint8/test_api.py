"""The whole way on the model that the package carries, for real."""

import numpy as np
import onnx
import pytest

import trtint8
from calibrators.errors import CalibrationDataError, TableError
from trtint8.data import DEMO_MODEL

pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")


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


def test_labels_of_another_length(split, table):
    with pytest.raises(CalibrationDataError, match="labels"):
        trtint8.validate(
            trtint8.quantize(DEMO_MODEL, table),
            split.heldout_images,
            reference=DEMO_MODEL,
            labels=split.heldout_labels[:-1],
        )


def test_a_label_beyond_the_classes(split, table):
    with pytest.raises(CalibrationDataError, match="label 10 is not one of the model's 10 classes"):
        trtint8.validate(
            trtint8.quantize(DEMO_MODEL, table),
            split.heldout_images,
            reference=DEMO_MODEL,
            labels=split.heldout_labels
            + 10 * (np.arange(597) == 596)
            - split.heldout_labels * (np.arange(597) == 596),
            progress=False,
        )
