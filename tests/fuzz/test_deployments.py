"""What `deploy` writes for hostile records: each file is read by its language's own parser.

No text of a record is anything but a text there. Every place of a record is tried, and a test demands that
the examples have every field of every record.
"""

from __future__ import annotations

import ast
import configparser
import dataclasses
import hashlib
import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import tempfile
import typing
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators import records
from calibrators.data.images.preprocessing import Preprocessing
from calibrators.data.inputs import CalibratedInputs
from calibrators.data.samples import SampleSizes
from calibrators.errors import TableError, TrtInt8Error
from calibrators.histograms.histogram import Histogram
from calibrators.tables.choice import FloatLayers, RangeChoice
from calibrators.tables.formats import tensorrt_cache
from calibrators.tables.formats.json import TableRecord
from calibrators.tables.table import CalibrationTable, Provenance
from tests.trtint8.deployment.conftest import PLAN, QDQ
from trtint8.deployment.source import read_source
from trtint8.deployment.writing import _KINDS, deploy
from trtint8.engine.file import EngineInfo, TensorSpec, read_engine_info, save_engine
from trtint8.engine.kernels import PartTotal, Traffic
from trtint8.engine.layers import Layer, LayerReport
from trtint8.engine.profiles import ShapeRange
from trtint8.models.model import Model

#: Stands in every hostile text, and is found again in whatever it got into.
MARK = "QZMARK"

#: Pieces of texts that one of the languages obeys, or that its readers stumble over.
PIECES = (
    "\n", "\r\n", "\t", " ", "\x00", "\x1b[2J", "\x85", "\u2028", "\u202e", "\ud800", "'", '"', "`", "``",
    "\\", "\\n", "\\\n", "|", "||", "\n\n# h\n", "<b>", "<!--", "](http://e.example)", "![x](y)", "*x*",
    "http://e.example", "www.e.example", "me@e.example", "~~x~~", "&lt;", "\n| a | b |\n", "[x]: http://e",
    "}}; int evil = 1; {{", "*/", "//", "??/", "\n#include <x>\n", 'R"(', "%(x)s", "%", ";", "#", "=", "_x_",
    "\n[x]\n", "$(id)", "${x}", "$x", "$$", "&& id", "> x", "\nevil-package", "\n--extra-index-url http://e",
    " ; extra == 'x'", "@ file:///x", "\nRUN id\n", "{ }", '" data_type: TYPE_INT8 }', "..", "../", "/",
    ".onnx", "/etc/passwd", "é", "鲸", "\U0001f433", ":bug:", "{{x}}", ",", ":", "a" * 300,
)  # fmt: skip

HOSTILE = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), min_size=1, max_size=4).map(
    lambda pieces: MARK.join(("", *pieces))
) | st.lists(st.sampled_from(PIECES), min_size=1, max_size=3).map(lambda pieces: "".join(pieces) + MARK)

#: Texts for every place: with control characters, which some files refuse, and without.
ALL_AT_ONCE = (
    f"{MARK}\n`|\"'\\",
    f"a\"{MARK}'`;$(id)|<b>](http://e.example)\\",
    f"{MARK}' x: http://e.example, www.e.example %(x)s é",
)

#: What nvinfer does otherwise than the preprocessing of a changed document, and which tensors have no range
#: in a changed table, is said, and no matter here.
pytestmark = [
    pytest.mark.filterwarnings("ignore:nvinfer :UserWarning"),
    pytest.mark.filterwarnings("ignore:.* of the model have no range in:UserWarning"),
]

