"""Folders of images with true boxes, as ultralytics has them."""

import functools

import numpy as np
import pytest

Image = pytest.importorskip("PIL.Image")

from calibrators.data.images import true_boxes
from calibrators.data.images.preprocessing import Preprocessing
from calibrators.data.images.true_boxes import label_folder, read_true_boxes
from calibrators.data.opening import open_batches
from calibrators.errors import CalibrationDataError
from tests.calibrators.data.sample_data import hide
from tests.calibrators.specs import NO_FILES, floats

INPUTS = (floats("x", "n", 3, 8, 8),)
LETTERBOX = Preprocessing(letterbox=(8, 8))
NONE = [-1.0] * 5


@pytest.fixture
def folder(tmp_path):
    """Three images of 4 x 8 and 8 x 4 pixels, of which the last has no objects."""
    for name in ("images", "labels"):
        (tmp_path / "set" / name / "val").mkdir(parents=True)
    images, labels = (tmp_path / "set" / name / "val" for name in ("images", "labels"))
    for name, size in (("a", (8, 4)), ("b", (4, 8)), ("c", (8, 8))):
        Image.new("RGB", size, (255, 0, 0)).save(images / f"{name}.png")
    (labels / "a.txt").write_text("1 0.25 0.5 0.5 1\n0 0.75 0.25 0.5 0.5\n")
    (labels / "b.txt").write_text("2 0 0.5 1 0.5 0.5 0.75\n\n")  # a polygon
    return images


@pytest.fixture
def labels(folder):
    return folder.parents[1] / "labels" / "val"


def labels_of(place, preprocessing=LETTERBOX, **options):
    return open_batches(place, INPUTS, preprocessing=preprocessing, **options).labels.tolist()


#: Letterboxed, image a begins two rows further down, and image b two columns to the right.
BOXES = [
    [[0, 2, 4, 6, 1], [4, 2, 8, 4, 0]],
    [[2, 4, 6, 6, 2], NONE],
    [NONE, NONE],
]


def test_boxes_move_with_the_letterbox(folder):
    batches = open_batches(folder, INPUTS, preprocessing=LETTERBOX, batch_size=2)
    assert batches.labels.dtype == np.float32
    assert batches.labels.tolist() == BOXES
    found = list(batches.labelled())
    assert [one.labels[: len(one.feed["x"])].tolist() for one in found] == [BOXES[:2], BOXES[2:]]
    assert found[0].feed["x"][0, 0, :, 0] == pytest.approx([114 / 255] * 2 + [1] * 4 + [114 / 255] * 2)


def test_a_byte_order_mark_before_the_boxes(folder, labels):
    (labels / "a.txt").write_bytes((labels / "a.txt").read_text().encode("utf-8-sig"))
    assert labels_of(folder) == BOXES


def test_other_preprocessing(folder, labels):
    stretched = [[[0, 0, 4, 8, 1], [4, 0, 8, 4, 0]], [[0, 4, 8, 6, 2], NONE], [NONE, NONE]]
    assert labels_of(folder, Preprocessing(resize=(8, 8))) == stretched
    # Of image a the centre is left, x from 4 to 12 of 16 after resizing; of image b y from 4 to 12.
    crop = Preprocessing(resize=8, crop=(8, 8))
    assert labels_of(folder, crop) == [
        [[0, 0, 4, 8, 1], [4, 0, 8, 4, 0]],
        [[0, 4, 8, 8, 2], NONE],
        [NONE, NONE],
    ]
    # A box that is cropped away is left out.
    (labels / "a.txt").write_text("1 0.125 0.5 0.25 1\n0 0.5 0.5 0.25 0.5\n")
    assert labels_of(folder, crop, limit=1) == [[[2, 2, 6, 6, 0]]]


def test_photos_are_turned_upright_as_they_were_labelled(tmp_path):
    for name in ("images", "labels"):
        (tmp_path / name).mkdir()
    upright = np.zeros((8, 4, 3), np.uint8)
    upright[:2, :1] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # stored on its side
    Image.fromarray(np.rot90(upright).copy()).save(tmp_path / "images" / "a.png", exif=exif)
    (tmp_path / "labels" / "a.txt").write_text("0 0.125 0.125 0.25 0.25\n")
    batches = open_batches(tmp_path / "images", INPUTS, preprocessing=LETTERBOX)
    assert batches.labels.tolist() == [[[2, 0, 3, 2, 0]]]
    (feed,) = batches
    assert np.argwhere(feed["x"][0, 0] == 1).tolist() == [[0, 2], [1, 2]]
    # Without a folder of labels, pixels are taken as stored.
    (tmp_path / "labels").rename(tmp_path / "other")
    (feed,) = open_batches(tmp_path / "images", INPUTS, preprocessing=LETTERBOX)
    assert np.argwhere(feed["x"][0, 0] == 1).tolist() == [[5, 0], [5, 1]]


