"""What is known of an engine that is deployed."""

import ast
import json
import re
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement

from calibrators.data.images.preprocessing import Preprocessing
from calibrators.errors import CalibrationDataError, EngineError, UnsupportedError
from calibrators.tables.table import CalibrationTable
from tests.trtint8.deployment.conftest import AMAX, IMAGES, LOGITS, shapes
from trtint8.deployment.source import (
    Batching,
    c_literal,
    fits_command,
    fits_key_file,
    json_document,
    markdown_code,
    read_source,
    requirements_file,
    runtime_packages,
    shell_words,
)
from trtint8.engine.file import TensorSpec, sidecar_path
from trtint8.engine.profiles import ShapeRange
from trtint8.models.model import load_model


def test_the_files_beside_an_engine_are_found(make_source, tmp_path):
    source = make_source("my net")
    assert source.name == "my_net"
    assert list(source.qdq_files()) == ["model.qdq.onnx"]
    assert source.qdq_model.fingerprint == load_model(tmp_path / "my net.qdq.onnx").fingerprint
    assert source.table.amax == AMAX


@pytest.mark.parametrize(
    "name",
    [
        "build_plan.sh",
        "README.md",
        "run.py",
        "config.pbtxt",
        "a/net.qdq.onnx",
        "../net.qdq.onnx",
        "/etc/net.onnx",
        "..",
        ".net.onnx",
        "a\\b.onnx",
        "C:net.onnx",
        "net.onnx\n",
        "net.onnx\x00",
        "a\nb.onnx",
        "",
    ],
)
def test_a_model_of_another_kind_of_name_is_refused(make_engine, tmp_path, name):
    engine = make_engine()
    document = json.loads(sidecar_path(engine).read_text())
    sidecar_path(engine).write_text(json.dumps({**document, "qdq_model": name}))
    with pytest.raises(EngineError, match=r"is no plain name of an \.onnx file"):
        read_source(engine, None)


def test_a_model_that_was_renamed_is_found(make_engine, tmp_path):
    engine = make_engine(qdq_model="other name.onnx")
    (tmp_path / "net.qdq.onnx").rename(tmp_path / "other name.onnx")
    assert list(read_source(engine, None).qdq_files()) == ["model.qdq.onnx"]


@pytest.mark.parametrize("stem", [".hidden", "a\nb", "a\\b", "a:b", "-x", "é", "a\udcffb"])
def test_an_engine_of_any_name_finds_its_model(make_engine, stem):
    try:
        engine = make_engine(stem)
    except OSError:
        pytest.skip("no file can have that name here")
    assert list(read_source(engine, None).qdq_files()) == ["model.qdq.onnx"]


def test_a_link_out_of_the_folder_is_not_followed(make_engine, tmp_path):
    folder = tmp_path / "cloned"
    folder.mkdir()
    engine = make_engine()
    for file in tmp_path.glob("net.*"):
        file.rename(folder / file.name)
    engine, model = folder / engine.name, folder / "net.qdq.onnx"
    model.rename(tmp_path / "private.onnx")
    model.symlink_to("../private.onnx")
    with pytest.raises(EngineError, match=r"net\.qdq\.onnx' is a link out of the engine's folder"):
        read_source(engine, None)
    model.unlink()
    (folder / "inside").mkdir()
    (tmp_path / "private.onnx").rename(folder / "inside" / "m.onnx")
    model.symlink_to("inside/m.onnx")
    assert read_source(engine, None).qdq_model is not None
    # A cache of downloads: links to files without names of their own, in one folder.
    cache = tmp_path / "cache" / "snapshots"
    cache.mkdir(parents=True)
    (tmp_path / "cache" / "blobs").mkdir()
    for number, file in enumerate(path for path in folder.iterdir() if path.name.startswith("net.")):
        (tmp_path / "cache" / "blobs" / str(number)).write_bytes(file.read_bytes())
        (cache / file.name).symlink_to(f"../blobs/{number}")
    assert read_source(cache / "net.engine", None).qdq_model is not None


def test_what_is_not_there(make_source, tmp_path):
    source = make_source(qdq=False, table=False)
    assert (source.qdq_model, source.qdq_files(), source.table) == (None, {}, None)
    with pytest.raises(
        EngineError, match=r"has no 'b\.qdq\.onnx' beside it, which it was built from; copy it"
    ):
        read_source(make_source("b").engine.parent / _without_qdq(tmp_path, "b"), None)


def _without_qdq(folder, name):
    (folder / f"{name}.qdq.onnx").unlink()
    return f"{name}.engine"