IMAGES, LOGITS = "images", "logits"
HISTOGRAM = Histogram(np.zeros(64, np.int64))
# One huge value: so it keeps octaves.
HISTOGRAM.observe(np.append(np.full(600, 0.75), [0, np.inf, 2.5e3]).astype(np.float32))
WANTED = Preprocessing((8, 6), (8, 6), 0.5, (0.5,), (0.25,), "NCHW", "BGR")
FED = CalibratedInputs(WANTED, {IMAGES: 2.5})
TABLE = CalibrationTable(
    {IMAGES: 2.5, LOGITS: 12.75},
    "auto",
    Provenance(
        "0a" * 32,
        "0b" * 32,
        16,
        {"trtint8": "0.2.0"},
        {IMAGES: SampleSizes((3, 8, 6), (3, 8, 6))},
        {"boxes": "EfficientNMS_TRT"},
        FED,
        "0c" * 32,
        {LOGITS: "head.dense"},
    ),
    frozenset({LOGITS}),
    {IMAGES: HISTOGRAM},
    RangeChoice("mse", {"mse": 30.0}, {"mse": 4}, {LOGITS: 30.0}),
    warnings=("much noise",),
    float_layers=FloatLayers(
        ("head",), 0.01, 0.004, 3, 30.5, 33.0, 16, "for the test", {"head": "model.head"}
    ),
)
INFO = EngineInfo(
    flavor="tensorrt",
    tensorrt_version="10.9.0.34",
    compute_capabilities=("8.6", "8.9"),
    inputs=(TensorSpec(IMAGES, "float32", ("batch", 3, 8, 6)),),
    outputs=(TensorSpec(LOGITS, "float32", ("batch", 10)), TensorSpec("boxes", "int64", ("batch", None, 4))),
    profiles=({IMAGES: ShapeRange((1, 3, 8, 6), (8, 3, 8, 6), (32, 3, 8, 6))},),
    layers=LayerReport(
        (
            Layer(
                "conv_0", "correlation", ("Int8",), ("Int8",), ("Int8",), ("conv",), ((1,),), ((2,),), ((3,),)
            ),
        )
    ),
    quantized_nodes=("conv",),
    modules={"conv": "stem.conv"},
    weights_bytes=100,
    model_fingerprint="0a" * 32,
    missing_ranges=(("x", "layer x"),),
    float_nodes=(("up", "no kernel"),),
    float_causes={"up": "target"},
    shared_scales=(("s1", "s2"),),
    hardware_compatibility="ampere_plus",
    table_fingerprint=TABLE.fingerprint,
    method="auto",
    qdq_model="net.qdq.onnx",
    qdq_fingerprint=None,
    written={"qdq.onnx": "0a" * 32},
    kernels=(PartTotal("INT8 compute", 1, Traffic(10, 20)),),
    joins_samples=True,
    plan_sha256=hashlib.sha256(PLAN).hexdigest(),
    calibrated_inputs=FED,
    changed_weights=("bias correction",),
    warnings=("much noise",),
)
#: What may stay empty in the example: a fingerprint would make every change of the model an error.
LEFT_OUT = {
    (EngineInfo, "qdq_fingerprint"),
    (EngineInfo, "version_compatible"),
    (Preprocessing, "letterbox"),  # in place of a size and a crop
}

ENGINE_DOCUMENT = json.loads(records.render(INFO))
with tempfile.TemporaryDirectory() as _folder:
    TABLE_DOCUMENT = json.loads(TABLE.save(Path(_folder) / "x.json").read_bytes())


# The places of a document, found by walking it. ---------------------------------------------------------


def places(document, before=()):
    """Every value and every key of a document, as (path, whether it is the key)."""
    found = [(before, False)] if before else []
    if isinstance(document, dict):
        for key, value in document.items():
            found += [((*before, key), True), *places(value, (*before, key))]
    elif isinstance(document, list):
        for index, value in enumerate(document):
            found += places(value, (*before, index))
    return found


def changed(document, place, text, *, everywhere):
    """A copy of a document with a hostile text in one place, or wherever the value of that place stands."""
    path, is_key = place
    copied = json.loads(json.dumps(document))
    *outer, last = path
    holder = copied
    for key in outer:
        holder = holder[key]
    old = last if is_key else holder[last]
    if everywhere and isinstance(old, str) and len(path) > 1:
        return _renamed(copied, old, text)
    if is_key:
        holder[text] = holder.pop(last)
    else:
        holder[last] = text
    return copied


def _renamed(value, old, new):
    if isinstance(value, dict):
        return {new if key == old else key: _renamed(entry, old, new) for key, entry in value.items()}
    if isinstance(value, list):
        return [_renamed(entry, old, new) for entry in value]
    return new if value == old else value


