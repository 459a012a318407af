"""Validation by the public call."""

import numpy as np
import pytest

import trtint8
from calibrators.errors import CalibrationDataError, ModelError, UnsupportedError
from trtint8.data import DEMO_MODEL


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


def test_a_folder_of_a_class_that_is_missing_would_shift_all_labels(split, table, tmp_path):
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    for label in range(9):
        (tmp_path / str(label)).mkdir()
        image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / str(label) / "0.png")
    int8 = trtint8.quantize(DEMO_MODEL, table)
    options = {"preprocessing": trtint8.Preprocessing(), "progress": False}
    for call in (
        lambda: trtint8.validate(int8, tmp_path, reference=DEMO_MODEL, **options),
        lambda: trtint8.tune(DEMO_MODEL, table, tmp_path, batch_size=2, **options),
    ):
        with pytest.raises(CalibrationDataError, match=r"9 sub-folders, .* 'logits' has 10 classes"):
            call()
    (tmp_path / "9").mkdir()
    with pytest.warns(UserWarning, match="1 sub-folder without images, such as '9': each keeps an index"):
        found = trtint8.validate(int8, tmp_path, reference=DEMO_MODEL, **options)
    assert found.measures[0].name == "top1"


def test_a_model_and_its_reference_that_were_exchanged(split, table):
    int8 = trtint8.quantize(DEMO_MODEL, table)
    with pytest.raises(
        ModelError, match=r"holds Q/DQ pairs and .*, INT8, holds none; give the float model as"
    ):
        trtint8.validate(DEMO_MODEL, split.heldout_images[:8], reference=int8, progress=False)
    with pytest.warns(UserWarning) as warned:
        found = trtint8.validate(
            int8, split.heldout_images[:8], reference=int8, metrics=["agreement"], progress=False
        )
    assert "holds Q/DQ pairs, so that what the results call FP32 is quantized" in str(warned[0].message)
    assert found.measures[0].value.value == 1


def test_one_name_as_metrics_is_one_metric(split, table):
    found = trtint8.validate(
        trtint8.quantize(DEMO_MODEL, table),
        split.heldout_images[:64],
        reference=DEMO_MODEL,
        metrics="agreement",
        progress=False,
    )
    assert [measure.name for measure in found.measures] == ["agreement"] and found.samples == 64


def test_one_function_as_metrics_is_one_metric(split, table):
    def share_of_zeros(_feeds, outputs):
        return float(np.mean(next(iter(outputs.values())) == 0))

    found = trtint8.validate(
        trtint8.quantize(DEMO_MODEL, table),
        split.heldout_images[:8],
        reference=DEMO_MODEL,
        metrics=share_of_zeros,
        minimum=0.0,
        progress=False,
    )
    assert [measure.name for measure in found.measures] == ["share_of_zeros"]


def test_other_models_have_names(split, table):
    with pytest.raises(
        UnsupportedError, match=r"^also is \['q\.onnx'\]; give a dict from the name of a model"
    ):
        trtint8.validate(DEMO_MODEL, split.calibration_images, reference=DEMO_MODEL, also=["q.onnx"])
