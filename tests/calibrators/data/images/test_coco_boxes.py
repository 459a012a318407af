"""True boxes from COCO's file of instances."""

import json
import tracemalloc

import numpy as np
import pytest

from calibrators.data.images import true_boxes
from calibrators.data.images.preprocessing import Preprocessing
from calibrators.data.opening import open_batches
from calibrators.errors import CalibrationDataError
from tests.calibrators.specs import NO_FILES, floats

INPUTS = (floats("x", "n", 3, 8, 8),)
NONE = [-1.0] * 5

INSTANCES = {
    "images": [
        {"id": 7, "file_name": "val/b.png", "width": 4, "height": 8},
        {"id": 5, "file_name": "a.png", "width": 8, "height": 4},
        {"id": 6, "file_name": "elsewhere.png", "width": 8, "height": 4},
    ],
    "annotations": [
        {"image_id": 5, "category_id": 90, "bbox": [0, 0, 4, 4]},
        {"image_id": 5, "category_id": 1, "bbox": [4, 0, 4, 2], "iscrowd": 0},
        {"image_id": 5, "category_id": 1, "bbox": [0, 0, 8, 4], "iscrowd": 1},
        {"image_id": 7, "category_id": 3, "bbox": [0, 4, 4, 2]},
    ],
    "categories": [{"id": 90}, {"id": 1}, {"id": 3}],
}


@pytest.fixture
def folder(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for name, size in (("a", (8, 4)), ("b", (4, 8))):
        image.new("RGB", size).save(tmp_path / f"{name}.png")
    (tmp_path / "instances.json").write_text(json.dumps(INSTANCES))
    return tmp_path


def labels_of(folder, **options):
    raw = Preprocessing(letterbox=(8, 8))
    labels = folder / "instances.json"
    return open_batches(folder, INPUTS, preprocessing=raw, labels=labels, **options).labels.tolist()


def test_boxes_by_file_name_and_class_by_the_order_of_ids(folder):
    assert labels_of(folder) == [[[0, 2, 4, 6, 2], [4, 2, 8, 4, 0]], [[2, 4, 6, 6, 1], NONE]]
    assert labels_of(folder, limit=1) == [[[0, 2, 4, 6, 2], [4, 2, 8, 4, 0]]]


def one_box_each(folder, names):
    """Makes images of these names; returns their document, with a box at (n, n) of image n."""
    image = pytest.importorskip("PIL.Image")
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        image.new("RGB", (8, 8)).save(folder / name)
    entries = [{"id": n, "file_name": name, "width": 8, "height": 8} for n, name in enumerate(names)]
    boxes = [{"image_id": n, "category_id": 1, "bbox": [n, n, 2, 2]} for n in range(len(names))]
    return {"images": entries, "annotations": boxes, "categories": [{"id": 1}]}


def test_boxes_of_samples_that_are_taken_in_turn_over_sub_folders(tmp_path):
    document = one_box_each(tmp_path, ["cam1/a.png", "cam1/b.png", "cam2/c.png", "cam2/d.png"])
    (tmp_path / "instances.json").write_text(json.dumps(document))
    shuffled = np.random.default_rng(0).permutation(4)[:3].tolist()
    for options, order in (
        ({}, [0, 1, 2, 3]),
        ({"limit": 2}, [0, 2]),
        ({"limit": 3}, [0, 2, 1]),
        ({"limit": 3, "shuffle": True}, shuffled),
    ):
        assert labels_of(tmp_path, **options) == [[[n, n, n + 2, n + 2, 0]] for n in order]


def test_images_of_one_name_are_told_apart_by_their_folders(tmp_path):
    names = ["cam1/a.png", "cam2/a.png", "north/cam2/a.png"]
    document = one_box_each(tmp_path, names)
    for n, name in enumerate(names):
        labels = tmp_path / name.replace("a.png", "instances.json")
        labels.write_text(json.dumps(document))
        assert labels_of(labels.parent) == [[[n, n, n + 2, n + 2, 0]]]
    first, second, _ = document["images"]
    for images in ([first, {**first, "id": 1}, {**first, "id": 2}], [first, second, {**second, "id": 2}]):
        labels = tmp_path / "cam2" / "instances.json"
        labels.write_text(json.dumps({**document, "images": images}))
        with pytest.raises(CalibrationDataError, match=r"'a.png', .*'cam1/a.png', .*cam2/a.png'"):
            labels_of(tmp_path / "cam2")


def test_an_image_that_was_labelled_upright_and_is_stored_on_its_side_is_refused(folder):
    image = pytest.importorskip("PIL.Image")
    exif = image.Exif()
    exif[0x0112] = 6
    image.new("RGB", (4, 8)).save(folder / "a.png", exif=exif)
    with pytest.raises(CalibrationDataError, match=r"a.png' .*4 x 8 .*8 x 4: .*90 degrees"):
        labels_of(folder)
    # A folder that has ultralytics' labels too is read upright.
    (folder / "images").mkdir()
    (folder / "labels").mkdir()
    for name in ("a.png", "b.png", "instances.json"):
        (folder / name).rename(folder / "images" / name)
    assert labels_of(folder / "images") == [[[0, 2, 4, 6, 2], [4, 2, 8, 4, 0]], [[2, 4, 6, 6, 1], NONE]]


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ("no JSON", "line 1"),
        ([], "COCO's instances"),
        ({**INSTANCES, "categories": [{}]}, "`id` .*categories"),
        ({**INSTANCES, "images": [{"id": 5, "file_name": "a.png"}], "annotations": []}, "`width`"),
        ({**INSTANCES, "images": INSTANCES["images"][1:], "annotations": []}, "2 images, .*'b.png'"),
    ],
)
def test_what_is_no_such_file_is_refused(folder, document, named):
    text = document if isinstance(document, str) else json.dumps(document)
    (folder / "instances.json").write_text(text)
    with pytest.raises(CalibrationDataError, match=named):
        labels_of(folder)


