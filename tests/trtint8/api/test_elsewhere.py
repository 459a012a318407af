"""Models and tables of other tools by the public calls."""

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
        progress=False,
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
