"""DeepStream's nvinfer."""

import configparser
import re

import numpy as np
import pytest
from numpy.testing import assert_allclose

from calibrators.data.images.preprocessing import Preprocessing
from calibrators.errors import UnsupportedError
from calibrators.tables.formats.tensorrt_cache import parse
from tests.trtint8.deployment.conftest import AMAX, IMAGES
from trtint8.deployment.deepstream import Scaling, deepstream_files, nvinfer_config
from trtint8.engine.file import TensorSpec


def properties(source):
    """What a reader of key files sees, as GLib's is, which DeepStream uses."""
    parser = configparser.ConfigParser()
    parser.read_string(nvinfer_config(source, source.info.inputs[0]))
    assert parser.sections() == ["property"]
    return dict(parser["property"])


def test_the_configuration(make_source):
    wanted = Preprocessing(mean=(0.485, 0.456, 0.406), std=(0.225,), channels="BGR")
    found = properties(make_source(preprocessing=wanted))
    assert found == {
        "gpu-id": "0",
        "gie-unique-id": "1",
        "process-mode": "1",
        "model-engine-file": "model.plan",
        "int8-calib-file": "calibration.cache",
        "network-mode": "1",
        "batch-size": "32",
        "infer-dims": "3;8;6",
        "network-input-order": "0",
        "model-color-format": "1",
        "net-scale-factor": "0.0174291939",
        "offsets": "123.675;116.28;103.53",
        "maintain-aspect-ratio": "0",
        "scaling-filter": "1",
        "output-blob-names": "logits",
        "network-type": "100",
        "output-tensor-meta": "1",
    }


def test_a_letterbox(make_source):
    source = make_source(preprocessing=Preprocessing(letterbox=(8, 6)))
    with pytest.warns(UserWarning, match="pads frames with black, .* value 114"):
        files = deepstream_files(source)
    config = files["config_infer.txt"]
    assert "maintain-aspect-ratio=1\nsymmetric-padding=1\n" in config
    assert "value 114.**" in files["README.md"]


def test_other_inputs(make_source):
    source = make_source(
        inputs=(TensorSpec("x", "float32", (4, 8, 6, 1)),),
        profiles=(),
        table=False,
        preprocessing=Preprocessing(layout="NHWC", mean=(0.2,)),
    )
    found = properties(source)
    assert "int8-calib-file" not in found
    assert found["offsets"] == "51"
    assert [
        found[key] for key in ("batch-size", "infer-dims", "network-input-order", "model-color-format")
    ] == [
        "4",
        "1;8;6",
        "1",
        "2",
    ]
    plain = properties(make_source())
    assert (plain["net-scale-factor"], plain["offsets"]) == ("1", "0;0;0")


@pytest.mark.parametrize("wanted", [Preprocessing(scale=-1 / 255), Preprocessing(mean=(-0.5,))], ids=str)
def test_what_nvinfer_cannot_compute_is_refused(wanted, make_source):
    with pytest.raises(UnsupportedError) as refused:
        deepstream_files(make_source(preprocessing=wanted))
    assert str(wanted) in str(refused.value)


def test_one_factor_for_all_channels(make_source):
    scaling = Scaling.of(Preprocessing(mean=(0.2,), std=(0.5,)))
    assert scaling.offsets == pytest.approx((51, 51, 51))
    assert (scaling.factor, scaling.deviation) == (pytest.approx(1 / 127.5), 0)
    # The pixels are those of the preprocessing.
    pixels = np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1)
    assert_allclose(
        scaling.factor * (pixels[..., 0].astype(np.float32) - scaling.offsets[0]),
        Preprocessing(mean=(0.2,), std=(0.5,))(pixels)[:, 0],
        atol=1e-5,
    )
    different = Preprocessing(std=(0.2, 0.25, 0.25))
    assert Scaling.of(different).deviation == pytest.approx(5 / (13 / 3) - 1)
    with pytest.warns(UserWarning, match="15 %"):
        text = deepstream_files(make_source(preprocessing=different))["README.md"]
    assert "up to 15 % off.**" in text
    assert "off.**" not in deepstream_files(make_source(preprocessing=Preprocessing()))["README.md"]


@pytest.mark.parametrize(
    ("changes", "version"),
    [
        ({}, "100900"),
        ({"tensorrt_version": "8.6.1"}, "8601"),
        ({"flavor": "rtx", "tensorrt_version": "1.7.1.116"}, "8601"),
    ],
)
def test_the_calibration_file_is_one_of_tensorrt(make_source, changes, version):
    files = deepstream_files(make_source(**changes))
    text = files["calibration.cache"]
    assert text.startswith(f"TRT-{version}-EntropyCalibration2\n")
    assert f"this one names `TRT-{version}`" in files["README.md"]
    scales = {name: float(np.float32(amax / 127)) for name, amax in AMAX.items()}
    # The float model says which ranges follow.
    scales |= dict.fromkeys(("flat", "logits"), scales["images"])
    assert parse(text.encode(), "calibration.cache").scales == scales


def test_the_files(make_source):
    source = make_source()
    files = deepstream_files(source)
    assert sorted(files) == [
        "README.md",
        "build_plan.sh",
        "calibration.cache",
        "config_infer.txt",
        "model.plan",
        "model.qdq.onnx",
    ]
    assert files["model.plan"] == source.engine
    assert "has the ranges of 4 tensors" in files["README.md"]
    files = deepstream_files(make_source(flavor="rtx", table=False))
    assert not {"model.plan", "calibration.cache"} & set(files)
    assert "There is no `calibration.cache`" in files["README.md"]
    assert "**The plan is not here yet.**" in files["README.md"]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((IMAGES, IMAGES), "feeds one input, and the engine has 2: 'images', 'images'; deploy it to triton"),
        (
            (TensorSpec("ids", "int64", ("batch", 8)),),
            "and the input 'ids' is int64, batch x 8; deploy it",
        ),
        ((TensorSpec("x", "float32", ("n", 3, "h", "w")),), "and the input 'x' is float32, n x 3 x h x w"),
        ((TensorSpec("x", "float16", ("n", 3, 8, 6)),), "the input 'x' is float16, n x 3 x 8 x 6"),
        ((TensorSpec("x", "float32", ("n", 8, 6, 3)),), "with 1 or 3 channels in NCHW, and the input 'x'"),
    ],
)
def test_what_nvinfer_cannot_feed_is_refused(make_source, inputs, message):
    with pytest.raises(UnsupportedError, match=message):
        deepstream_files(make_source(inputs=inputs, profiles=()))


@pytest.mark.parametrize("name", ["a;b", "a%b", "a b\n", ""])
def test_a_name_that_the_configuration_cannot_hold_is_refused(make_source, name):
    source = make_source(outputs=(TensorSpec(name, "float32", ("batch", 10)),))
    with pytest.raises(
        UnsupportedError, match=re.escape(f"cannot hold the name of the output {name!r}; export the")
    ):
        deepstream_files(source)
