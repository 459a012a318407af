import math

import numpy as np
import pytest

import trtint8
from calibrators.errors import TableError
from calibrators.tables.table import CalibrationTable
from tests.trtint8.onnx_models import Shaped
from tests.trtint8.sensitivity.measuring import measured
from trtint8.sensitivity.results import Sensitivity


def test_a_result_survives_its_file(table, tmp_path):
    found = measured(table, limit=32)
    assert Sensitivity.load(found.save(tmp_path / "s.json")) == found
    exact = CalibrationTable({"x": 127.0})
    g = Shaped(quantized=False)
    weights = g.constant(np.eye(2, dtype=np.float32) * 127)
    model = g.model({"x": ["N", 2]}, g.op("MatMul", ["x", weights], "layer"))
    found = trtint8.measure_sensitivity(model, exact, np.ones((4, 2), np.float32), progress=False)
    assert found.quantized.sqnr_db == found.layers[0].weights_db == math.inf
    assert found.layers[0].noise_share == 0.0
    assert Sensitivity.load(found.save(tmp_path / "s.json")) == found


@pytest.mark.parametrize("content", [b"{}", b"[]", b"\xff", b'{"format": "trtint8-sensitivity"}'])
def test_a_file_that_is_no_result(tmp_path, content):
    (tmp_path / "s.json").write_bytes(content)
    with pytest.raises(TableError, match="is no result of 'trtint8 sensitivity'"):
        Sensitivity.load(tmp_path / "s.json")
