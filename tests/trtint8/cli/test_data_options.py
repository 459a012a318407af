"""Options that every verb with a data set has."""

import argparse

import pytest

from calibrators.data.images.preprocessing import Preprocessing
from calibrators.errors import CalibrationDataError
from calibrators.ray.cluster import RayExecutor
from trtint8.cli.data_options import (
    add_data_options,
    add_method_option,
    add_worker_options,
    executor_from,
    preprocessing_from,
)


def parsed(*arguments):
    parser = argparse.ArgumentParser()
    add_data_options(parser)
    add_method_option(parser)
    add_worker_options(parser)
    return parser.parse_args(arguments)


def test_nothing_given():
    options = parsed()
    assert (options.batch_size, options.limit, options.method, options.threads) == (
        None,
        None,
        "auto",
        None,
    )
    assert preprocessing_from(options) is None
    assert executor_from(options) == "local"


def test_every_option_of_images():
    options = parsed(
        *("--mean", "0.5,0.4,0.3", "--std", "2", "--scale", "1/128", "--layout", "NHWC"),
        *("--channels", "BGR", "--resize", "256", "--crop", "224,192"),
    )
    assert preprocessing_from(options) == Preprocessing(
        mean=(0.5, 0.4, 0.3),
        std=(2.0,),
        scale=1 / 128,
        layout="NHWC",
        channels="BGR",
        resize=256,
        crop=(224, 192),
    )
    assert preprocessing_from(parsed("--resize", "256,320", "--scale", "2")) == Preprocessing(
        resize=(256, 320), scale=2.0
    )
    for text, size in (("640", (640, 640)), ("384,640", (384, 640))):
        assert preprocessing_from(parsed("--letterbox", text)) == Preprocessing(letterbox=size)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mean", "a"], "--mean: 'a' is not a number"),
        (["--scale", "1/0"], "--scale: '1/0' divides by zero; write 1/255 or a number"),
        (["--scale", "1/x"], "--scale: 'x' is not a number"),
        (["--resize", "2.5"], "--resize: '2.5' is not a"),
        (["--preprocess", "p.toml", "--std", "1"], "give --preprocess or --std, not both"),
    ],
)
def test_malformed_options(arguments, message):
    with pytest.raises(CalibrationDataError, match=f"^{message}"):
        preprocessing_from(parsed(*arguments))


def test_preprocessing_from_a_file(tmp_path):
    (tmp_path / "p.toml").write_text('layout = "NHWC"\n')
    found = preprocessing_from(parsed("--preprocess", str(tmp_path / "p.toml")))
    assert found == Preprocessing(layout="NHWC")


def test_workers():
    assert executor_from(parsed("--ray")) == RayExecutor()
    found = executor_from(parsed("--ray", "somewhere:1", "--num-gpus", "0.5"))
    assert (found.address, found.num_gpus) == ("somewhere:1", 0.5)
    with pytest.raises(CalibrationDataError, match="--num-gpus is for workers of Ray; add --ray"):
        executor_from(parsed("--num-gpus", "1"))


@pytest.mark.parametrize("name", ["", "a\0b", "missing.toml"])
def test_a_file_of_preprocessing_that_is_none_is_refused(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CalibrationDataError):
        preprocessing_from(parsed("--preprocess", name))
