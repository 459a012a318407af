"""Folders of images."""

from __future__ import annotations

import io
import os
import struct
import sys
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators.data.images import files
from calibrators.data.images.files import image_size, read_image, resize_images
from calibrators.data.images.preprocessing import Preprocessing
from calibrators.data.inputs import InputSpec
from calibrators.data.opening import open_batches
from calibrators.errors import CalibrationDataError, UnsupportedError
from tests.calibrators.data.sample_data import (
    FLOAT,
    IMAGE,
    NO_PILLOW,
    RAW,
    TOKENS,
    hide,
    pixels,
    refused,
    save_images,
    vectors,
    whole,
)
from tests.calibrators.specs import floats

Image = pytest.importorskip("PIL.Image", reason=NO_PILLOW)


def opened(folder, inputs=(IMAGE,), preprocessing=RAW, **options):
    return open_batches(folder, inputs, preprocessing=preprocessing, **options)


class TestImageFolders:
    def test_sorted_by_name_whatever_the_ending(self, tmp_path):
        x = save_images(tmp_path, ["c.PNG", "a.bmp", "b.ppm", "d.tiff", "e.TIF"])
        (tmp_path / "README.md").write_text("no image")
        batches = opened(tmp_path, batch_size=2)
        assert np.array_equal(whole(batches), RAW(x[[1, 2, 0, 3, 4]]))
        assert (batches.num_samples, batches.labels, batches.class_names) == (5, None, None)

    @pytest.mark.parametrize("ending", [".jpg", ".jpeg", ".webp"])
    def test_lossy_formats(self, tmp_path, ending):
        save_images(tmp_path, ["a" + ending])
        assert whole(opened(tmp_path)).shape == (1, 3, 4, 4)

    def test_class_folders_give_labels(self, tmp_path):
        dogs = save_images(tmp_path / "dog", ["1.png", "2.png"])
        cats = save_images(tmp_path / "cat", ["9.png"])
        (tmp_path / "cow").mkdir()
        (tmp_path / ".cache").mkdir()
        with pytest.warns(UserWarning, match=f"^'{tmp_path}' has 1 .*'cow'") as warned:
            batches = opened(tmp_path)
        assert len(warned) == 1 and batches.class_names == ("cat", "cow", "dog")
        assert (batches.labels.tolist(), batches.labels.dtype) == ([0, 2, 2], np.int64)
        assert np.array_equal(whole(batches), RAW(np.concatenate([cats, dogs])))

    def test_folders_inside_those_of_classes_are_not_read(self, tmp_path):
        save_images(tmp_path / "dog", ["1.png"])
        for name in ("less", "more", ".cache"):
            save_images(tmp_path / "dog" / name, ["2.png"])
        with pytest.warns(UserWarning, match=f"'{tmp_path}' have 2 .*'dog/less'"):
            assert opened(tmp_path).num_samples == 1

    def test_labels_of_ones_own_have_no_class_names(self, tmp_path):
        save_images(tmp_path / "dog", ["1.png"])
        batches = opened(tmp_path, labels=[4])
        assert (batches.labels.tolist(), batches.class_names) == ([4], None)

    @given(st.integers(0, 3), st.integers(1, 6))
    def test_class_labels_stay_with_their_images(self, tmp_path_factory, seed, limit):
        folder = tmp_path_factory.mktemp("classes")
        for label in range(3):
            for i in range(2):
                (folder / str(label)).mkdir(exist_ok=True)
                Image.new("RGB", (2, 2), (label, i, 0)).save(folder / str(label) / f"{i}.png")
        batches = opened(folder, shuffle=True, seed=seed, limit=limit, batch_size=4)
        assert whole(batches)[:, 0, 0, 0].tolist() == batches.labels.tolist()
        assert len(batches.labels) == limit

    @pytest.mark.parametrize("own_labels", [False, True])
    def test_a_limit_takes_images_of_every_class_in_turn(self, tmp_path, own_labels):
        cats = save_images(tmp_path / "cat", ["1.png", "2.png", "3.png"])
        dogs = save_images(tmp_path / "dog", ["1.png"])
        batches = opened(tmp_path, limit=3, batch_size=2, labels=[5, 6, 7, 8] if own_labels else None)
        assert np.array_equal(whole(batches), RAW(np.stack([cats[0], dogs[0], cats[1]])))
        assert batches.labels.tolist() == ([5, 8, 6] if own_labels else [0, 1, 0])
        for limit in (4, 5, None):  # nothing is left out, and the order stays that of the names
            assert opened(tmp_path, limit=limit).labels.tolist() == [0, 0, 0, 1]

    @pytest.mark.parametrize(
        ("layout", "shape"), [("NCHW", ("N", 1, "H", "W")), ("NHWC", ("N", None, None, 1))]
    )
    def test_grey_where_the_model_has_one_channel(self, tmp_path, layout, shape):
        save_images(tmp_path, ["a.png"])
        (feed,) = opened(tmp_path, [InputSpec("x", FLOAT, shape)], Preprocessing(layout=layout, scale=1))
        grey = np.asarray(Image.open(tmp_path / "a.png").convert("L"))
        assert np.array_equal(feed["x"].squeeze(), grey) and feed["x"].ndim == 4

    def test_grey_files_become_rgb(self, tmp_path):
        Image.new("L", (4, 4), 7).save(tmp_path / "a.png")
        assert np.array_equal(whole(opened(tmp_path)), np.full((1, 3, 4, 4), 7))

    def test_images_of_many_sizes_meet_after_resize_and_crop(self, tmp_path):
        save_images(tmp_path, ["a.png"], (4, 9))
        save_images(tmp_path, ["b.png"], (7, 5))
        refused(tmp_path, "b.png' gives 'x' the shape 1x3x7x5 but .*a.png'", [IMAGE], preprocessing=RAW)
        assert whole(opened(tmp_path, [IMAGE], Preprocessing(resize=4, crop=(4, 4)))).shape == (2, 3, 4, 4)

    def test_are_read_when_they_are_needed(self, tmp_path):
        save_images(tmp_path, ["a.png", "b.png"])
        (tmp_path / "b.png").write_bytes(b"nonsense")
        batches = iter(opened(tmp_path, batch_size=1))
        assert next(batches)["x"].shape == (1, 3, 4, 4)
        with pytest.raises(CalibrationDataError, match=r"b.png'"):
            next(batches)

    @pytest.mark.parametrize(("colour_type", "channels"), [(0, 1), (2, 3), (4, 2), (6, 4)])
    def test_refuses_a_png_of_16_bits(self, tmp_path, colour_type, channels):
        """Pillow would keep the upper half of each value of the last three."""
        header = struct.pack(">IIBBBBB", 2, 1, 16, colour_type, 0, 0, 0)
        row = b"\0" + np.arange(2 * channels, dtype=">u2").tobytes()
        chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(row)), (b"IEND", b""))
        with (tmp_path / "a.png").open("wb") as stream:
            stream.write(b"\x89PNG\r\n\x1a\n")
            for kind, data in chunks:
                stream.write(struct.pack(">I", len(data)) + kind + data)
                stream.write(struct.pack(">I", zlib.crc32(kind + data)))
        refused(tmp_path, "a.png' has more than 8 bits", [IMAGE], preprocessing=RAW)

    @pytest.mark.parametrize(
        ("text", "colour"),
        [
            ("P3 1 1 255 0 7 255", [0, 7, 255]),
            ("P1 1 1 0 ", [255, 255, 255]),
            ("P3 1 1 1000 0 7 1000", None),
            ("P3 1 1 65535 0 7 65535", None),
        ],
    )
    def test_a_ppm_has_8_bits_or_less(self, tmp_path, text, colour):
        (tmp_path / "a.ppm").write_text(text)
        if colour:
            assert read_image(tmp_path / "a.ppm", grey=False).tolist() == [[colour]]
        else:
            unreadable(tmp_path / "a.ppm", "a.ppm' has more than 8 bits")

    def test_are_fed_as_they_are_to_a_uint8_model(self, tmp_path):
        x = save_images(tmp_path, ["a.png"])
        assert np.array_equal(whole(opened(tmp_path, [InputSpec("x", np.dtype(np.uint8), x.shape)], None)), x)
        refused(tmp_path, "float32 .*uint8 images; declare", [IMAGE])
        refused(tmp_path, "model has 2", [IMAGE, TOKENS])

    def test_need_pillow(self, tmp_path, monkeypatch):
        save_images(tmp_path, ["a.png"])
        monkeypatch.setitem(sys.modules, "PIL", None)
        with pytest.raises(UnsupportedError, match="pillow"):
            list(opened(tmp_path))

    def test_refuses_a_folder_without_samples(self, tmp_path):
        (tmp_path / "empty_class").mkdir()
        endings = ".bmp .jpeg .jpg .png .ppm .tif .tiff .webp"
        refused(tmp_path, rf"no samples.*\({endings}\) .*\(.npy .npz\)")

    def test_what_belongs_to_a_data_set_is_left_out_in_silence(self, tmp_path, recwarn):
        save_images(tmp_path, ["a.png"])
        (tmp_path / ".hidden.gif").touch()
        (tmp_path / ".gone").symlink_to("nowhere")
        (tmp_path / "empty").mkdir()
        (tmp_path / "empty" / "x.gif").touch()
        for name in ("labels.txt", "Thumbs.db", "annotations.json", "a.xml", "README"):
            (tmp_path / name).touch()
        assert opened(tmp_path).num_samples == 1
        assert not recwarn.list

    def test_images_that_are_not_read_are_named(self, tmp_path):
        save_images(tmp_path, ["a.png"])
        (tmp_path / "b.GIF").touch()
        with pytest.warns(UserWarning, match=rf"^1 file of '{tmp_path}' .*'b.GIF'.*\.bmp \.jpeg "):
            assert opened(tmp_path).num_samples == 1

    @pytest.mark.parametrize("kind", ["nowhere", "b.png"])
    def test_links_that_lead_nowhere_are_named(self, tmp_path, kind):
        """Or to themselves, which cannot be looked at."""
        save_images(tmp_path, ["a.png"])
        (tmp_path / "b.png").symlink_to(kind)
        (tmp_path / "c").symlink_to(kind)
        with pytest.warns(UserWarning, match=r"^2 files .*'b.png'"):
            assert opened(tmp_path).num_samples == 1

    def test_what_classes_leave_out_is_named_once(self, tmp_path):
        save_images(tmp_path / "dog", ["1.png"])
        save_images(tmp_path / "cat", ["2.png"])
        (tmp_path / "cat" / "3.heic").touch()
        (tmp_path / "dog" / "4.png").symlink_to("nowhere")
        (tmp_path / "cow").symlink_to("nowhere")
        with pytest.warns(UserWarning, match=f"^3 files of '{tmp_path}'") as warned:
            assert opened(tmp_path).class_names == ("cat", "dog")
        assert len(warned) == 1

    @pytest.mark.parametrize("name", [".", "dog"])
    def test_a_folder_that_may_not_be_read(self, tmp_path, monkeypatch, name):
        save_images(tmp_path / "dog", ["1.png"])
        hide(monkeypatch, tmp_path / name)
        refused(tmp_path, rf"'{tmp_path / name}': Permission denied")

    @pytest.mark.parametrize("other", ["array", "class"])
    def test_refuses_a_mixed_folder(self, tmp_path, other):
        save_images(tmp_path, ["a.png"])
        if other == "array":
            np.save(tmp_path / "b.npy", vectors(1))
        else:
            save_images(tmp_path / "dog", ["a.png"])
        refused(tmp_path, "mixes arrays, images and sub-folders", [IMAGE])


