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


def test_mean_and_std_per_channel():
    x = images(2, 4, 5, 3)
    expected = (x / 255 - np.array(MEAN)) / np.array(STD)
    result = Preprocessing(mean=MEAN, std=STD, layout="NHWC")(x)
    assert result.flags.c_contiguous
    np.testing.assert_allclose(result, expected, atol=1e-6)


def test_mean_and_std_are_in_the_order_of_the_output_channels():
    x = np.array([10, 20, 30], np.uint8).reshape(1, 1, 1, 3)
    result = Preprocessing(scale=1, mean=(1, 2, 3), std=(1, 2, 4), channels="BGR")(x)
    assert result.ravel().tolist() == [29, 9, 1.75]


def test_one_mean_serves_all_channels():
    result = Preprocessing(scale=1, mean=(1,), std=(2,))(np.array([[[[3, 5, 7]]]], np.uint8))
    assert result.ravel().tolist() == [1, 2, 3]


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
    with pytest.raises(CalibrationDataError, match=f"has letterbox and {next(iter(other))}, and"):
        Preprocessing(letterbox=(8, 8), **other)


def test_a_letterbox_that_does_not_fit_into_memory_is_refused():
    with pytest.raises(CalibrationDataError, match="letterbox of 8000 x 8000 makes images of more than"):
        Preprocessing(letterbox=(8000, 8000))(images(1, 1, 100, 1))


def test_without_resize_pillow_is_not_needed(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert Preprocessing(crop=(2, 2))(images(1, 4, 4, 3)).shape == (1, 3, 2, 2)
    with pytest.raises(UnsupportedError, match=r'pip install "trtint8\[images\]"'):
        Preprocessing(resize=2)(images(1, 4, 4, 3))


@pytest.mark.parametrize(
    ("array", "found"),
    [
        (np.zeros((1, 4, 4, 3), np.float32), "not float32"),
        (images(4, 4, 3), r"shape \(4, 4, 3\)"),
        (images(1, 3, 4, 4), r"shape \(1, 3, 4, 4\)"),
    ],
)
def test_refuses_what_is_no_batch_of_images(array, found):
    with pytest.raises(CalibrationDataError, match=found):
        Preprocessing()(array)


def test_refuses_a_crop_larger_than_the_images():
    with pytest.raises(CalibrationDataError, match="cannot crop 5x4 from images of 4x6"):
        Preprocessing(crop=(5, 4))(images(1, 4, 6, 3))


@pytest.mark.parametrize("name", ["mean", "std"])
def test_refuses_three_values_for_grey_images(name):
    with pytest.raises(CalibrationDataError, match=f"3 values for {name} but the images have 1 channel"):
        Preprocessing(**{name: MEAN})(images(1, 4, 4, 1))


REFUSED = [
    ("resize", 0),
    ("resize", True),
    ("resize", 2.5),
    ("resize", [4]),
    ("resize", [4, -1]),
    ("crop", 4),
    ("crop", [4, 4, 4]),
    ("crop", "44"),
    ("letterbox", 640),
    ("letterbox", [640, 0]),
    ("scale", 0),
    ("scale", "1/0"),
    ("scale", "fast"),
    ("scale", True),
    ("mean", True),
    ("mean", []),
    ("mean", [0.1, 0.2]),
    ("mean", ["a"]),
    ("std", [1, 0, 1]),
    ("std", [-1]),
    ("std", [1, 1, 1, 1]),
    ("layout", "CHW"),
    ("layout", ["NCHW"]),
    ("channels", "rgb"),
]


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_refuses_unusable_values_by_name(name, value, tmp_path):
    with pytest.raises(CalibrationDataError, match=f"preprocessing's {name} is .*; give "):
        Preprocessing(**{name: value})
    path = tmp_path / "prep.json"
    path.write_text(json.dumps({name: value}))
    with pytest.raises(CalibrationDataError, match=f"prep.json': preprocessing's {name} is "):
        Preprocessing.load(path)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["scale", "mean", "std"])
def test_refuses_numbers_that_are_not_finite(name, value):
    with pytest.raises(CalibrationDataError, match=f"preprocessing's {name} is "):
        Preprocessing(**{name: value if name == "scale" else (value,)})


def test_lists_become_tuples():
    given_lists = Preprocessing(resize=[4, 5], crop=[2, 3], mean=[0.5], std=0.5)
    assert given_lists == Preprocessing((4, 5), (2, 3), mean=(0.5,), std=(0.5,))
    assert hash(given_lists) == hash(Preprocessing((4, 5), (2, 3), mean=(0.5,), std=(0.5,)))


