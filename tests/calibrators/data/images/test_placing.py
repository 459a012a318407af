"""Where images and boxes lie after they are resized, cropped or padded."""

import numpy as np
import pytest

from calibrators.data.images.files import Placing, letterbox


@pytest.mark.parametrize(
    ("height", "width", "resized", "offset"),
    [
        (480, 640, (480, 640), (80, 0)),
        (1080, 810, (640, 480), (0, 80)),
        (427, 640, (427, 640), (106, 0)),  # 213 / 2, with the smaller half above, as ultralytics has it
        (100, 100, (640, 640), (0, 0)),
        (1, 2000, (1, 640), (319, 0)),
    ],
)
def test_letterbox_has_ultralytics_sizes(height, width, resized, offset):
    assert letterbox(height, width, (640, 640)) == Placing(resized, offset, (640, 640))


def test_boxes_move_with_the_image():
    boxes = np.array([[0.25, 0.5, 0.75, 1.0]])
    assert letterbox(480, 640, (640, 640)).place_boxes(boxes).tolist() == [[160, 320, 480, 560]]
    assert Placing((100, 200), (-10, -60), (80, 80)).place_boxes(boxes).tolist() == [[0, 40, 80, 80]]
