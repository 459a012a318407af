"""Templates, and what all READMEs say."""

import re
import shlex
import subprocess
import sys
from dataclasses import replace
from importlib.resources import files

import numpy as np
import pytest

from calibrators.data.images.preprocessing import Preprocessing
from calibrators.errors import CalibrationDataError, UnsupportedError
from tests.trtint8.deployment.conftest import qdq_model, shapes
from trtint8.deployment.content import build_script, build_words, readme, template
from trtint8.engine.file import TensorSpec
from trtint8.models.model import load_model

TEMPLATES = sorted(
    f"{folder.name}/{path.name}"
    for folder in (files("trtint8.deployment") / "templates").iterdir()
    for path in folder.iterdir()
)


def test_a_template_without_values_is_taken_as_it_stands():
    assert "FROM python" in template("docker/Dockerfile.in")
    with pytest.raises(KeyError):
        template("shared/build_plan.sh.in", plan="model.plan")


SHAPES = (
    "--minShapes=images:1x3x8x6",
    "--optShapes=images:8x3x8x6",
    "--maxShapes=images:32x3x8x6",
)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, SHAPES),
        (
            {"profiles": ({"x:0": shapes(1, 2, 3, ())},)},
            ("--minShapes='x:0':1", "--optShapes='x:0':2", "--maxShapes='x:0':3"),
        ),
        ({"profiles": ()}, ()),
        (
            {"profiles": ({"a b": shapes(1, 2, 3, ())}, {"a b": shapes(4, 5, 6, ())})},
            (
                *("--profile=0", "--minShapes=a b:1", "--optShapes=a b:2", "--maxShapes=a b:3"),
                *("--profile=1", "--minShapes=a b:4", "--optShapes=a b:5", "--maxShapes=a b:6"),
            ),
        ),
    ],
)
def test_the_options_that_build_a_plan(make_source, changes, expected):
    words = shlex.split(build_words(make_source(**changes), "1/model.plan"))
    assert words == ["--onnx=model.qdq.onnx", "--saveEngine=1/model.plan", *expected]


@pytest.mark.parametrize("name", ["a\nb", "a\x00b", "\x1b[2J"])
def test_a_name_that_a_command_cannot_hold_is_refused(make_source, name):
    source = make_source(profiles=({name: shapes(1, 2, 3, ())},))
    with pytest.raises(UnsupportedError, match="trtexec cannot be told the name of the input"):
        build_words(source, "model.plan")


#: A trtexec of a version, which refuses options that this version does not have.
STAND_IN = """#!/bin/sh
echo "&&&& RUNNING TensorRT.trtexec [TensorRT v{version}] [b1] # trtexec $*"
for word in "$@"; do
    case $word in
        --help) exit 0 ;;
        {unknown}) echo "Unknown option: $word" >&2; exit 1 ;;
        --saveEngine=*) echo plan > "${{word#--saveEngine=}}" ;;
    esac
done
printf '%s\\n' "$PWD" "$@" > "{called}"
"""

UNKNOWN = {"8601": "--stronglyTyped", "101600": "--no-such", "110400": "--int8 | --fp16 | --stronglyTyped"}


@pytest.fixture
def run_script(tmp_path):
    """Runs a source's script with a trtexec of a version; gives the process and the words of its call."""

    def run(source, version, **environment):
        folder, called = tmp_path / "a model", tmp_path / "called"
        folder.mkdir()
        (folder / "build_plan.sh").write_text(build_script(source, "1/model.plan"))
        program = tmp_path / "trtexec"
        program.write_text(
            STAND_IN.format(version=version, unknown=UNKNOWN.get(version, "--no-such"), called=called)
        )
        program.chmod(0o755)
        done = subprocess.run(
            ["sh", folder / "build_plan.sh"],
            env={"PATH": f"{tmp_path}:/usr/bin:/bin", **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        return done, called.read_text().splitlines() if called.exists() else None

    return run


@pytest.mark.parametrize(
    ("version", "types"),
    [("8601", ["--int8", "--fp16"]), ("101600", ["--int8", "--fp16"]), ("110400", [])],
)
@pytest.mark.parametrize(
    "built_with", [("tensorrt", "8.6.1"), ("tensorrt", "10.9.0.34"), ("tensorrt", "11.0.0.1")]
)
def test_the_script_chooses_options_by_the_trtexec_that_it_finds(
    make_source, run_script, tmp_path, version, types, built_with
):
    source = make_source(flavor=built_with[0], tensorrt_version=built_with[1])
    done, called = run_script(source, version)
    assert done.returncode == 0, done.stderr
    words = ["--onnx=model.qdq.onnx", "--saveEngine=1/model.plan", *SHAPES]
    assert called == [str(tmp_path / "a model"), *words, *types]
    assert version in done.stdout and " ".join(types) in done.stdout
    assert (tmp_path / "a model" / "1" / "model.plan").exists()


@pytest.mark.parametrize(
    ("version", "types"), [("8601", None), ("101600", ["--stronglyTyped"]), ("110400", [])]
)
def test_a_model_with_fp16_in_it_is_strongly_typed(make_source, run_script, version, types):
    source = make_source()
    half = load_model(qdq_model("float16"))
    done, called = run_script(replace(source, qdq_model=half), version)
    if types is None:
        assert done.returncode == 2 and called is None
        assert version in done.stderr and "tensorrt-8.6" in done.stderr
    else:
        assert done.returncode == 0
        assert called[6:] == types


def test_the_script_takes_another_program_and_further_options(make_source, run_script, tmp_path):
    done, called = run_script(
        make_source(profiles=()), "101600", TRTEXEC=str(tmp_path / "trtexec"), TRTEXEC_FLAGS="--verbose --x=1"
    )
    assert done.returncode == 0
    assert called[3:] == ["--int8", "--fp16", "--verbose", "--x=1"]


@pytest.mark.parametrize("version", ["7103", "", "x"])
def test_a_trtexec_of_an_unknown_version_builds_nothing(make_source, run_script, version):
    done, called = run_script(make_source(), version)
    assert done.returncode == 2 and called is None


def test_without_trtexec_the_script_says_so(make_source, run_script):
    done, called = run_script(make_source(), "8601", TRTEXEC="/no/such/program")
    assert done.returncode == 2 and called is None
    assert "/no/such/program" in done.stderr


def test_a_readme_names_tensors_and_preprocessing(make_source):
    wanted = Preprocessing(
        resize=9, crop=(8, 6), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), channels="BGR"
    )
    text = readme("docker/README.md.in", make_source(preprocessing=wanted), requirements="numpy")
    assert "| input | `images` | float32 | `1..32 x 3 x 8 x 6` |" in text
    assert "| output | `logits` | float32 | `1..32 x 10` |" in text
    assert "| 0: `images` | 1x3x8x6 | 8x3x8x6 | 32x3x8x6 |" in text
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
