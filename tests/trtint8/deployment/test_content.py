"""Templates, and what all READMEs say."""

import re
import subprocess
import sys
from importlib.resources import files

import numpy as np
import pytest

from calibrators.data.images.preprocessing import Preprocessing
from calibrators.errors import CalibrationDataError, UnsupportedError
from tests.trtint8.deployment.conftest import shapes
from trtint8.deployment.content import build_command, build_script, readme, template
from trtint8.engine.file import TensorSpec

TEMPLATES = sorted(
    f"{folder.name}/{path.name}"
    for folder in (files("trtint8.deployment") / "templates").iterdir()
    for path in folder.iterdir()
)


def test_a_template_without_values_is_taken_as_it_stands():
    assert "FROM python" in template("docker/Dockerfile.in")
    with pytest.raises(KeyError):
        template("shared/build_plan.sh.in", plan="model.plan")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"flavor": "rtx", "tensorrt_version": "1.7.1.116"},
            "trtexec --onnx=model.qdq.onnx --saveEngine=1/model.plan --stronglyTyped "
            "--minShapes=images:1x3x8x6 --optShapes=images:8x3x8x6 --maxShapes=images:32x3x8x6",
        ),
        (
            {"profiles": ({"x:0": shapes(1, 2, 3, ())},)},
            "trtexec --onnx=model.qdq.onnx --saveEngine=1/model.plan --int8 --fp16 "
            + " ".join(
                f"'--{option}Shapes='\"'\"'x:0'\"'\"':{size}'"
                for option, size in (("min", 1), ("opt", 2), ("max", 3))
            ),
        ),
        ({"profiles": ()}, "trtexec --onnx=model.qdq.onnx --saveEngine=1/model.plan --int8 --fp16"),
        (
            {
                "tensorrt_version": "11.0.0.1",
                "profiles": ({"a b": shapes(1, 2, 3, ())}, {"a b": shapes(4, 5, 6, ())}),
            },
            "trtexec --onnx=model.qdq.onnx --saveEngine=1/model.plan --stronglyTyped "
            "--profile=0 '--minShapes=a b:1' '--optShapes=a b:2' '--maxShapes=a b:3' "
            "--profile=1 '--minShapes=a b:4' '--optShapes=a b:5' '--maxShapes=a b:6'",
        ),
    ],
)
def test_the_command_that_builds_a_plan(make_source, changes, expected):
    assert build_command(make_source(**changes), "1/model.plan") == expected


@pytest.mark.parametrize("name", ["a\nb", "a\x00b", "\x1b[2J"])
def test_a_name_that_a_command_cannot_hold_is_refused(make_source, name):
    source = make_source(profiles=({name: shapes(1, 2, 3, ())},))
    with pytest.raises(UnsupportedError, match="trtexec cannot be told the name of the input"):
        build_command(source, "model.plan")


def test_the_script_runs_the_command_in_its_own_folder(make_source, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "build_plan.sh").write_text(build_script(make_source(), "1/model.plan"))
    (tmp_path / "trtexec").write_text('#!/bin/sh\necho "$PWD" "$@" > called\n')
    (tmp_path / "trtexec").chmod(0o755)
    subprocess.run(["bash", folder / "build_plan.sh"], check=True, env={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert (
        (folder / "called")
        .read_text()
        .startswith(f"{folder} --onnx=model.qdq.onnx --saveEngine=1/model.plan")
    )
    assert (folder / "1").is_dir()


def test_a_readme_names_tensors_and_preprocessing(make_source):
    wanted = Preprocessing(
        resize=9, crop=(8, 6), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), channels="BGR"
    )
    text = readme("docker/README.md.in", make_source(preprocessing=wanted), requirements="numpy")
    assert "| input | `images` | float32 | `batch x 3 x 8 x 6` |" in text
    assert "| output | `logits` | float32 | `batch x 10` |" in text
    assert "Profile 0 (smallest, optimal, largest shape): `images` 1x3x8x6,8x3x8x6,32x3x8x6." in text
    assert (
        "become `images` in this order: the shorter side is resized to 9 (bilinear, with antialiasing); "
        "8x6 (height x width) are cropped from the centre; channels are reversed to BGR; multiplied by "
        "0.00392156863; less the mean 0.485, 0.456, 0.406; divided by 0.229, 0.224, 0.225; brought to NCHW."
    ) in text
    assert "GPUs of compute capability 8.6, 8.9" in text
    text = readme("docker/README.md.in", make_source(compute_capabilities=("current",)), requirements="numpy")
    assert "None was declared when this folder was made" in text
    assert "on the GPU that it was built on" in text


@pytest.mark.parametrize(
    ("layout", "shape", "colors"),
    [
        ("NCHW", ("batch", 1, 8, 6), "grey"),
        ("NHWC", ("batch", 1, 6, 3), "RGB"),
        ("NHWC", ("batch", 8, 6, 1), "grey"),
    ],
)
def test_readmes_name_the_colours_that_the_network_takes(make_source, layout, shape, colors):
    inputs = (TensorSpec("images", "float32", shape),)
    source = make_source(preprocessing=Preprocessing(layout=layout), inputs=inputs)
    text = readme("cpp/README.md.in", source, environment="")
    assert re.findall("RGB|grey", text) == [colors]
    assert f"Raw images (uint8, {colors}, height x width x channels) become `images` in this order" in text


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name.endswith(".py.in")])
def test_programs_are_python(name):
    compile(template(name), name, "exec")