def test_preprocessing_of_another_type(make_source):
    with pytest.raises(CalibrationDataError, match=r"preprocessing is a dict; give trtint8\.Preprocessing"):
        read_source(make_source("a").engine, {"mean": (0.5,)})


def test_a_table_of_another_engine_is_refused(make_engine, tmp_path):
    engine = make_engine()
    CalibrationTable({"images": 1.0}).save(tmp_path / "net.table.json")
    with pytest.raises(EngineError, match="is not the table that the engine was built with; move it away"):
        read_source(engine, None)


ANY = Batching(1, (8,), 32)
UNNAMED = TensorSpec("images", "float32", (None, 3, None, 6))
TIME_FIRST = {"outputs": (TensorSpec("logits", "float32", ("time", None, 29)),)}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ANY),
        (
            {"profiles": ({"images": shapes(2, 4, 4)}, {"images": shapes(4, 16, 64)})},
            Batching(2, (4, 16), 64),
        ),
        ({"profiles": ()}, None),
        ({"inputs": (TensorSpec("images", "float32", (4, 3, 8, 6)),)}, None),
        ({"outputs": (LOGITS, TensorSpec("boxes", "float32", (100, 4)))}, None),
        ({"outputs": (TensorSpec("loss", "float32", ()),)}, None),
        ({"inputs": (IMAGES, TensorSpec("boxes", "float32", ("boxes", 4)))}, None),
        # The batch is not the first dimension of an output.
        ({"outputs": (TensorSpec("logits", "float32", ("steps", "batch", 29)),)}, None),
        ({"outputs": (TensorSpec("similarity", "float32", ("batch", "batch")),)}, None),
        ({"inputs": (TensorSpec("images", "float32", ("batch", 3, "time", 6)),), **TIME_FIRST}, None),
        # Samples that are joined change each other, whatever the axes are called.
        ({"joins_samples": False}, None),
        ({"joins_samples": True}, ANY),
        # Dimensions without names say nothing.
        ({"inputs": (UNNAMED,), "outputs": (TensorSpec("y", "float32", (None, None)),)}, ANY),
    ],
)
def test_batches(make_source, changes, expected):
    assert make_source(**changes).batching == expected


def test_what_a_program_needs_to_know(make_source):
    source = make_source(preprocessing=Preprocessing(mean=(0.1, 0.2, 0.3)))
    known = json.loads(source.description())
    assert known["inputs"] == [{"name": "images", "dtype": "float32", "shape": ["batch", 3, 8, 6]}]
    assert known["profiles"][0]["images"]["max"] == [32, 3, 8, 6]
    assert (known["image_input"], known["preprocessing"]["mean"]) == ("images", [0.1, 0.2, 0.3])
    assert known["batching"] == {"smallest": 1, "preferred": [8], "largest": 32}
    known = json.loads(make_source(profiles=()).description())
    assert known["batching"] is known["preprocessing"] is None


def test_preprocessing_that_no_input_takes_is_refused(make_source):
    with pytest.raises(
        CalibrationDataError, match="makes images of 8x7, and the engine takes 'images' of 8x6 "
    ):
        make_source(preprocessing=Preprocessing(crop=(8, 7)))


def test_an_engine_that_cannot_be_loaded_or_built_anew(make_source):
    assert make_source(flavor="rtx").for_full_tensorrt("Triton").plan is None
    source = make_source(qdq=False)
    assert source.for_full_tensorrt("Triton").plan == source.engine
    with pytest.raises(UnsupportedError, match=r"net\.engine' is an engine of TensorRT for RTX .* Triton"):
        make_source(flavor="rtx", qdq=False).for_full_tensorrt("Triton")


#: An engine of images of any height and width that its two profiles take.
OPEN = {
    "inputs": (TensorSpec("images", "float32", ("batch", 3, "height", None)),),
    "profiles": (
        {"images": ShapeRange((1, 3, 8, 16), (1, 3, 8, 16), (4, 3, 32, 24))},
        {"images": ShapeRange((1, 3, 64, 64), (1, 3, 64, 64), (4, 3, 64, 64))},
    ),
}
GREY = {"inputs": (TensorSpec("images", "float32", ("batch", 1, 8, 6)),)}
LAST = {"inputs": (TensorSpec("images", "float32", ("batch", 8, 6, 3)),)}


