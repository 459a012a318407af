from __future__ import annotations

import dataclasses
import json
import os
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators.data.images.preprocessing import Preprocessing
from calibrators.errors import CalibrationDataError, UnsupportedError

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed (pip install 'trtint8[images]')")

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def images(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


def test_default_scales_to_one_and_moves_channels_first():
    x = images(2, 4, 5, 3)
    result = Preprocessing()(x)
    assert result.dtype == np.float32
    assert result.shape == (2, 3, 4, 5)
    assert result.flags.c_contiguous
    np.testing.assert_allclose(result, x.transpose(0, 3, 1, 2) / 255, atol=1e-7)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"mean": (1, 2, 3), "std": (1, 2, 4), "channels": "BGR"}, [29, 9, 1.75]),  # of the output's channels
        ({"mean": (1, 2, 3), "std": (1, 2, 4)}, [9, 9, 6.75]),
        ({"mean": (1,), "std": (2,)}, [4.5, 9.5, 14.5]),
    ],
)
def test_mean_and_std_per_channel(values, expected):
    x = np.array([10, 20, 30], np.uint8).reshape(1, 1, 1, 3)
    for layout in ("NCHW", "NHWC"):
        result = Preprocessing(scale=1, layout=layout, **values)(x)
        assert result.flags.c_contiguous and result.ravel().tolist() == expected


@pytest.mark.parametrize("channels", ["RGB", "BGR"])
def test_grey_images_keep_their_one_channel(channels):
    x = images(2, 4, 5, 1)
    result = Preprocessing(scale=1, channels=channels)(x)
    assert result.shape == (2, 1, 4, 5)
    assert np.array_equal(result[:, 0], x[..., 0])


@pytest.mark.parametrize(("height", "top"), [(4, 1), (5, 2), (3, 0), (2, 0)])
def test_centre_crop_rounds_as_torchvision(height, top):
    x = np.arange(height, dtype=np.uint8).reshape(1, height, 1, 1)
    result = Preprocessing(crop=(2, 1), scale=1)(x)
    assert result.ravel().tolist() == [top, top + 1]


@pytest.mark.parametrize(
    ("resize", "expected"), [(4, (4, 6)), (12, (12, 18)), ((7, 3), (7, 3)), (8, (8, 12)), (5, (5, 7))]
)
def test_resize_by_shorter_side_or_to_a_size(resize, expected):
    assert Preprocessing(resize=resize, layout="NHWC")(images(2, 8, 12, 3)).shape == (2, *expected, 3)


@pytest.mark.parametrize("channels", [1, 3])
def test_resize_is_pillows_antialiased_bilinear(channels):
    x = images(1, 32, 32, channels)
    picture = Image.fromarray(x[0].squeeze()).resize((8, 8), Image.Resampling.BILINEAR)
    result = Preprocessing(resize=8, scale=1, layout="NHWC")(x)
    assert np.array_equal(result[0], np.asarray(picture).reshape(8, 8, channels))


def test_crop_follows_resize():
    x = images(1, 16, 16, 3)
    both = Preprocessing(resize=8, crop=(4, 4))(x)
    assert np.array_equal(both, Preprocessing(resize=8)(x)[:, :, 2:6, 2:6])


def test_letterbox_resizes_and_pads():
    x = images(2, 8, 16, 3)
    result = Preprocessing(letterbox=(12, 12), scale=1, layout="NHWC")(x)
    assert result.shape == (2, 12, 12, 3)
    inner = Preprocessing(resize=(6, 12), scale=1, layout="NHWC")(x)
    assert np.array_equal(result[:, 3:9], inner)
    assert (result[:, :3] == 114).all() and (result[:, 9:] == 114).all()
    assert Preprocessing(letterbox=(12, 12)).prepared_size(8, 16) == (12, 12)


@pytest.mark.parametrize("other", [{"resize": 8}, {"crop": (4, 4)}])
def test_letterbox_takes_the_place_of_others(other):
    with pytest.raises(CalibrationDataError, match=f"letterbox and {next(iter(other))}"):
        Preprocessing(letterbox=(8, 8), **other)