def test_loads_toml(tmp_path):
    path = tmp_path / "prep.toml"
    path.write_text(
        'resize = 256\ncrop = [224, 224]\nscale = "1/255"\nmean = [0.485, 0.456, 0.406]\n'
        'std = [0.229, 0.224, 0.225]\nlayout = "NHWC"\nchannels = "BGR"\n'
    )
    assert Preprocessing.load(path) == Preprocessing(256, (224, 224), 1 / 255, MEAN, STD, "NHWC", "BGR")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
@pytest.mark.parametrize(("name", "text"), [("p.toml", "resize = 256\n"), ("p.json", '{"resize": 256}')])
def test_a_byte_order_mark_does_not_belong_to_the_file(name, text, encoding, tmp_path):
    path = tmp_path / name
    path.write_bytes(text.encode(encoding))
    assert Preprocessing.load(path) == Preprocessing(256)


def test_an_empty_file_is_the_default(tmp_path):
    path = tmp_path / "prep.toml"
    path.write_text("")
    assert Preprocessing.load(path) == Preprocessing()


@pytest.mark.parametrize(("text", "value"), [("2", 2.0), ("0.5", 0.5), ("1/4", 0.25)])
def test_scale_may_be_text(tmp_path, text, value):
    path = tmp_path / "prep.json"
    path.write_text(json.dumps({"scale": text}))
    assert Preprocessing.load(path).scale == value


def test_refuses_unknown_keys(tmp_path):
    path = tmp_path / "prep.toml"
    path.write_text("mena = [0.5]\n")
    with pytest.raises(CalibrationDataError, match="unknown key 'mena'; the known ones are resize, crop"):
        Preprocessing.load(path)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("prep.toml", "mean = [", "is not valid TOML"),
        ("prep.json", "{", "is not valid JSON"),
        ("prep.json", "[1]", "holds a list"),
        ("prep.yaml", "", "must end in .toml or .json"),
    ],
)
def test_refuses_files_it_cannot_parse(tmp_path, name, text, message):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(CalibrationDataError, match=message):
        Preprocessing.load(path)


def test_refuses_a_missing_file(tmp_path):
    with pytest.raises(CalibrationDataError, match=r"cannot read .*none.toml.*No such file"):
        Preprocessing.load(tmp_path / "none.toml")


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


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("p.json", "[" * 100_000, "nested too deeply"),
        ("p.toml", "a=" + "[" * 100_000, "nested too deeply"),
        ("p.json", '{"scale": 1' + "0" * 400 + "}", "scale is 1000.*; give a number"),
        ("p.json", '{"mean": [1' + "0" * 400 + "]}", "mean is "),
        ("p.toml", "scale = 1" + "0" * 400, "scale is 1000.*; give a number"),
        ("p.json", '{"std": [Infinity]}', "std is "),
        ("p.json", '{"layout": ["NCHW"]}', "layout is "),
        ("p.json", "{" + ", ".join(f'"k{i}": 1' for i in range(500)) + "}", "unknown key 'k0'"),
    ],
    ids=range(8),
)
def test_hostile_files_are_refused_with_one_short_sentence(name, content, words, tmp_path):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(CalibrationDataError, match=words) as refused:
        Preprocessing.load(path)
    assert len(str(refused.value)) < 500 + len(str(path))


def test_an_integer_that_python_does_not_write_is_refused():
    with pytest.raises(CalibrationDataError, match="scale is an integer too large to be written"):
        Preprocessing(scale=10**5000)


def test_numbers_that_no_float32_holds_are_refused():
    with pytest.raises(CalibrationDataError, match="scale is 1e\\+39; give a number"):
        Preprocessing(scale=1e39)


def test_values_beyond_float32_become_infinite_without_a_warning():
    image = np.full((1, 1, 1, 3), 255, np.uint8)
    assert np.isinf(Preprocessing(scale=1e38)(image)).all()


def test_numbers_of_numpy_are_numbers():
    given = Preprocessing(
        resize=np.int64(4), crop=np.array([2, 3]), mean=np.array([0.5]), std=(np.float32(0.5),)
    )
    assert given == Preprocessing(4, (2, 3), mean=(0.5,), std=(0.5,))
    assert type(given.resize) is int and type(given.std[0]) is float


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"mean": (123.675, 116.28, 103.53), "std": (58.395, 57.12, 57.375)},
            "values up to 1; .* a scale of 1$",
        ),
        ({"mean": (-2.1,), "scale": 1 / 255}, "subtracts the mean -2.1 .*values up to 1; "),
        ({"mean": MEAN, "std": STD, "scale": 1}, "values up to 255; .* a scale of 1/255$"),
    ],
)
def test_a_mean_in_other_units_than_the_values_is_warned_of(given, words):
    with pytest.warns(UserWarning, match=words):
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
