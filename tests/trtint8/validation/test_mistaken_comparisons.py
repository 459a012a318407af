"""Comparisons that do not say what they seem to say are named."""

import warnings

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import trtint8
from tests.trtint8.tuning.networks import uneven
from tests.trtint8.validation.small_models import scaled
from trtint8.cli.main import main
from trtint8.data import DEMO_MODEL
from trtint8.validation import opening

DATA = np.eye(4, dtype=np.float32)

CALIBRATED = "was calibrated with the samples that it is judged by"


def said(model, data, reference, **options):
    """What a comparison warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trtint8.validate(model, data, reference=reference, progress=False, **options)
    own = [warning for warning in caught if warning.category is UserWarning]
    assert {warning.filename for warning in own} <= {__file__}
    return [str(warning.message) for warning in own]


@pytest.fixture(scope="module")
def images(split):
    return split.calibration_images[:40]


@pytest.fixture(scope="module")
def table(images):
    return trtint8.calibrate(DEMO_MODEL, images, progress=False)


@pytest.fixture(scope="module")
def quantized(table):
    return trtint8.quantize(DEMO_MODEL, table)


def test_a_float_model_in_place_of_a_quantized_one(tmp_path, quantized, images):
    onnx.save(scaled(0.5), tmp_path / "half.onnx")
    assert said(tmp_path / "half.onnx", DATA, scaled(1.0)) == [
        "'half.onnx', INT8 in the results, holds neither Q/DQ pairs nor integer operators: what is compared "
        "is a float model; give the quantized one"
    ]
    assert said(scaled(1.0, TensorProto.FLOAT16), DATA, scaled(1.0)) == []
    # Only the model that is called INT8 has to be in INT8.
    assert said(quantized, images[1:], DEMO_MODEL, also={"float": DEMO_MODEL}) == []


def test_a_quantized_model_in_place_of_the_reference(tmp_path, quantized, images):
    onnx.save(quantized, tmp_path / "q.onnx")
    first, second = said(tmp_path / "q.onnx", images[1:], tmp_path / "q.onnx")
    assert first == (
        "the reference 'q.onnx' holds Q/DQ pairs, so that what the results call FP32 is quantized; give the "
        "float model"
    )
    # The float model that it says it was made from is not itself.
    assert second.startswith("the model 'q.onnx' was not made from the reference 'q.onnx'")


def test_a_reference_that_the_model_was_not_made_from(tmp_path, quantized, images):
    other = onnx.load(DEMO_MODEL)
    other.graph.node[0].name = "renamed"
    tensor = other.graph.initializer[0]
    values = onnx.numpy_helper.to_array(tensor) * np.float32(1.001)
    tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    onnx.save(other, tmp_path / "other.onnx")
    onnx.save(quantized, tmp_path / "q.onnx")
    (sentence,) = said(tmp_path / "q.onnx", images[1:], tmp_path / "other.onnx")
    assert sentence.startswith(
        "the model 'q.onnx' was not made from the reference 'other.onnx', but from a float model with the "
    )
    assert sentence.endswith("give the model that it was made from")
    # It is not known where models come from that other tools made.
    foreign = onnx.load(tmp_path / "q.onnx")
    del foreign.metadata_props[:]
    assert said(foreign, images[1:], tmp_path / "other.onnx") == []


def test_what_was_equalized_may_be_compared_with_either_float_model(tmp_path):
    data = np.random.default_rng(1).standard_normal((64, 3, 6, 6)).astype(np.float32)
    onnx.save(uneven(), tmp_path / "m.onnx")
    trtint8.calibrate(tmp_path / "m.onnx", data, method="mse", progress=False).save(tmp_path / "t.json")
    arguments = [
        "quantize",
        str(tmp_path / "m.onnx"),
        str(tmp_path / "t.json"),
        "-o",
        str(tmp_path / "q.onnx"),
    ]
    np.savez(tmp_path / "d.npz", x=data)
    assert main([*arguments, "--equalize", str(tmp_path / "d.npz")]) == 0
    for reference in ("m.onnx", "q.float.onnx"):
        assert said(tmp_path / "q.onnx", data[1:], tmp_path / reference) == []
        (sentence,) = said(tmp_path / "q.onnx", data, tmp_path / reference)
        assert CALIBRATED in sentence


def test_samples_that_the_ranges_were_found_on(tmp_path, quantized, images, table):
    (sentence,) = said(quantized, images, DEMO_MODEL)
    assert CALIBRATED in sentence and sentence.startswith("the model 'model' ")
    # In another order, too, but not as many others.
    assert CALIBRATED in said(quantized, images[::-1], DEMO_MODEL, batch_size=7)[0]
    assert said(quantized, images + np.float32(0.01), DEMO_MODEL) == []
    assert said(quantized, images[:39], DEMO_MODEL) == []


def test_samples_are_read_once(quantized, images):
    passes = []

    def feeds():
        passes.append(None)
        yield from ({"images": images[start : start + 8]} for start in range(0, 40, 8))

    # How many samples there are shows only at the end.
    (sentence,) = said(quantized, feeds, DEMO_MODEL)
    assert CALIBRATED in sentence and len(passes) == 1


def test_an_engine_and_the_samples_of_its_table(tmp_path, monkeypatch, rtx, images):
    monkeypatch.setattr(opening, "gpu_problem", lambda: "there is none")
    engine = tmp_path / "e.engine"
    trtint8.build_int8_engine(DEMO_MODEL, images, engine, target="rtx", progress=False)
    (sentence,) = said(engine, images, DEMO_MODEL)
    assert sentence.startswith(f"the engine '{engine}' {CALIBRATED}")
    assert said(engine, images[:39], DEMO_MODEL) == []
    (tmp_path / "e.table.json").unlink()
    assert said(engine, images, DEMO_MODEL) == []