def with_annotation(**values):
    """The document with one more annotation, of image a."""
    one = {"id": 41, "image_id": 5, "category_id": 1, "bbox": [1, 1, 2, 2], **values}
    return {**INSTANCES, "annotations": [*INSTANCES["annotations"], one]}


def with_more(name, one):
    return {**INSTANCES, name: [*INSTANCES[name], one]}


@pytest.mark.parametrize(
    ("document", "named"),
    [
        (with_annotation(bbox=[np.nan, 1, 2, 2]), r"annotation 41 .*bbox \[nan, 1, 2, 2\]; give finite"),
        (with_annotation(bbox=[1, 1, np.inf, 2]), r"annotation 41 .*bbox \[1, 1, inf, 2\]; give finite"),
        (with_annotation(bbox=[1e308, 1, 1e308, 2]), "annotation 41 .*bbox .*; give finite"),
        (with_annotation(bbox=[1e300, 1, 2, 2]), "annotation 41 .*bbox .*; give finite"),
        (with_annotation(bbox=[-1e10, 1, 2, 2]), "annotation 41 .*bbox .*; give finite"),
        (with_annotation(bbox=None), "annotation 41 .*bbox None; give finite"),
        (with_annotation(bbox=[4, 1, -2, 2]), r"annotation 41 .*bbox \[4, 1, -2, 2\]; .*negative"),
        (with_annotation(bbox=[4, 3, 2, -2]), r"annotation 41 .*bbox \[4, 3, 2, -2\]; .*negative"),
        (with_annotation(image_id="5"), "annotation 41 .*image_id '5'"),
        (with_annotation(category_id=2), "annotation 41 .*category_id 2"),
        ({**INSTANCES, "categories": []}, "annotation number 1 .*category_id 90"),
        (with_more("categories", {"id": 3}), "categories with the id 3"),
        (with_more("images", INSTANCES["images"][2]), "images with the id 6"),
    ],
)
def test_what_would_be_dropped_or_shifted_is_refused_by_its_id(folder, document, named):
    (folder / "instances.json").write_text(json.dumps(document))
    with pytest.raises(CalibrationDataError, match=f"'.*instances.json'.*{named}"):
        labels_of(folder)