def unreadable(path, words):
    with pytest.raises(CalibrationDataError, match=words):
        read_image(path, grey=False)


def test_postscript_never_starts_ghostscript(tmp_path, monkeypatch):
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("a program was started"))
    path = tmp_path / "a.png"
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n")
    unreadable(path, "a.png': .*PNG, JPEG, BMP, WEBP, PPM, TIFF")


@pytest.mark.parametrize(
    ("side", "named"), [(8000, "8000 x 8000 .* 50,000,000"), (20_000, "20000|exceeds limit")]
)
def test_more_pixels_than_fit_into_memory_are_not_made(side, named, tmp_path):
    path = tmp_path / "a.png"
    Image.new("1", (8, 8)).save(path)
    content = bytearray(path.read_bytes())
    content[16:24] = side.to_bytes(4, "big") * 2
    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
    path.write_bytes(content)
    unreadable(path, named)
    with pytest.raises(CalibrationDataError, match="200000 x 200000"):
        resize_images(np.zeros((1, 2, 2, 3), np.uint8), (200_000, 200_000))


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.bmp", "a.webp", "a.ppm", "a.tif"])
def test_truncated_images_are_refused(name, tmp_path):
    path = tmp_path / name
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    Image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[:2000])
    unreadable(path, rf"cannot read the image '.*{name}': ")


