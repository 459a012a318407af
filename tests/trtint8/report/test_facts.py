"""Every figure of a report, by value."""

import dataclasses

import onnx

import tests.trtint8.report.extra  # noqa: F401
from tests.trtint8.onnx_models import conv_relu_conv
from tests.trtint8.report.samples import ACCURACY, HOSTILE
from trtint8.models.model import load_model
from trtint8.report.facts import gather


def test_gather(found):
    report = gather(found)
    assert report.files is found and report.proved
    assert len(report.cells) == 2 and len(report.bars) == 3 and len(report.cards) == 3
    assert report.without_histogram == 0 and report.worst is None and report.mismatches == ()
    values = dict(report.provenance)
    assert values["TensorRT for RTX"] == "1.7.1.116" and values["Route"] == "explicit"
    assert values["Fingerprint of the model"] == "1a"
    assert values["Fingerprint of the calibration table"] == found.table.fingerprint
    assert values["Fingerprint of the calibration data"] == "data1"
    assert values["Fingerprint of the sensitivity's data"] == "data2"
    assert values["Fingerprint of the engine file (SHA-256)"] == found.engine.plan_sha256
    assert values["Ranges"] == "3 tensors, entropy" and values["Calibration samples"] == "500"
    assert values["Accuracy measured with"] == f"{ACCURACY.judged}, 400 samples"
    assert values["Sensitivity measured with"] == "128 samples; 96 of them show the effect of a single layer"


def test_an_engine_of_a_qdq_model_belongs_to_the_table_of_the_float_model(found):
    fingerprint = load_model(found.paths["qdq"]).fingerprint
    engine = dataclasses.replace(found.engine, model_fingerprint=fingerprint, qdq_fingerprint=fingerprint)
    assert gather(dataclasses.replace(found, engine=engine)).mismatches == ()


def test_the_size_of_a_model_counts_the_files_with_its_weights(found, tmp_path):
    onnx.save(
        onnx.load(found.paths["qdq"]),
        tmp_path / "net.qdq.onnx",
        save_as_external_data=True,
        location="weights.data",
        size_threshold=0,
    )
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert len(list(tmp_path.iterdir())) == 2
    (tmp_path / "float").mkdir()
    onnx.save(
        conv_relu_conv(quantized=False),
        tmp_path / "float" / "net.onnx",
        save_as_external_data=True,
        location="weights.data",
        size_threshold=0,
    )
    float_size = sum(path.stat().st_size for path in (tmp_path / "float").iterdir())
    beside = dataclasses.replace(found, paths={**found.paths, "qdq": tmp_path / "net.qdq.onnx"})
    report = gather(beside, model=tmp_path / "float" / "net.onnx")
    assert (report.qdq_bytes, report.model_bytes) == (size, float_size)
    assert gather(found).qdq_bytes == found.paths["qdq"].stat().st_size


def test_the_graph_of_the_float_model_needs_an_engine_that_lists_its_layers(found, tmp_path):
    model = onnx.shape_inference.infer_shapes(conv_relu_conv(quantized=False, names=(HOSTILE, "second")))
    onnx.save(model, tmp_path / "net.onnx")
    paths = {kind: path for kind, path in found.paths.items() if kind != "qdq"}
    without = dataclasses.replace(found, paths=paths)
    graph = gather(without, model=tmp_path / "net.onnx").graph
    assert [node.cell.precision for node in graph.nodes] == ["", "INT8", "unknown", "FP32", ""]
    assert not any(edge.int8 for edge in graph.edges)
    assert gather(without).graph is None
    unlisted = dataclasses.replace(without, engine=dataclasses.replace(found.engine, layers=None))
    assert gather(unlisted, model=tmp_path / "net.onnx").graph is None
    assert gather(found, model=tmp_path / "net.onnx").graph.edges[0].int8
