"""What a build leaves."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import trtint8
from tests.trtint8.onnx_models import Graph
from trtint8.built_files import float_file_of, qdq_file_of
from trtint8.engine.table import table_file_of

DOUBLE = onnx.TensorProto.DOUBLE


@pytest.mark.slow
def test_types_are_those_of_the_engine_and_not_those_of_the_model(rtx, tmp_path):
    g = Graph()
    product = g.op("MatMul", [g.op("Cast", ["x"], "single", to=1), g.weights(4, 8)], "product")
    model = g.model({"x": ["N", 4]}, g.op("Cast", [product], "double", to=DOUBLE))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = DOUBLE
    onnx.save(model, tmp_path / "m.onnx")
    samples = {"x": np.random.default_rng(0).standard_normal((16, 4))}
    result = trtint8.build_int8_engine(
        tmp_path / "m.onnx",
        samples,
        tmp_path / "m.engine",
        target=rtx.name,
        compute_capabilities=["8.6"],
        progress=False,
    )
    # TensorRT has no DOUBLE. Names of dimensions are the model's, because a network has none.
    assert [(spec.name, spec.dtype) for spec in (*result.info.inputs, *result.info.outputs)] == [
        ("x", "float32"),
        ("double_out", "float32"),
    ]
    assert result.info.inputs[0].shape == ("N", 4)
    trtint8.deploy(result.engine, "docker", tmp_path / "image")
    document = json.loads((tmp_path / "image" / "model.json").read_text())
    assert [spec["dtype"] for spec in document["inputs"] + document["outputs"]] == ["float32", "float32"]


@pytest.mark.slow
def test_files_of_samples_that_are_no_path_are_written_again(rtx, tmp_path):
    g = Graph()
    onnx.save(
        g.model({"x": ["N", 4]}, g.op("MatMul", ["x", g.weights(4, 8)], "product")), tmp_path / "m.onnx"
    )
    for samples in ("random:4", "random:8"):
        with pytest.warns(UserWarning, match=f"the calibration data is '{samples}'"):
            result = trtint8.build_int8_engine(
                tmp_path / "m.onnx",
                samples,
                tmp_path / "m.engine",
                target=rtx.name,
                compute_capabilities=["8.6"],
                progress=False,
            )
    assert trtint8.CalibrationTable.load(result.table_file) == result.table
    assert result.table.provenance.samples == 8


def test_files_stand_beside_the_engine_under_its_name():
    engine = Path("engines") / "resnet50.v2.engine"
    assert qdq_file_of(engine) == Path("engines/resnet50.v2.qdq.onnx")
    assert float_file_of(engine) == Path("engines/resnet50.v2.float.onnx")
    assert table_file_of(engine) == Path("engines/resnet50.v2.table.json")