def test_palettes_and_cmyk_become_rgb(tmp_path):
    colours = np.zeros((4, 4, 3), np.uint8)
    colours[:2] = 255
    Image.fromarray(colours).convert("P").save(tmp_path / "p.png")
    assert np.array_equal(read_image(tmp_path / "p.png", grey=False), colours)
    Image.fromarray(colours).convert("CMYK").save(tmp_path / "c.tiff")
    assert np.array_equal(read_image(tmp_path / "c.tiff", grey=False), colours)


#: Orientation tag to what becomes of the stored pixels, shape (H, W, C).
TURNS = {
    1: lambda x: x,
    2: lambda x: x[:, ::-1],
    3: lambda x: x[::-1, ::-1],
    4: lambda x: x[::-1],
    5: lambda x: x.swapaxes(0, 1),
    6: lambda x: np.rot90(x, -1),
    7: lambda x: x[::-1, ::-1].swapaxes(0, 1),
    8: np.rot90,
}


@pytest.mark.parametrize("tag", TURNS)
def test_an_orientation_tag_is_applied_where_that_is_asked_for(tag, tmp_path):
    stored = pixels(2, 3, 3)
    exif = Image.Exif()
    exif[0x0112] = tag
    for name in ("a.png", "a.webp"):
        Image.fromarray(stored).save(tmp_path / name, exif=exif, lossless=True)
        for upright, expected in ((False, stored), (True, TURNS[tag](stored))):
            checked = []
            options = {"upright": upright, "check_size": lambda *size, seen=checked: seen.append(size)}
            assert np.array_equal(read_image(tmp_path / name, grey=False, **options), expected)
            assert image_size(tmp_path / name, upright=upright) == expected.shape[:2] == checked[0]
    # Pillow turns a TIFF itself, and it is not turned twice.
    Image.fromarray(stored).save(tmp_path / "a.tif", exif=exif)
    assert np.array_equal(read_image(tmp_path / "a.tif", grey=False, upright=True), TURNS[tag](stored))