def test_without_resize_pillow_is_not_needed(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert Preprocessing(crop=(2, 2))(images(1, 4, 4, 3)).shape == (1, 3, 2, 2)
    with pytest.raises(UnsupportedError, match="pillow"):
        Preprocessing(resize=2)(images(1, 4, 4, 3))


@pytest.mark.parametrize(
    ("values", "array", "found"),
    [
        ({}, np.zeros((1, 4, 4, 3), np.float32), "not float32"),
        ({}, images(4, 4, 3), r"shape \(4, 4, 3\)"),
        ({}, images(1, 3, 4, 4), r"shape \(1, 3, 4, 4\)"),
        ({"crop": (5, 4)}, images(1, 4, 6, 3), "5x4 from images of 4x6"),
        ({"mean": MEAN}, images(1, 4, 4, 1), "3 values for mean .*1 channel"),
        ({"std": MEAN}, images(1, 4, 4, 1), "3 values for std .*1 channel"),
        ({"letterbox": (8000, 8000)}, images(1, 1, 100, 1), "8000 x 8000"),  # more than memory holds
    ],
)
def test_refuses_what_it_cannot_prepare(values, array, found):
    with pytest.raises(CalibrationDataError, match=found):
        Preprocessing(**values)(array)


REFUSED = [
    *(("resize", value) for value in (0, True, 2.5, [4], [4, -1])),
    *(("crop", value) for value in (4, [4, 4, 4], "44")),
    *(("letterbox", value) for value in (640, [640, 0])),
    *(("scale", value) for value in (0, "1/0", "fast", True, float("nan"), float("inf"), 1e39)),
    *(("mean", value) for value in (True, [], [0.1, 0.2], ["a"], [float("nan")], [float("inf")])),
    *(("std", value) for value in ([1, 0, 1], [-1], [1, 1, 1, 1], [float("nan")], [float("inf")])),
    *(("layout", value) for value in ("CHW", ["NCHW"])),
    ("channels", "rgb"),
]


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_refuses_unusable_values_by_name(name, value, tmp_path):
    with pytest.raises(CalibrationDataError, match=f"preprocessing's {name} is "):
        Preprocessing(**{name: value})
    path = tmp_path / "prep.json"
    path.write_text(json.dumps({name: value}))
    with pytest.raises(CalibrationDataError, match=f"prep.json': preprocessing's {name} is "):
        Preprocessing.load(path)
    with pytest.raises(CalibrationDataError, match="scale is an integer too large"):
        Preprocessing(scale=10**5000)  # which Python does not write


def test_loads_toml(tmp_path):
    path = tmp_path / "prep.toml"
    path.write_text(
        'resize = 256\ncrop = [224, 224]\nscale = "1/255"\nmean = [0.485, 0.456, 0.406]\n'
        'std = [0.229, 0.224, 0.225]\nlayout = "NHWC"\nchannels = "BGR"\n'
    )
    assert Preprocessing.load(path) == Preprocessing(256, (224, 224), 1 / 255, MEAN, STD, "NHWC", "BGR")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("p.toml", "resize = 256\n", Preprocessing(256)),
        ("p.toml", "", Preprocessing()),
        ("p.json", '{"resize": 256}', Preprocessing(256)),
        ("p.json", '{"scale": "2"}', Preprocessing(scale=2.0)),
        ("p.json", '{"scale": "0.5"}', Preprocessing(scale=0.5)),
        ("p.json", '{"scale": "1/4"}', Preprocessing(scale=0.25)),
    ],
)
def test_files_of_any_encoding(name, text, expected, encoding, tmp_path):
    path = tmp_path / name
    path.write_bytes(text.encode(encoding))
    assert Preprocessing.load(path) == expected


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("p.toml", "mean = [", "TOML"),
        ("p.toml", "mena = [0.5]\n", "'mena'; .*resize, crop"),
        ("p.json", "{", "JSON"),
        ("p.json", "[1]", "holds a list"),
        ("p.yaml", "", r"p\.yaml'.*\.toml or \.json"),
        ("none.toml", None, r"none\.toml.*No such file"),
        ("p.json", "[" * 10_000, "nested too deeply"),
        ("p.toml", "a=" + "[" * 10_000, "nested too deeply"),
        ("p.json", '{"scale": 1' + "0" * 400 + "}", "scale is 1000"),
        ("p.json", '{"mean": [1' + "0" * 400 + "]}", "mean is "),
        ("p.toml", "scale = 1" + "0" * 400, "scale is 1000"),
        ("p.json", "{" + ", ".join(f'"k{i}": 1' for i in range(500)) + "}", "'k0'"),
    ],
    ids=range(12),
)
def test_other_files_are_refused_with_one_short_sentence(name, content, words, tmp_path):
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    with pytest.raises(CalibrationDataError, match=words) as refused:
        Preprocessing.load(path)
    assert len(str(refused.value)) < 500 + len(str(path))


