"""Validation by the public call."""

import numpy as np
import onnx
import pytest

import trtint8
from calibrators.errors import BuildError, CalibrationDataError, ModelError, UnsupportedError
from tests.trtint8.onnx_models import save_external
from trtint8.api.accuracy import SENSITIVITY_SAMPLES
from trtint8.data import DEMO_MODEL


def test_a_folder_of_a_class_that_is_missing_would_shift_all_labels(split, table, tmp_path):
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    for label in range(9):
        (tmp_path / str(label)).mkdir()
        image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / str(label) / "0.png")
    int8 = trtint8.quantize(DEMO_MODEL, table)
    options = {"preprocessing": trtint8.Preprocessing()}
    for call in (
        lambda: trtint8.validate(int8, tmp_path, reference=DEMO_MODEL, **options),
        lambda: trtint8.tune(DEMO_MODEL, table, tmp_path, batch_size=2, **options),
    ):
        with pytest.raises(CalibrationDataError, match=r"9.*'logits'.*has 10"):
            call()
    (tmp_path / "9").mkdir()
    with pytest.warns(UserWarning, match=r"1.*'9'"):
        found = trtint8.validate(int8, tmp_path, reference=DEMO_MODEL, **options)
    assert found.measures[0].name == "top1"


def test_a_model_and_its_reference_that_were_exchanged(split, table):
    int8 = trtint8.quantize(DEMO_MODEL, table)
    with pytest.raises(
        ModelError, match=r"holds Q/DQ pairs and .*, INT8, holds none; give the float model as"
    ):
        trtint8.validate(DEMO_MODEL, split.heldout_images[:8], reference=int8)
    with pytest.warns(UserWarning) as warned:
        found = trtint8.validate(int8, split.heldout_images[:8], reference=int8, metrics=["agreement"])
    assert "holds Q/DQ pairs, so that what the results call FP32 is quantized" in str(warned[0].message)
    assert found.measures[0].value.value == 1


def test_one_function_as_metrics_is_one_metric(split, table):
    def share_of_zeros(_feeds, outputs):
        return float(np.mean(next(iter(outputs.values())) == 0))

    found = trtint8.validate(
        trtint8.quantize(DEMO_MODEL, table),
        split.heldout_images[:8],
        reference=DEMO_MODEL,
        metrics=share_of_zeros,
        minimum=0.0,
    )
    assert [measure.name for measure in found.measures] == ["share_of_zeros"]


def test_other_models_have_names(split, table):
    with pytest.raises(UnsupportedError, match=r"also.*'q\.onnx'"):
        trtint8.validate(DEMO_MODEL, split.calibration_images, reference=DEMO_MODEL, also=["q.onnx"])


def test_keywords_reach_the_measurement(table, held_out):
    images = held_out["images"][:300]
    keywords = {"keep_float": ["/fc/*"], "tolerance_db": 0.0}
    found = trtint8.measure_sensitivity(DEMO_MODEL, table, images, **keywords)
    assert found.samples == SENSITIVITY_SAMPLES == 256
    assert not any(layer.node.startswith("/fc/") for layer in found.layers)
    assert trtint8.measure_sensitivity(DEMO_MODEL, table, images, limit=64, **keywords).samples == 64


def test_weights_in_a_file_beside_the_model(table, held_out, tmp_path):
    path = save_external(onnx.load(DEMO_MODEL), tmp_path)
    beside, inside = (
        trtint8.measure_sensitivity(model, table, held_out["images"][:32]) for model in (path, DEMO_MODEL)
    )
    assert [layer.node for layer in beside.layers] == [layer.node for layer in inside.layers]
    assert beside.layers[0].noise_share == inside.layers[0].noise_share


def test_a_gpu_that_no_table_has_is_refused_before_the_search(split, held_out):
    with pytest.raises(UnsupportedError, match="'RTX 9999'"):
        trtint8.tune(DEMO_MODEL, split.calibration_images, held_out, speed="RTX 9999")


def test_a_profile_is_refused_where_no_times_are_estimated(split, held_out):
    with pytest.raises(BuildError, match=r"^profile=... gives the shapes that .*; add speed=GPU$"):
        trtint8.tune(DEMO_MODEL, split.calibration_images, held_out, profile={"images": ((1, 1, 8, 8),) * 3})


def test_the_search_ends_where_the_budget_is_kept_from_the_start(split, held_out):
    trials = []
    tuned = trtint8.tune(
        DEMO_MODEL,
        split.calibration_images[:64],
        held_out,
        minimum=50,
        metric="top1",
        spend=0,
        on_trial=trials.append,
    )
    assert tuned.fits and not tuned.candidate.keep_float
    assert list(tuned.trials) == trials


def test_a_target_that_tuning_does_not_know_is_refused(split, held_out):
    with pytest.raises(UnsupportedError, match=r"target.*'tensorrt-8\.6'"):
        trtint8.tune(DEMO_MODEL, split.calibration_images, held_out, target="tensorrt-8.6")


def test_nothing_is_resumed_without_a_checkpoint(split, held_out):
    with pytest.raises(
        CalibrationDataError, match=r"^resume continues from a checkpoint, .*; add checkpoint"
    ):
        trtint8.tune(DEMO_MODEL, split.calibration_images, held_out, resume=True)