def test_every_readme_says_what_was_not_tried():
    kinds = [name for name in TEMPLATES if name.endswith("/README.md.in")]
    assert len(kinds) == 5
    for name in kinds:
        assert re.search(r"nothing here was run on a GPU", " ".join(template(name).split()), re.I), name


@pytest.fixture
def prepare(tmp_path):
    """Prepares images with the program of a deployment; gives its last line where it fails."""

    def call(source, images):
        (tmp_path / "model.json").write_text(source.description())
        (tmp_path / "preprocess.py").write_text(template("shared/preprocess.py.in"))
        np.savez(tmp_path / "in.npz", images=images)
        code = (
            "import numpy as np; from preprocess import feeds_of; "
            "np.savez('out.npz', **feeds_of(dict(np.load('in.npz'))))"
        )
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        if done.returncode:
            return done.stderr.splitlines()[-1]
        with np.load(tmp_path / "out.npz") as found:
            return found["images"]

    return call


@pytest.mark.parametrize(
    "wanted",
    [
        Preprocessing(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
        Preprocessing(resize=9, crop=(8, 6), channels="BGR"),
        Preprocessing(resize=(8, 6), layout="NHWC", scale=1.0),
        Preprocessing(letterbox=(8, 6)),
    ],
)
def test_images_are_prepared_as_trtint8_does_it(make_source, prepare, wanted):
    pytest.importorskip("PIL")
    inputs = make_source().info.inputs
    if wanted.layout == "NHWC":
        inputs = (type(inputs[0])("images", "float32", ("batch", 8, 6, 3)),)
    source = make_source(preprocessing=wanted, inputs=inputs)
    images = np.random.default_rng(0).integers(0, 256, (2, 12, 10, 3), np.uint8)
    np.testing.assert_array_equal(prepare(source, images), wanted(images))


@pytest.mark.parametrize(
    ("wanted", "shape", "sentence"),
    [
        (
            Preprocessing(crop=(8, 6)),
            (2, 7, 10, 3),
            "cannot crop 8x6 from images of 7x10 (height x width); set",
        ),
        (
            Preprocessing(crop=(8, 6)),
            (2, 12, 5, 3),
            "cannot crop 8x6 from images of 12x5 (height x width); set",
        ),
        (
            Preprocessing(mean=(0.1, 0.2, 0.3)),
            (2, 8, 6, 1),
            "has 3 values for mean but the images have 1 channel; give",
        ),
        (
            Preprocessing(std=(0.1, 0.2, 0.3)),
            (2, 8, 6, 1),
            "has 3 values for std but the images have 1 channel; give",
        ),
    ],
)
def test_images_are_refused_as_trtint8_does_it(make_source, prepare, wanted, shape, sentence):
    images = np.zeros(shape, np.uint8)
    with pytest.raises(CalibrationDataError) as refused:
        wanted(images)
    assert f"preprocessing {sentence}" in str(refused.value)
    assert prepare(make_source(preprocessing=wanted), images) == f"ValueError: {refused.value}"