numbers = st.floats(-10, 10)
lengths = st.integers(1, 64)
sizes = st.tuples(lengths, lengths)
preprocessings = st.builds(
    Preprocessing,
    resize=st.none() | lengths | sizes,
    crop=st.none() | sizes,
    scale=st.floats(1e-6, 10),
    mean=st.tuples(numbers) | st.tuples(numbers, numbers, numbers),
    std=st.tuples(st.floats(0.01, 10)),
    layout=st.sampled_from(["NCHW", "NHWC"]),
    channels=st.sampled_from(["RGB", "BGR"]),
)


@pytest.mark.filterwarnings("ignore:preprocessing subtracts the mean:UserWarning")
@given(preprocessings)
def test_its_dict_as_json_loads_to_the_same(tmp_path_factory, preprocessing):
    path = tmp_path_factory.mktemp("prep") / "prep.json"
    path.write_text(json.dumps(dataclasses.asdict(preprocessing)))
    assert Preprocessing.load(path) == preprocessing


def test_values_beyond_float32_become_infinite_without_a_warning():
    image = np.full((1, 1, 1, 3), 255, np.uint8)
    assert np.isinf(Preprocessing(scale=1e38)(image)).all()


@pytest.mark.parametrize(
    "values",
    [
        {"resize": 4, "crop": [2, 3], "mean": [0.5], "std": 0.5},
        {"resize": np.int64(4), "crop": np.array([2, 3]), "mean": np.array([0.5]), "std": (np.float32(0.5),)},
    ],
)
def test_lists_and_numbers_of_numpy_become_tuples_and_numbers(values):
    found, expected = Preprocessing(**values), Preprocessing(4, (2, 3), mean=(0.5,), std=(0.5,))
    assert found == expected and hash(found) == hash(expected)
    assert type(found.resize) is int and type(found.std[0]) is float


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"mean": (123.675, 116.28, 103.53), "std": (58.395, 57.12, 57.375)}, "up to 1; .* 1$"),
        ({"mean": (-2.1,), "scale": 1 / 255}, "-2.1 .*up to 1; "),
        ({"mean": MEAN, "std": STD, "scale": 1}, "up to 255; .* 1/255$"),
    ],
)
def test_a_mean_in_other_units_than_the_values_is_warned_of(given, named):
    with pytest.warns(UserWarning, match=named):
        Preprocessing(**given)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"mean": MEAN, "std": STD},
        {"mean": 1.0, "std": 1.0, "scale": 1 / 127.5},
        {"mean": 127.5, "std": 127.5, "scale": 1},
        {"mean": (123.675, 116.28, 103.53), "scale": 1},
        {"mean": 0.5, "std": 0.5},
        {"mean": 0.0, "std": 0.5, "scale": 1},
    ],
)
def test_usual_means_are_not_warned_of(given):
    Preprocessing(**given)  # warnings are errors in tests


@pytest.mark.parametrize("name", ["p.toml", "p.json"])
@pytest.mark.parametrize(
    "make",
    [
        os.mkfifo,
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.write_bytes(b"#" * (2 << 20)),
    ],
    ids=["pipe", "endless", "large"],
)
def test_what_is_no_such_file_is_refused_and_not_waited_for(make, name, tmp_path):
    make(tmp_path / name)
    with pytest.raises(CalibrationDataError, match=f"preprocessing file '.*{name}'"):
        Preprocessing.load(tmp_path / name)
