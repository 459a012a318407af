"""What deployments make of raw images, computed by their documentation, is what the calibration was fed."""

import configparser
import subprocess
import sys
import warnings
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from calibrators.data.images.preprocessing import Preprocessing
from calibrators.errors import UnsupportedError
from tests.trtint8.deployment.settings import SETTINGS, Setting
from trtint8.deployment.deepstream import deepstream_files
from trtint8.deployment.source import DeployOptions
from trtint8.deployment.triton import triton_files

pillow = pytest.importorskip("PIL.Image")


def nvinfer(text, images):
    """What nvinfer feeds, by the documentation of its properties."""
    parser = configparser.ConfigParser()
    parser.read_string(text)
    found = parser["property"]
    channels, height, width = map(int, found["infer-dims"].split(";"))
    frames = np.stack([framed(image, height, width, found) for image in images])
    assert frames.shape[3] == channels and (found["model-color-format"] == "2") == (channels == 1)
    if found["model-color-format"] == "1":
        frames = frames[..., ::-1]
    offsets = np.array([float(offset) for offset in found["offsets"].split(";")], np.float32)
    assert len(offsets) == channels and min(offsets) >= 0 and float(found["net-scale-factor"]) > 0
    values = np.float32(found["net-scale-factor"]) * (frames.astype(np.float32) - offsets)
    return values if found["network-input-order"] == "1" else values.transpose(0, 3, 1, 2)


def framed(image, height, width, found):
    """A frame in the network's size, in black where its aspect ratio is kept."""
    rows, columns = height, width
    if found["maintain-aspect-ratio"] == "1":
        rows, columns = width * image.shape[0] // image.shape[1], height * image.shape[1] // image.shape[0]
        rows, columns = (rows, width) if rows <= height else (height, columns)
    assert found["scaling-filter"] == "1"
    picture = pillow.fromarray(image[..., 0] if image.shape[2] == 1 else image)
    resized = np.asarray(picture.resize((columns, rows), pillow.Resampling.BILINEAR))
    frame = np.zeros((height, width, image.shape[2]), np.uint8)
    centred = found.get("symmetric-padding") == "1"
    top, left = ((height - rows) // 2, (width - columns) // 2) if centred else (0, 0)
    frame[top : top + rows, left : left + columns] = resized.reshape(rows, columns, -1)
    return frame


@pytest.mark.parametrize("name", SETTINGS)
def test_nvinfer_feeds_the_same_or_a_warning_says_what_not(name, make_source):
    setting = SETTINGS[name]
    source = replace(setting.source(make_source), asked=DeployOptions(labels=("cat", "dog")))
    if setting.nvinfer == "refused":
        with pytest.raises(UnsupportedError, match="nvinfer"):
            deepstream_files(source)
        return
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        files = deepstream_files(source)
    wanted = setting.wanted(setting.images)
    found = nvinfer(files["config_infer.txt"], setting.images)
    is_same = np.allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
    assert is_same == (setting.nvinfer == "same") == (not said)
    # What is said is in the folder, too.
    assert all(str(one.message).split(";")[0][1:] in files["README.md"] for one in said)


def test_an_aspect_ratio_that_is_kept_is_one_that_nvinfer_does_not_keep(make_source):
    with pytest.warns(UserWarning, match=r"aspect ratio.*\(resize 6,"):
        deepstream_files(Setting(Preprocessing(resize=6)).source(make_source))


def test_pixels_that_are_fed_as_they_are(make_source):
    with pytest.warns(UserWarning, match="from 0 to 255"):
        files = deepstream_files(make_source())
    images = np.random.default_rng(0).integers(0, 256, (2, 8, 6, 3), dtype=np.uint8)
    assert_array_equal(nvinfer(files["config_infer.txt"], images), images.transpose(0, 3, 1, 2))


@pytest.mark.parametrize("name", SETTINGS)
def test_the_client_of_triton_sends_the_same(name, make_source, tmp_path):
    setting = SETTINGS[name]
    files = triton_files(setting.source(make_source))
    for file in ("model.json", "preprocess.py"):
        (tmp_path / file).write_text(files[file])
    np.savez(tmp_path / "in.npz", images=setting.images)
    code = (
        "import numpy as np; from preprocess import feeds_of; "
        "np.savez('out.npz', **feeds_of(dict(np.load('in.npz'))))"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    with np.load(tmp_path / "out.npz") as found:
        assert found["images"].dtype == setting.dtype
        assert_array_equal(found["images"], setting.wanted(setting.images).astype(setting.dtype))