def test_the_folder_above_both_is_taken_too(folder):
    root = folder.parents[1]
    with pytest.raises(CalibrationDataError, match=r"images' has no images .*; give the folder"):
        labels_of(root)
    for name in ("images", "labels"):
        for path in (root / name / "val").iterdir():
            path.rename(root / name / path.name)
        (root / name / "val").rmdir()
    assert labels_of(root) == labels_of(root / "images") == BOXES


def test_only_the_boxes_of_samples_that_are_taken_are_read(folder, labels):
    (labels / "b.txt").write_text("no box")
    assert labels_of(folder, limit=1) == BOXES[:1]
    with pytest.raises(
        CalibrationDataError, match="line 1: 'no box'"
    ):  # others have boxes, so a line is wrong
        labels_of(folder)


def test_without_label_files_there_are_no_labels(folder, labels):
    assert label_folder(folder) == labels
    for path in labels.iterdir():
        path.unlink()
    assert open_batches(folder, INPUTS, preprocessing=LETTERBOX).labels is None
    labels.rmdir()
    assert label_folder(folder) is label_folder(folder.parents[2]) is None
    assert open_batches(folder, INPUTS, preprocessing=LETTERBOX).labels is None


@pytest.mark.parametrize(
    "line",
    [
        "0 0.5 0.5 0.5",
        "0.5 0.5 0.5 1 1",
        "-1 0.5 0.5 1 1",
        "0 320 240 64 64",
        "0 0.5 nan 1 1",
        f"{'2' * 50} 0.5 0.5 0.2 0.2",
        "a b c d e",
        "0 0.5 0.5 0.2 0.2" + " 0.5 0.5 2" * 17,  # a pose
        "0 0.5 0.5 0.2 0.2" + " 0.5 0.6 1 0 0 0" * 12,  # one with as many values as a polygon
    ],
)
def test_files_that_hold_no_boxes_are_left_out_with_a_warning(folder, labels, line):
    (labels / "a.txt").write_text(f"0 0.5 0.5 1 1\n{line}\n")
    (labels / "b.txt").write_text(line)
    with pytest.warns(
        UserWarning, match=rf"^'{labels / 'a.txt'}', line 2: '{line[:60]}'.*'{labels}'"
    ) as warned:
        batches = open_batches(folder, INPUTS, preprocessing=LETTERBOX)
    assert len(warned) == 1 and batches.labels is None
    assert [feed["x"].shape for feed in batches] == [(3, 3, 8, 8)]


@pytest.mark.parametrize(
    ("polygon", "box"),
    [
        ("0.5 0 0.5 0.25 0.25 0.5 0 0.25 0 0", [2, 0, 4, 4, 2]),
        # What would be its box reaches beyond the image, so that all its points would be near enough.
        ("0.25 0.5 0.75 0.5 0.75 1 0 0.75 0.25 1", [2, 4, 5, 8, 2]),
    ],
)
def test_a_polygon_at_the_corner_of_the_image_is_no_box_with_key_points(folder, labels, polygon, box):
    """Its values for what would be the visibility of points are 0 and 1 as well."""
    (labels / "b.txt").write_text(f"2 {polygon}\n")
    assert labels_of(folder)[1] == [box, NONE]


def test_boxes_that_cannot_be_read_are_refused(folder, labels, monkeypatch):
    (labels / "a.txt").write_bytes(b"0 0.5 0.5 1 \xff")
    with pytest.raises(CalibrationDataError, match=r"a\.txt'"):
        labels_of(folder)
    hide(monkeypatch, labels)
    with pytest.raises(CalibrationDataError, match=f"'{labels}' .*Permission denied"):
        labels_of(folder)


@pytest.mark.parametrize("make", NO_FILES)
def test_labels_that_are_no_file_are_refused_and_not_waited_for(tmp_path, make):
    make(tmp_path / "a.txt")
    with pytest.raises(CalibrationDataError, match=r"cannot read '.*a\.txt'"):
        read_true_boxes([tmp_path / "a.png"], [tmp_path], None, 1)


def test_labels_that_would_fill_memory_are_refused(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("0 0.5 0.5 1 1\n" * 100)
    image = pytest.importorskip("PIL.Image")
    image.new("RGB", (8, 4)).save(tmp_path / "a.png")
    read = functools.partial(read_true_boxes, [tmp_path / "a.png"], [tmp_path], None)
    monkeypatch.setattr(true_boxes, "_MOST_BYTES_TOGETHER", 100 * 5 * 4 * 3)
    assert read(3).shape == (3, 100, 5)
    with pytest.raises(CalibrationDataError, match=r"number 0 .*100 .*4 .*6,000"):
        read(4)
    monkeypatch.setattr(true_boxes, "_MOST_BYTES", 1000)
    with pytest.raises(CalibrationDataError, match=r"a\.txt.* larger than 1,000 bytes"):
        read(1)
