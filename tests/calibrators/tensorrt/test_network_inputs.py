"""Feeds in the types of the network: conversions on plain arrays, types on networks that TensorRT parsed."""

import numpy as np
import pytest

from calibrators.errors import CalibrationDataError
from calibrators.tensorrt.feeding import network_dtypes, to_network
from calibrators.tensorrt.messages import shared_logger
from tests.trtint8.onnx_models import Graph

INT32, FLOAT = {"x": np.dtype(np.int32)}, {"x": np.dtype(np.float32)}


def test_numbers_stay_and_bytes_change():
    ids = np.array([[101, 102], [103, 104]], np.int64)
    (converted,) = to_network({"x": ids}, INT32).values()
    assert converted.dtype == np.int32 and converted.flags.c_contiguous
    assert converted.tobytes() == np.array([101, 102, 103, 104], np.int32).tobytes()
    assert to_network({"x": np.array([0.5, 3.0])}, FLOAT)["x"].tobytes() == np.float32([0.5, 3]).tobytes()
    assert (
        to_network({"x": np.array([1.5], np.float32)}, {"x": np.dtype(np.float16)})["x"].dtype == np.float16
    )


def test_what_has_the_type_already_is_not_copied():
    array = np.zeros(3, np.int32)
    assert to_network({"x": array, "y": array}, INT32) == {"x": array, "y": array}
    assert all(found is array for found in to_network({"x": array, "y": array}, INT32).values())


@pytest.mark.parametrize(
    ("array", "dtype", "named"),
    [
        (np.array([5, 1 << 40]), "int32", r"'x' is int32 .*int64 .*5 to 1.09951e\+12"),
        (np.array([1e300]), "float32", "float32 .*float64"),
        (np.array([1e5], np.float32), "float16", "float16"),
        (np.full((4, 3), 200, np.float32), "int8", r"\[-128, 127\].*200 to 200"),
    ],
)
def test_values_that_the_type_does_not_hold(array, dtype, named):
    with pytest.raises(CalibrationDataError, match=named):
        to_network({"x": array}, {"x": np.dtype(dtype)})


def test_inputs_that_are_int8_take_what_fits_in_it():
    array = np.full((4, 3), 127, np.float32)
    assert to_network({"x": array}, {"x": np.dtype(np.int8)})["x"] is array


def test_types_of_a_parsed_network(rtx):
    trt, g = rtx.module, Graph()
    ids = g.Cast("cast", "ids", to=1)
    model = g.model({"x": ["N", 8], "ids": ["N", 8]}, g.Add("sum", "x", ids))
    model.graph.input[1].type.tensor_type.elem_type = 7  # INT64
    logger = shared_logger(trt)
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, logger)
    assert parser.parse(model.SerializeToString())
    assert network_dtypes(trt, network) == {"x": np.dtype(np.float32), "ids": np.dtype(np.int64)}
    del parser, network, builder
