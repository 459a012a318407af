"""Models and tables of other tools by the public calls."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import trtint8
from calibrators.errors import ModelError, TableError
from tests.calibrators.tables.formats.golden_files import GOLDEN
from trtint8.data import DEMO_MODEL


def test_a_model_that_was_placed_has_nothing_to_mend(table):
    assert trtint8.lint(trtint8.quantize(DEMO_MODEL, table)) == []


def test_mending_keeps_the_ranges(table):
    mended = trtint8.mend(trtint8.quantize(DEMO_MODEL, table))
    assert len(mended.quantized_nodes) == 9


def test_a_table_becomes_pairs(table, tmp_path):
    table.save(tmp_path / "m.table.json")
    migrated = trtint8.migrate(DEMO_MODEL, tmp_path / "m.table.json")
    assert migrated.plan.missing == ()
    with pytest.raises(TableError, match=r"nothing\.cache"):
        trtint8.migrate(DEMO_MODEL, tmp_path / "nothing.cache")


def test_a_cache_that_tensorrt_wrote_becomes_pairs(split, tmp_path):
    """By EntropyCalibrator2 of TensorRT 8.6.0 on a GPU, for the first 480 samples."""
    migrated = trtint8.migrate(DEMO_MODEL, GOLDEN / "demo_8600.cache")
    assert migrated.plan.missing == () and len(migrated.placement.quantized_nodes) == 9
    accuracy = trtint8.validate(
        migrated.save(tmp_path / "m.onnx"),
        split.heldout_images,
        reference=DEMO_MODEL,
        labels=split.heldout_labels,
    )
    assert accuracy.outputs[0].sqnr_db == pytest.approx(36.4, abs=0.5)
    assert abs(accuracy.top1.count - 594) <= 2


def test_a_model_that_has_pairs_is_not_migrated(table):
    with pytest.raises(ModelError, match="holds Q/DQ pairs already"):
        trtint8.migrate(trtint8.quantize(DEMO_MODEL, table), table)


def test_a_float_model_has_no_pairs_to_look_at():
    for call in (trtint8.lint, trtint8.mend):
        with pytest.raises(
            ModelError, match="is a float model, with no Q/DQ pairs to look at; give a quantized"
        ):
            call(DEMO_MODEL)


@pytest.fixture
def last():
    """The name of the tensor before the last layer."""
    return next(node for node in onnx.load(DEMO_MODEL).graph.node if node.op_type == "Gemm").input[0]


def run(model, feed):
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, feed), strict=True))


def test_both_parts_together_compute_what_the_model_does(last):
    head, tail = trtint8.cut_model(DEMO_MODEL, [last])
    feed = {"images": np.random.default_rng(0).random((3, 1, 8, 8), np.float32)}
    middle = run(head, feed)
    assert list(middle) == [last]
    wanted = run(onnx.load(DEMO_MODEL), feed)["logits"]
    np.testing.assert_allclose(run(tail, middle)["logits"], wanted, rtol=1e-5, atol=1e-5)


def test_both_parts_say_of_themselves_what_the_model_does(last):
    """Such as the names of the classes, which stand in the Q/DQ model and in what is deployed."""
    whole = onnx.load(DEMO_MODEL)
    whole.doc_string, whole.model_version = "digits", 7
    onnx.helper.set_model_props(whole, {"names": "{0: 'zero'}"})
    for part in trtint8.cut_model(whole, last):
        assert {entry.key: entry.value for entry in part.metadata_props} == {"names": "{0: 'zero'}"}
        assert (part.doc_string, part.model_version) == ("digits", 7)


def test_one_tensor_by_itself_is_one(last):
    head, _ = trtint8.cut_model(DEMO_MODEL, last)
    assert [output.name for output in head.graph.output] == [last]
    for names, words in (([], "no tensor is named"), (["nowhere"], "nowhere")):
        with pytest.raises(ModelError, match=words):
            trtint8.cut_model(DEMO_MODEL, names)