def test_a_damaged_orientation_tag_leaves_an_image_as_it_is(tmp_path):
    stored = pixels(2, 3, 3)
    Image.fromarray(stored).save(tmp_path / "a.png", exif=b"Exif\0\0damaged")
    assert np.array_equal(read_image(tmp_path / "a.png", grey=False, upright=True), stored)
    assert image_size(tmp_path / "a.png", upright=True) == (2, 3)


def test_animations_are_refused(tmp_path):
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue", "green")]
    frames[0].save(tmp_path / "a.png", save_all=True, append_images=frames[1:])
    unreadable(
        tmp_path / "a.png", "a.png' holds several pictures; save the one that is meant as a file of its own"
    )


def test_a_photo_with_further_pictures_behind_it_is_read(tmp_path):
    photo, preview = Image.new("RGB", (8, 8), "white"), Image.new("RGB", (4, 4), "black")
    photo.save(tmp_path / "a.jpg", "MPO", save_all=True, append_images=[preview])
    assert np.array_equal(read_image(tmp_path / "a.jpg", grey=False), np.full((8, 8, 3), 255, np.uint8))


@pytest.mark.parametrize(
    ("preprocessing", "named"),
    [
        (RAW, r"'.*a.png' .*6x8 .*'x' .*4x4\)"),
        (Preprocessing(resize=5), "5x6"),
        (Preprocessing(crop=(7, 7)), "7x7 from images of 6x8"),
        (None, "6x8"),
    ],
)
def test_a_size_that_the_input_does_not_take_is_refused_before_decoding(
    preprocessing, named, tmp_path, monkeypatch
):
    save_images(tmp_path, ["a.png"], (6, 8))
    monkeypatch.setattr("PIL.Image.Image.convert", lambda *_: pytest.fail("decoded"))
    dtype, shape = (FLOAT, ("N", 3, 4, 4)) if preprocessing else (np.dtype(np.uint8), ("N", 4, 4, 3))
    refused(tmp_path, named, [InputSpec("x", dtype, shape)], preprocessing=preprocessing)


def test_a_wrong_layout_is_named_as_such(tmp_path):
    save_images(tmp_path, ["a.png"])
    inputs = [floats("x", "N", 4, 4, 3)]
    refused(tmp_path, "NHWC", inputs, preprocessing=RAW)


@pytest.mark.parametrize(
    "make",
    [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), lambda path: path.mkdir(), lambda path: None],
    ids=["pipe", "endless", "folder", "nothing"],
)
@pytest.mark.parametrize("read", [image_size, lambda path: read_image(path, grey=False)])
def test_what_is_no_file_is_refused_and_not_waited_for(make, read, tmp_path):
    pytest.importorskip("PIL")
    make(tmp_path / "a.png")
    with pytest.raises(CalibrationDataError, match=r"cannot read the image '.*a\.png'"):
        read(tmp_path / "a.png")


def test_an_image_file_larger_than_any_image_is_refused(tmp_path, monkeypatch):
    Image.new("RGB", (8, 4)).save(tmp_path / "a.webp")
    size = (tmp_path / "a.webp").stat().st_size
    monkeypatch.setattr(files, "_MOST_BYTES", size)
    assert image_size(tmp_path / "a.webp") == (4, 8)
    monkeypatch.setattr(files, "_MOST_BYTES", size - 1)
    unreadable(tmp_path / "a.webp", f"{size - 1} bytes")