@pytest.mark.parametrize(
    "changes",
    [
        {"inputs": (TensorSpec("ids", "int64", ("batch", 8)),)},
        {"inputs": (TensorSpec("images", "uint8", ("batch", 3, 8, 6)),)},
        {"inputs": (TensorSpec("images", "float32", ("batch", 8, 6, 3)),)},
        {"inputs": (IMAGES, TensorSpec("others", "float32", ("batch", 3, 8, 6)))},
    ],
)
def test_an_engine_without_such_an_input(make_source, changes):
    with pytest.raises(
        CalibrationDataError, match="with 1 or 3 channels, and no input of the engine takes them"
    ):
        make_source(preprocessing=Preprocessing(), profiles=(), **changes)


@pytest.mark.parametrize(
    ("wanted", "changes", "sentence"),
    [
        ({"crop": (64, 64)}, {}, "of 64x64, and the engine takes 'images' of 8x6 (height x width); correct"),
        ({"letterbox": (6, 8)}, {}, "of 6x8, and the engine takes 'images' of 8x6 (height x width)"),
        ({"resize": (16, 12), "crop": (8, 8)}, {}, "of 8x8, and the engine takes 'images' of 8x6 (height"),
        ({"resize": (8, 3), "layout": "NHWC"}, LAST, "of 8x3, and the engine takes 'images' of 8x6 (height"),
        # One side is the shorter one, and the engine's is 6.
        ({"resize": 5}, {}, "whose shorter side is 5, and the engine takes 'images' of 8x6 (height x width)"),
        ({"resize": 8}, {}, "whose shorter side is 8, and the engine takes 'images' of 8x6 (height x width)"),
        (
            {"crop": (32, 25)},
            OPEN,
            "of 32x25, and the engine takes 'images' of 8x16 to 32x24 or 64x64 (height x width); correct",
        ),
        # Of one profile the height, of the other the width.
        ({"crop": (8, 64)}, OPEN, "of 8x64, and the engine takes 'images' of 8x16 to 32x24 or 64x64"),
        ({"resize": 33}, OPEN, "whose shorter side is 33, and the engine takes 'images' of 8x16 to 32x24 or"),
    ],
)
def test_sizes_that_an_engine_does_not_take(make_source, wanted, changes, sentence):
    with pytest.raises(CalibrationDataError, match=re.escape(f"preprocessing makes images {sentence}")):
        make_source(preprocessing=Preprocessing(**wanted), **changes)


@pytest.mark.parametrize(
    ("wanted", "changes"),
    [
        ({}, {}),
        ({"crop": (8, 6)}, {}),
        ({"resize": 6}, {}),
        ({"resize": 7, "crop": (8, 6)}, {}),  # images that are higher than wide
        ({"letterbox": (32, 24)}, OPEN),
        ({"crop": (64, 64)}, OPEN),
        ({"resize": 8}, OPEN),  # 8x24 is one of them
        ({"resize": 24}, OPEN),  # and so is 32x24
        ({"crop": (123, 45)}, {**OPEN, "profiles": ()}),
        ({"resize": (8, 6), "layout": "NHWC"}, LAST),
    ],
)
def test_sizes_that_an_engine_may_take(make_source, wanted, changes):
    assert make_source(preprocessing=Preprocessing(**wanted), **changes).preprocessing is not None


def test_a_crop_that_is_larger_than_what_it_is_cut_from(make_source):
    with pytest.raises(
        CalibrationDataError, match=r"cannot crop 8x6 from images of 8x5 \(height x width\); set"
    ):
        make_source(preprocessing=Preprocessing(resize=(8, 5), crop=(8, 6)))
    with pytest.raises(
        CalibrationDataError,
        match=r"cannot crop 8x6 \(height x width\) from images whose shorter side is resized to 5; give",
    ):
        make_source(preprocessing=Preprocessing(resize=5, crop=(8, 6)))


@pytest.mark.parametrize("name", ["mean", "std"])
def test_a_value_for_each_channel(make_source, name):
    wanted = Preprocessing(**{name: (0.1, 0.2, 0.3)})
    sentence = f"has 3 values for {name}, and the engine takes 'images' with 1 channel; give one value"
    with pytest.raises(CalibrationDataError, match=sentence):
        make_source(preprocessing=wanted, **GREY)
    assert make_source(preprocessing=wanted, profiles=({"images": shapes(1, 8, 32)},)).preprocessing == wanted