@pytest.mark.parametrize(
    "values",
    [
        {"bbox": [1, 1, 0, 2]},
        {"bbox": [5e-324, 0, 5e-324, 4]},  # a size too small for a number
        {"image_id": 6},  # which is elsewhere
        {"iscrowd": 1, "bbox": [1, 1, -2, 2]},
    ],
)
def test_annotations_that_leave_no_box(folder, values):
    expected = labels_of(folder)
    (folder / "instances.json").write_text(json.dumps(with_annotation(**values)))
    assert labels_of(folder) == expected


def test_a_box_slightly_outside_of_its_image_is_cut_off(folder):
    (folder / "instances.json").write_text(json.dumps(with_annotation(bbox=[-0.5, 1, 9, 2])))
    assert labels_of(folder)[0][2] == [0, 3, 8, 5, 0]


@pytest.mark.parametrize("size", [(8, 4), (4, 2), (17, 8)])
def test_an_image_that_was_resized_has_the_same_boxes_in_proportion(folder, size):
    image, whole = pytest.importorskip("PIL.Image"), labels_of(folder)
    image.new("RGB", size).save(folder / "a.png")
    np.testing.assert_allclose(labels_of(folder), whole, atol=0.3)


def test_an_image_in_other_proportions_than_the_labelled_one_is_refused(folder):
    image = pytest.importorskip("PIL.Image")
    image.new("RGB", (8, 6)).save(folder / "a.png")
    with pytest.raises(CalibrationDataError, match=r"a.png' .*6 x 8 .*instances.json' .*4 x 8"):
        labels_of(folder)


def test_a_missing_file_and_other_data_are_refused(folder):
    (folder / "instances.json").unlink()
    with pytest.raises(CalibrationDataError, match=r"cannot read the labels file .* No such file"):
        labels_of(folder)
    with pytest.raises(CalibrationDataError, match="of images, and the data is no folder of images; give"):
        open_batches(np.zeros((2, 3, 8, 8), np.float32), INPUTS, labels="instances.json")


@pytest.mark.parametrize("width", [1e-320, 5e-324, 1e308, 1e10, 0.5, -8, None, "8"])
def test_an_image_of_a_size_that_none_has_is_refused(folder, width):
    images = [{**INSTANCES["images"][1], "width": width}, *INSTANCES["images"][::2]]
    (folder / "instances.json").write_text(json.dumps({**INSTANCES, "images": images}))
    with pytest.raises(CalibrationDataError, match=r"images.*width"):
        labels_of(folder)


@pytest.mark.parametrize("make", NO_FILES)
def test_what_is_no_file_is_refused_and_not_waited_for(folder, make):
    (folder / "instances.json").unlink()
    make(folder / "instances.json")
    with pytest.raises(CalibrationDataError, match="cannot read the labels file"):
        labels_of(folder)


def test_files_with_more_than_memory_holds_are_refused(folder, monkeypatch):
    size = (folder / "instances.json").stat().st_size
    expected = labels_of(folder)
    monkeypatch.setattr(true_boxes, "_MOST_COCO_BYTES", size)
    monkeypatch.setattr(true_boxes, "_MOST_OBJECTS", 11)
    assert labels_of(folder) == expected
    monkeypatch.setattr(true_boxes, "_MOST_OBJECTS", 10)
    with pytest.raises(CalibrationDataError, match="more than 10 images and annotations"):
        labels_of(folder)
    monkeypatch.setattr(true_boxes, "_MOST_COCO_BYTES", size - 1)
    with pytest.raises(CalibrationDataError, match=f"larger than {size - 1} bytes"):
        labels_of(folder)


def test_polygons_take_no_memory(folder):
    (folder / "instances.json").write_text(
        json.dumps(with_annotation(segmentation=[[]] * 500_000, iscrowd=1))
    )
    tracemalloc.start()
    try:
        labels_of(folder)
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()