ENGINE_PLACES = places(ENGINE_DOCUMENT)


def records_in(kind, seen=None):
    """The data classes that a record holds, at any depth."""
    seen = {} if seen is None else seen
    if dataclasses.is_dataclass(kind) and kind not in seen:
        seen[kind] = hints = typing.get_type_hints(kind)
        for hint in hints.values():
            records_in(hint, seen)
    for inner in typing.get_args(kind):
        records_in(inner, seen)
    return seen


def fields_filled(value):
    """The fields of data classes, at any depth, that have values."""
    found = set()
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            inner = getattr(value, field.name)
            found |= fields_filled(inner)
            if inner not in (None, (), {}, "", False):
                found.add((type(value), field.name))
    elif isinstance(value, tuple | dict):
        for inner in value.values() if isinstance(value, dict) else value:
            found |= fields_filled(inner)
    return found


@pytest.mark.parametrize("kind", [EngineInfo, TableRecord])
def test_the_example_has_every_field_of_every_record(kind):
    document = ENGINE_DOCUMENT if kind is EngineInfo else TABLE_DOCUMENT
    example = records.to_record(document, kind)
    wanted = {(one, field.name) for one in records_in(kind) for field in dataclasses.fields(one)}
    assert wanted - fields_filled(example) <= LEFT_OUT


# What a deployed folder may hold. -----------------------------------------------------------------------


def files_of(folder, document, to):
    """The files of a deployment of a sidecar; None where it is refused in one sentence."""
    (folder / "net.engine.json").write_text(json.dumps(document))
    try:
        return _KINDS[to].files(read_source(folder / "net.engine", None))
    except TrtInt8Error as error:
        assert str(error)
        return None


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("engine")
    save_engine(made / "net.engine", PLAN, INFO)
    (made / "net.qdq.onnx").write_bytes(QDQ)
    TABLE.save(made / "net.table.json")
    return made


@pytest.fixture(scope="module")
def clean(folder):
    """The files of each destination for the record as it is."""
    found = {to: files_of(folder, ENGINE_DOCUMENT, to) for to in _KINDS}
    rtx = {**ENGINE_DOCUMENT, "flavor": "rtx", "tensorrt_version": "1.7.1.116"}
    found = {to: (files, files_of(folder, rtx, to)) for to, files in found.items()}
    assert all(first and second for first, second in found.values())
    return found


def check_files(files, clean):
    """Checks that a deployment has known files only, and of each that it is what its parser reads."""
    names = set().union(*clean)
    assert set(files) <= names
    for name, content in files.items():
        if isinstance(content, Model | Path):
            continue
        known = [one[name] for one in clean if name in one]
        _check_file(Path(name).name, content, known)


def _check_file(name, content, known):
    if isinstance(content, bytes):
        assert name == "calibration.flatbuffers"
    elif name.endswith(".py"):
        ast.parse(content)
        assert content in known
    elif name in ("main.cpp", "CMakeLists.txt", "Dockerfile"):
        assert content in known
    elif name.endswith(".json"):
        json.loads(content)
    else:
        CHECKS[name](content)


def requirements_are_packages(content):
    from packaging.requirements import Requirement

    for line in content.splitlines():
        if not line.startswith("#") and line != "--extra-index-url https://pypi.nvidia.com":
            found = Requirement(line)
            assert not (found.url or found.marker or found.extras)
            assert found.name in {
                "tensorrt", "tensorrt-cu12", "tensorrt-rtx-cu12", "nvidia-cudnn-cu11", "nvidia-cudnn-cu12",
                "cuda-bindings", "numpy", "pillow", "ml_dtypes",
            }  # fmt: skip
    assert MARK not in content


CPP_LITERAL = re.compile(r'"(?:[^"\\\n]|\\.)*"')


def header_has_texts_in_literals_only(content):
    assert content.isascii() and "??" not in content
    code = CPP_LITERAL.sub('""', content)
    assert MARK not in code
    # Nothing but values between the template's own lines.
    for line in code.splitlines():
        if line.startswith("    {"):
            assert re.fullmatch(r'    \{"", [1248], \{[0-9, ]*\}\},', line)