@pytest.mark.parametrize(
    ("changes", "package", "published", "python"),
    [
        ({}, "tensorrt-cu12==10.9.0.34", "10.9.0.34", "3.12"),
        ({"tensorrt_version": "10.0.1"}, "tensorrt-cu12==10.0.1.*", "10.0.1", "3.12"),
        (
            {"flavor": "rtx", "tensorrt_version": "1.7.1.116"},
            "tensorrt-rtx-cu12==1.7.1.116",
            "1.7.1.116",
            "3.12",
        ),
        ({"tensorrt_version": "8.6.1"}, "tensorrt==8.6.1.post1", "8.6.1.post1", "3.10"),
        ({"tensorrt_version": "10.0.0b6"}, "tensorrt-cu12==10.0.0b6", "10.0.0b6", "3.12"),
        ({"tensorrt_version": "10.9.0.34+cuda12"}, "tensorrt-cu12==10.9.0.34", "10.9.0.34", "3.12"),
        ({"flavor": "rtx", "tensorrt_version": "unknown"}, "tensorrt-rtx-cu12", "1.7", "3.12"),
        ({"tensorrt_version": "8.6.0"}, "tensorrt==8.6.0.*", "8.6.0", "3.10"),
        ({"tensorrt_version": "8.5.3.1"}, "tensorrt==8.5.3.1", "8.5.3.1", "3.10"),
    ],
)
def test_the_tensorrt_that_built_the_engine_is_installed(make_source, changes, package, published, python):
    packages = runtime_packages(make_source(**changes))
    assert (packages.requirements[0], packages.python) == (package, python)
    assert packages.has_tensorrt and Requirement(package).specifier.contains(published)


def test_version_8_takes_the_cuda_and_the_cudnn_that_it_is_linked_with(make_source):
    assert requirements_file(make_source(tensorrt_version="8.6.1")).splitlines() == [
        "# For Python 3.10.",
        "--extra-index-url https://pypi.nvidia.com",
        "tensorrt==8.6.1.post1",
        "nvidia-cudnn-cu12<9",
        "cuda-bindings>=12.8,<13",
        "numpy>=1.26",
        "pillow>=10",
        "ml_dtypes>=0.4",
    ]
    assert requirements_file(make_source(tensorrt_version="8.5.3.1")).splitlines()[1:4] == [
        "tensorrt==8.5.3.1",
        "nvidia-cudnn-cu11<9",
        "cuda-bindings>=11.8.6,<12",
    ]


def test_version_9_has_no_packages(make_source):
    source = make_source(tensorrt_version="9.2.0")
    assert not runtime_packages(source).has_tensorrt
    assert requirements_file(source).splitlines()[:3] == [
        "# For Python 3.10.",
        "# PyPI has no TensorRT 9.2.0: install the one that built the engine.",
        "cuda-bindings>=12.8,<13",
    ]


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(TEXTS)
def test_a_literal_of_c_is_one_and_means_the_text(text):
    literal = c_literal(text)
    assert literal.isascii() and literal.isprintable() and "??" not in literal
    # Escapes of Python's literals of bytes are those of C.
    assert ast.literal_eval(f"b{literal}").decode() == text


def test_a_literal_of_c_is_readable():
    assert c_literal("in/x:0") == '"in/x:0"'
    assert c_literal('a"\\\né?') == r'"a\"\\\012\303\251\077"'


@given(st.lists(TEXTS, max_size=4))
def test_words_of_a_shell_are_those_that_it_reads(words):
    assert shlex.split(shell_words(words)) == words


@given(TEXTS)
def test_json_means_the_value(text):
    document = json_document({text: [text]})
    assert document.isascii() and json.loads(document) == {text: [text]}


@given(TEXTS)
def test_a_code_span_is_one_line_that_nothing_ends(text):
    span = markdown_code(text)
    assert span[0] == span[-1] == "`" and len(span) > 2
    assert span[1:-1].isprintable() and not set(span[1:-1]) & set("`|")
    shown = ast.literal_eval("'" + span[1:-1].replace("'", "\\'") + "'")
    assert shown == (text or " ")


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("images", "`images`"),
        ("a|b`c\\", r"`a\x7cb\x60c\x5c`"),
        ("a\nb\u202e\U000e0001", r"`a\x0ab\u202e\U000e0001`"),
        ("<b>é</b>", "`<b>é</b>`"),
        ("", "` `"),
    ],
)
def test_a_code_span_shows_what_it_cannot_hold(text, span):
    assert markdown_code(text) == span


def test_what_a_command_and_a_key_file_hold():
    assert all(map(fits_command, ("x:0", "a b", "é", "")))
    assert not any(map(fits_command, ("a\nb", "a\x00", "\x1b[2J", "\u2028")))
    assert all(map(fits_key_file, ("x:0", "/fc/Gemm_output_0", "a b", "output[1]", "é", "#x")))
    assert not any(map(fits_key_file, ("", " x", "x ", "a;b", "a\\b", "a%b", "a\nb", "\u2028")))
