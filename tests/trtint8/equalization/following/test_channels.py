"""The descriptions of channels."""

import numpy as np

from trtint8.equalization.following.channels import Reading


def test_the_channels_of_a_reading_are_a_vector():
    reading = Reading("layer", "x", np.arange(3).reshape(1, 3, 1))
    np.testing.assert_array_equal(reading.channels, [0, 1, 2])
