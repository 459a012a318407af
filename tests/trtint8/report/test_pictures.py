"""Preprocessing undone, and pictures that a page can carry."""

import base64
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import tests.trtint8.report.extra  # noqa: F401
from calibrators.data.images.preprocessing import Preprocessing
from trtint8.report.worst import LONGEST, data_uri, pixels

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed (pip install 'trtint8[images]')")


@pytest.mark.filterwarnings("ignore:preprocessing subtracts the mean:UserWarning")
@given(
    arrays(np.uint8, st.tuples(st.integers(1, 3), st.just(4), st.just(5), st.sampled_from([1, 3]))),
    st.sampled_from(["NCHW", "NHWC"]),
    st.sampled_from(["RGB", "BGR"]),
    st.floats(-2, 2),
    st.floats(0.1, 3),
    st.sampled_from([1.0, 1 / 255, 1 / 16]),
)
def test_preprocessing_is_undone_exactly(images, layout, channels, mean, std, scale):
    preprocessing = Preprocessing(scale=scale, mean=(mean,), std=(std,), layout=layout, channels=channels)
    shown = pixels(preprocessing(images), preprocessing)
    np.testing.assert_array_equal(shown, images)


def test_a_mean_a_channel_is_undone():
    images = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), np.uint8)
    preprocessing = Preprocessing(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), channels="BGR")
    np.testing.assert_array_equal(pixels(preprocessing(images), preprocessing), images)


def test_other_inputs_are_spread_over_all_greys():
    array = np.array([[[[-1.0, 0.0], [1.0, 3.0]]], [[[2.0, 2.0], [2.0, 2.0]]]], np.float32)
    assert pixels(array, None)[..., 0].tolist() == [[[0, 64], [128, 255]], [[0, 0], [0, 0]]]
    assert pixels(np.zeros((2, 5, 8, 8), np.float32), None) is None
    assert pixels(np.zeros((2, 8), np.float32), None) is None
    raw = np.arange(2 * 4 * 4 * 3, dtype=np.uint8).reshape(2, 4, 4, 3)
    np.testing.assert_array_equal(pixels(raw, None), raw)


def test_pictures_are_png_and_small():
    picture = np.random.default_rng(0).integers(0, 256, (6, 7, 3), np.uint8)
    head, _, data = data_uri(picture).partition(",")
    assert head == "data:image/png;base64"
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))), picture)
    large = data_uri(np.zeros((4 * LONGEST, 2 * LONGEST, 1), np.uint8)).partition(",")[2]
    assert Image.open(io.BytesIO(base64.b64decode(large))).size == (LONGEST // 2, LONGEST)