def script_is_one_command(content):
    *before, last = content.splitlines()
    assert MARK not in "\n".join(before)
    words = shlex.split(last)
    assert words[:2] == ["exec", "$program"] and words[-2:] == ["$types", "$flags"]
    options = ("--onnx", "--saveEngine", "--profile", "--minShapes", "--optShapes", "--maxShapes")
    assert all(word.split("=")[0] in options for word in words[2:-2])
    subprocess.run(["sh", "-n"], input=content.encode(), check=True)


@cache
def tritons_protobuf():
    """Triton's own definition of model configurations, by its file; None where it is not installed."""
    package = importlib.util.find_spec("tritonclient")
    if package is None:
        return None
    file = Path(next(iter(package.submodule_search_locations))) / "grpc" / "model_config_pb2.py"
    spec = importlib.util.spec_from_file_location("model_config_pb2", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def configuration_of_triton(content):
    assert MARK not in CPP_LITERAL.sub('""', content)
    if protobuf := tritons_protobuf():
        from google.protobuf import text_format

        assert text_format.Parse(content, protobuf.ModelConfig()).name == "net"


def configuration_of_nvinfer(content):
    parser = configparser.ConfigParser()
    parser.read_string(content)
    assert parser.sections() == ["property"]
    assert all(re.fullmatch("[a-z0-9-]+", key) for key in parser["property"])
    assert [key for key, value in parser["property"].items() if MARK in value] in ([], ["output-blob-names"])


def cache_has_the_ranges(content):
    tensorrt_cache.parse(content.encode(), "calibration.cache")


#: What of Markdown the templates use within lines.
OWN_MARKUP = {"text", "code_inline", "softbreak", "strong_open", "strong_close", "em_open", "em_close"}


def readme_has_names_in_code_only(content):
    markdown_it = pytest.importorskip("markdown_it")
    tokens = (
        markdown_it.MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(content)
    )
    cells = []
    for token in tokens:
        assert token.type != "html_block"
        if token.type == "tr_open":
            cells.append(0)
        elif token.type in ("th_open", "td_open"):
            cells[-1] += 1
        for inner in token.children or ():
            assert inner.type in OWN_MARKUP
            assert inner.type == "code_inline" or MARK not in inner.content
    assert set(cells) == {4}  # of the table of tensors and of that of profiles
    markdown = pytest.importorskip("markdown")
    html = markdown.markdown(content, extensions=["tables", "fenced_code"])
    assert not re.search(r"<(a|img|script|b|table[^>]+)[ >]", html)
    assert {len(re.findall("<t[dh][ >]", row)) for row in html.split("<tr>")[1:]} == {4}


CHECKS = {
    "requirements.txt": requirements_are_packages,
    "model.hpp": header_has_texts_in_literals_only,
    "build_plan.sh": script_is_one_command,
    "config.pbtxt": configuration_of_triton,
    "config_infer.txt": configuration_of_nvinfer,
    "calibration.cache": cache_has_the_ranges,
    "README.md": readme_has_names_in_code_only,
}


@pytest.mark.parametrize("to", list(_KINDS))
def test_every_place_of_a_sidecar_with_a_hostile_text(folder, clean, nightly, to):
    documents = {
        json.dumps(changed(ENGINE_DOCUMENT, place, text, everywhere=everywhere))
        for place in ENGINE_PLACES
        for text in ALL_AT_ONCE
        for everywhere in (False, True)
    }
    for document in sorted(documents)[:: 1 if nightly else 5]:
        files = files_of(folder, json.loads(document), to)
        if files is not None:
            check_files(files, clean[to])


@pytest.mark.parametrize("to", list(_KINDS))
@given(place=st.sampled_from(ENGINE_PLACES), text=HOSTILE, everywhere=st.booleans(), rtx=st.booleans())
def test_any_place_of_a_sidecar_with_any_text(folder, clean, to, place, text, everywhere, rtx):
    document = ENGINE_DOCUMENT
    if rtx:
        document = {**document, "flavor": "rtx", "tensorrt_version": "1.7.1.116"}
    files = files_of(folder, changed(document, place, text, everywhere=everywhere), to)
    if files is not None:
        check_files(files, clean[to])


@pytest.mark.parametrize("to", list(_KINDS))
@given(place=st.sampled_from(places(TABLE_DOCUMENT)), text=HOSTILE, everywhere=st.booleans())
def test_any_place_of_a_table_with_any_text(folder, clean, to, place, text, everywhere):
    file = folder / "net.table.json"
    before = file.read_bytes()
    try:
        file.write_text(json.dumps(changed(TABLE_DOCUMENT, place, text, everywhere=everywhere)))
        fingerprint = CalibrationTable.load(file).fingerprint
        files = files_of(folder, {**ENGINE_DOCUMENT, "table_fingerprint": fingerprint}, to)
        if files is not None:
            check_files(files, clean[to])
    except TableError:
        pass
    finally:
        file.write_bytes(before)


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no compiler of C++")
def test_headers_with_hostile_names_compile(folder, tmp_path):
    includes = ["cstddef", "cstdint", "vector"]
    program = [f"#include <{name}>" for name in includes]
    texts = [f"{MARK}{piece}{MARK}" for piece in PIECES if piece != "\ud800"]
    for number, text in enumerate(texts):
        document = _renamed(_renamed(ENGINE_DOCUMENT, IMAGES, text), LOGITS, f"out {text}")
        files = files_of(folder, document, "cpp")
        (tmp_path / f"{number}.hpp").write_text(files["model.hpp"])
        expected = "".join(f"\\{byte:03o}" for byte in text.encode())
        program.append(f'namespace n{number} {{\n#include "{number}.hpp"\n}}')
        # The name is the text, as far as a name of C reaches.
        program.append(f'static_assert(__builtin_strcmp(n{number}::image_input, "{expected}") == 0);')
    (tmp_path / "all.cpp").write_text("\n".join(program))
    command = ["g++", "-std=c++17", "-fsyntax-only", "-Wall", "-Werror", "-Wno-unused", "all.cpp"]
    subprocess.run(command, cwd=tmp_path, check=True)


@pytest.mark.parametrize("to", list(_KINDS))
def test_a_folder_of_hostile_names_has_the_usual_files(folder, tmp_path, to):
    text = "a'\"`|$(id)%é:/"
    document = _renamed(ENGINE_DOCUMENT, IMAGES, text)
    (folder / "net.engine.json").write_text(json.dumps(ENGINE_DOCUMENT))
    usual = {
        path.relative_to(tmp_path / "usual") for path in deploy(folder / "net.engine", to, tmp_path / "usual")
    }
    (folder / "net.engine.json").write_text(json.dumps(document))
    found = deploy(folder / "net.engine", to, tmp_path / "found")
    assert {path.relative_to(tmp_path / "found") for path in found} == usual


# What a build writes is read back, whatever the names in its model are. ---------------------------------

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    [
        "unk__123",
        "batch_size",
        "batch*seq",
        "past_sequence_length + 1",
        "floor(height/2 + 1)",
        "a\nb",
        "",
        "é",
    ]
)


@given(
    names=st.lists(NAMES, min_size=6, max_size=6),
    dims=st.lists(NAMES | st.none() | st.integers(0, 2**63 - 1), max_size=4),
    stem=st.text(
        st.characters(exclude_characters="/\x00", exclude_categories=["Cs"]), min_size=1, max_size=20
    ),
)
def test_whatever_a_build_writes_is_read_back(tmp_path_factory, names, dims, stem):
    first, second, third, fourth, fifth, sixth = names
    engine = tmp_path_factory.mktemp("built") / f"{stem}.engine"
    info = dataclasses.replace(
        INFO,
        inputs=(TensorSpec(first, "float32", tuple(dims)),),
        outputs=(TensorSpec(second, "bfloat16", ()),),
        profiles=(),
        quantized_nodes=(third,),
        float_nodes=((fourth, "no kernel"),),
        missing_ranges=((fifth, sixth),),
        shared_scales=((third, fourth),),
        qdq_model=f"{engine.stem}.qdq.onnx",
    )
    saved = save_engine(engine, PLAN, info)
    assert read_engine_info(engine) == saved