def jpeg(scans=0, parts=b"", size=(2000, 2000)):
    """A progressive JPEG whose last scan is repeated, with other parts at its beginning."""
    stream = io.BytesIO()
    Image.new("L", size).save(stream, "JPEG", progressive=True)
    data = stream.getvalue()
    last = data.rindex(b"\xff\xc4")  # its table, and the scan
    return data[:2] + parts + data[2:-2] + scans * data[last:-2] + data[-2:]


def chunk(kind, data=b""):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(before=b"", behind=b""):
    stream = io.BytesIO()
    Image.new("L", (8, 8)).save(stream, "PNG")
    data, end = stream.getvalue(), len(chunk(b"IEND"))
    return data[:33] + before + data[33:-end] + behind + data[-end:]


def tiff(folders=1, strips=1):
    """A TIFF of one column in strips of one row, whose directory stands there many times."""
    data = bytearray(b"II*\0" + struct.pack("<I", 16 + 8 * strips) + bytes(8))
    data += struct.pack("<I", 8) * strips + struct.pack("<I", 1) * strips
    for number in range(folders):
        tags = [
            (256, 1, 1),
            (257, 1, strips),
            (258, 1, 8),
            (259, 1, 1),
            (262, 1, 1),
            (277, 1, 1),
            (278, 1, 1),
        ]
        places = (16, 16 + 4 * strips) if strips > 1 else (8, 1)
        tags += [(273, strips, places[0]), (279, strips, places[1])]
        following = len(data) + 6 + 12 * len(tags) if number < folders - 1 else 0
        data += struct.pack("<H", len(tags))
        data += b"".join(struct.pack("<HHII", tag, 4, *rest) for tag, *rest in sorted(tags))
        data += struct.pack("<I", following)
    return bytes(data)


def rle(width, height):
    """A BMP in runs of one pixel."""
    pixels = (b"\1\0" * width + b"\0\0") * height + b"\0\1"
    head = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 1, len(pixels), 0, 0, 256, 0) + bytes(1024)
    return b"BM" + struct.pack("<IHHI", 14 + len(head) + len(pixels), 0, 0, 14 + len(head)) + head + pixels


LONG = {
    "scans": lambda: jpeg(scans=1000),
    "junk": lambda: jpeg(parts=b"\xff\xe0\0\2" + b"\xfe" * 10_000_000),
    "empty parts": lambda: jpeg(parts=b"\xff\xe9\0\2" * 2_000_000),
    "parts of Exif": lambda: jpeg(parts=(b"\xff\xe1\xff\xfeExif\0\0" + bytes(65526)) * 1000),
    "empty chunks": lambda: png(chunk(b"abCd") * 100_000),
    "empty chunks behind": lambda: png(behind=chunk(b"abCd") * 500_000),
    "profiles": lambda: png(chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(1_000_000))) * 3000),
    "pictures": lambda: tiff(folders=10_000),
    "strips": lambda: tiff(strips=150_000),
    "runs": lambda: rle(1000, 1000),
    "digits": lambda: b"P3\n64 64\n255\n" + b"#\n" * 2_000_000 + b"0 " * (64 * 64 * 3),
    "a comment": lambda: b"P6\n#" + b"x" * 10_000_000 + b"\n8 8\n255\n" + bytes(192),
}


@pytest.mark.parametrize("make", LONG.values(), ids=LONG)
def test_images_that_would_take_far_longer_than_their_pixels(make, tmp_path):
    (tmp_path / "a.png").write_bytes(make())
    unreadable(tmp_path / "a.png", "a.png'")


@pytest.mark.parametrize(
    "make",
    [
        lambda: jpeg(scans=100),
        lambda: jpeg(size=(5000, 5000)),
        lambda: jpeg(parts=(b"\xff\xe1\xff\xfehttp" + bytes(65528)) * 150),  # ten megabytes about the photo
        lambda: jpeg() + 2000 * b"\xff\xda",  # what else a phone appends
        lambda: png(chunk(b"tEXt", b"a\0b") * 100),
        lambda: tiff(strips=5000),
        lambda: b"P3\n64 64\n255\n# a\n" + b"0 " * (64 * 64 * 3),
    ],
)
def test_images_of_many_parts(make, tmp_path):
    (tmp_path / "a.png").write_bytes(make())
    assert not read_image(tmp_path / "a.png", grey=True).any()
