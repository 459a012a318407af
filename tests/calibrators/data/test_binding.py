"""From the arrays that a source holds to the feed dict that a model takes."""

import numpy as np
import pytest

from calibrators.data.binding import Binding
from calibrators.data.preprocessing import Preprocessing
from calibrators.errors import CalibrationDataError
from tests.calibrators.data.sample_data import IMAGE, TOKENS, VECTOR, pixels, vectors

RAW = Preprocessing(scale=1)


def test_labels_are_not_fed():
    fed, labels = Binding([VECTOR]).split({"x": vectors(3), "labels": np.arange(3)})
    assert list(fed) == ["x"] and labels.tolist() == [0, 1, 2]
    assert Binding([VECTOR]).split({"x": vectors(3)})[1] is None


def test_the_only_array_needs_no_name_where_images_are_preprocessed():
    fed, _ = Binding([IMAGE], RAW).split({"pictures": pixels(2, 4, 4, 3)})
    assert list(fed) == ["x"]
    with pytest.raises(CalibrationDataError, match="unknown 'pictures' and missing 'x'"):
        Binding([IMAGE]).split({"pictures": pixels(2, 4, 4, 3)})


def test_only_one_input_needs_no_name():
    assert Binding([VECTOR]).only_input("an array") is VECTOR
    with pytest.raises(CalibrationDataError, match=r"^an array names no input and the model has 2"):
        Binding([VECTOR, TOKENS]).only_input("an array")


def test_images_are_preprocessed_and_the_rest_stays():
    binding, images = Binding([IMAGE, TOKENS], RAW), pixels(2, 4, 4, 3)
    feed = {"x": images, "ids": np.asfortranarray(np.arange(4).reshape(2, 2))}
    binding.check(feed)
    prepared = binding.prepare(feed)
    np.testing.assert_array_equal(prepared["x"], images.transpose(0, 3, 1, 2))
    assert prepared["x"].dtype == np.float32 and prepared["ids"].flags.c_contiguous


def test_preprocessing_that_does_not_apply():
    with pytest.raises(CalibrationDataError, match=r"not uint8 images of shape .*: 'x' is float32"):
        Binding([VECTOR], RAW).check({"x": vectors(3)})
