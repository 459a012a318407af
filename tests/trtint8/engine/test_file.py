"""What is known of an engine, for a person."""

import dataclasses
import hashlib
import json
import os
import shutil
from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

import trtint8
from calibrators import records
from calibrators.data.inputs import InputSpec
from calibrators.errors import EngineError, OutputError
from calibrators.tables.table import CalibrationTable
from tests.trtint8.engines import build_rtx
from tests.trtint8.report.samples import engine_info, table
from trtint8 import __version__
from trtint8.data import DEMO_MODEL
from trtint8.engine import file as engine
from trtint8.engine.file import (
    EngineInfo,
    TensorSpec,
    engine_rows,
    input_specs,
    read_engine_info,
    read_engine_table,
    read_plan,
    save_engine,
    sha256_of,
    sidecar_path,
)
from trtint8.engine.kernels import PartTotal, Traffic
from trtint8.engine.layers import Layer, LayerReport
from trtint8.engine.profiles import ShapeRange
from trtint8.engine.qdq import load_engine_qdq

PLAN = bytes(range(256)) * 100
INFO = EngineInfo(
    flavor="rtx",
    tensorrt_version="1.7.1.116",
    compute_capabilities=("8.6", "12.0"),
    inputs=(TensorSpec("images", "float32", ("N", 3, None, 16)),),
    outputs=(TensorSpec("scores", "float32", ("N", 10)), TensorSpec("total", "int64", ())),
    profiles=({"images": ShapeRange((1, 3, 16, 16), (8, 3, 16, 16), (32, 3, 16, 16))},),
    layers=LayerReport(
        (Layer("conv_myl0_2", "correlation", ("Int8",), ("Int8", "Float"), ("Float",), ("conv",)),)
    ),
    quantized_nodes=("conv", "fc"),
    float_nodes=(("up", "TensorRT for RTX has no INT8 kernel for it"),),
    weights_bytes=5248,
    model_fingerprint="abc",
    table_fingerprint="def",
    method="entropy",
    qdq_model="model.qdq.onnx",
    written={"qdq.onnx": "0a" * 32, "table.json": "1b" * 32},
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.engine"


def test_round_trip(path):
    saved = save_engine(path, PLAN, INFO)
    assert saved == replace(INFO, plan_sha256=hashlib.sha256(PLAN).hexdigest())
    assert path.read_bytes() == PLAN
    assert read_engine_info(path) == read_engine_info(str(path)) == saved
    assert {file.name for file in path.parent.iterdir()} == {"model.engine", "model.engine.json"}


def test_what_may_be_unknown(path):
    info = replace(
        INFO,
        layers=None,
        weights_bytes=None,
        table_fingerprint=None,
        method=None,
        qdq_model=None,
        profiles=(),
    )
    assert save_engine(path, PLAN, info) == read_engine_info(path)


def test_kernels_by_part_are_kept(path):
    totals = (PartTotal("INT8 compute", 2, Traffic(100, 50)), PartTotal("other", 1, None))
    saved = save_engine(path, PLAN, replace(INFO, kernels=totals))
    assert read_engine_info(path).kernels == saved.parts == totals
    # A file that was written without them has the layers that they are made of.
    assert INFO.parts == (PartTotal("INT8 compute", 1, None),)
    assert replace(INFO, layers=None).parts == ()


def test_sidecar_is_readable_by_people(path):
    save_engine(path, PLAN, INFO)
    data = json.loads(sidecar_path(path).read_text())
    assert data["format_version"] == 1
    assert data["created_by"] == f"trtint8 {__version__}"
    assert data["profiles"] == [
        {"images": {"min": [1, 3, 16, 16], "opt": [8, 3, 16, 16], "max": [32, 3, 16, 16]}}
    ]
    assert data["layers"]["layers"][0]["onnx_nodes"] == ["conv"]


def test_missing_engine(path):
    with pytest.raises(EngineError) as caught:
        read_engine_info(path)
    assert str(caught.value) == (
        f"the engine '{path}' cannot be read (No such file or directory); give the path of an engine file"
    )


def test_missing_sidecar(path):
    path.write_bytes(PLAN)
    with pytest.raises(EngineError) as caught:
        read_engine_info(path)
    assert str(caught.value) == (
        f"the engine '{path}' has no sidecar 'model.engine.json' beside it; copy both files, or build the "
        f"engine with trtint8"
    )


@pytest.mark.parametrize(
    ("name", "said"),
    [("images.npz", "arrays"), ("net.onnx", "model"), ("net.table.json", "table"), ("net.cache", "table")],
)
def test_what_is_no_engine_is_said_to_be_none(tmp_path, name, said):
    path = tmp_path / name
    path.write_bytes(b"PK")
    with pytest.raises(EngineError, match=rf"{name}' is not a TensorRT engine; .*{said}"):
        read_engine_info(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "cannot be read"),
        (b"\xff\xfe\x00", "cannot be read"),
        (b"[]", "is not one that trtint8 wrote"),
        (b"null", "is not one that trtint8 wrote"),
        (b"{}", "is not one that trtint8 wrote (Object missing required field `flavor`)"),
    ],
)
def test_corrupt_sidecar(path, content, message):
    path.write_bytes(PLAN)
    sidecar_path(path).write_bytes(content)
    with pytest.raises(EngineError) as caught:
        read_engine_info(path)
    assert f"the sidecar '{path}.json' {message}" in str(caught.value)
    assert str(caught.value).endswith("build the engine again")


def shapes(name, *sizes):
    return {name: dict(zip(("min", "opt", "max"), sizes, strict=True))}


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("compute_capabilities", ["a.b"], "does not have the form of its field"),
        ("compute_capabilities", ["8.6.1"], "does not have the form of its field"),
        ("weights_bytes", -1, "Expected `int` >= 0 - at `$.weights_bytes`"),
        ("plan_sha256", "0a" * 31, "does not have the form of its field"),
        ("profiles", [{"images": {"min": [1], "opt": ["8"], "max": [32]}}], "Expected `int`, got `str`"),
        ("inputs", [{"name": "x", "shape": [1]}], "Object missing required field `dtype` - at `$.inputs[0]`"),
        ("compute_capabilities", ["8.6\n"], "does not have the form of its field"),
        ("flavor", "tensorrt\n", "Invalid enum value 'tensorrt\\n' - at `$.flavor`"),
        ("route", "any", "Invalid enum value 'any' - at `$.route`"),
        ("tensorrt_version", "1.7.1.116\n--extra-index-url x", "does not have the form of its field"),
        ("tensorrt_version", "1.7.1.116\n", "does not have the form of its field"),
        ("tensorrt_version", "1.7; import os", "does not have the form of its field"),
        ("tensorrt_version", "٣.٤", "does not have the form of its field"),
        ("tensorrt_version", "", "does not have the form of its field"),
        (
            "model_fingerprint",
            "xyz",
            "does not have the form of its field",
        ),
        ("table_fingerprint", "0a\n", "does not have the form of its field"),
        ("hardware_compatibility", "all", "does not have the form of its field"),
        ("written", {"../x": "0a" * 32}, "does not have the form of its field - at `key` in `$.written`"),
        ("created_by", "a\nb", "does not have the form of its field"),
        ("quantized_nodes", ["a\ud800"], "does not have the form of its field"),
        (
            "outputs",
            [{"name": "a\ud800", "dtype": "int8", "shape": []}],
            "does not have the form of its field",
        ),
        (
            "outputs",
            [{"name": "a", "dtype": "float32 x", "shape": []}],
            "does not have the form of its field",
        ),
        (
            "outputs",
            [{"name": "a", "dtype": "int8", "shape": ["\ud800"]}],
            "does not have the form of its field",
        ),
        ("outputs", [{"name": "a", "dtype": "int8", "shape": [-1]}], "Expected `int` >= 0"),
        ("profiles", [{"images": {"min": [2**31], "opt": [1], "max": [1]}}], "Expected `int` <= 2147483647"),
        ("layers", {"layers": 3}, "Expected `array`, got `int` - at `$.layers.layers`"),
        ("surplus", 1, "Object contains unknown field `surplus`"),
        ("profiles", [{"images": [1, 2, 3]}], "Expected `object`, got `array`"),
        ("inputs", [["x"]], "Expected `object`, got `array`"),
        ("layers", {}, "Object missing required field `layers`"),
        (
            "profiles",
            [shapes("images", [1, 3], [8, 3], [32, 3])],
            "'images' is 1x3,8x3,32x3, which fits no input",
        ),
        ("profiles", [shapes("images", [], [], [])], "the profile of 'images' is ,,, which fits no"),
        ("profiles", [shapes("other", [1], [8, 3], [8, 3])], "'other' is 1,8x3,8x3, which fits no input"),
        ("profiles", [shapes("other", [], [], [])], "the profile of 'other' is ,,, which fits no"),
    ],
)
def test_sidecar_names_the_wrong_field(path, field, value, problem):
    save_engine(path, PLAN, INFO)
    data = json.loads(sidecar_path(path).read_text())
    sidecar_path(path).write_text(json.dumps({**data, field: value}))
    with pytest.raises(EngineError) as caught:
        read_engine_info(path)
    message = str(caught.value)
    assert message.startswith(f"the sidecar '{path}.json' is not one that trtint8 wrote (")
    assert problem in message and "regex" not in message


def test_a_profile_of_an_input_of_unknown_rank(path):
    info = replace(
        INFO, inputs=(TensorSpec("x", "float32", ()),), profiles=({"x": ShapeRange((1, 3), (8, 3), (32, 3))},)
    )
    assert save_engine(path, PLAN, info) == read_engine_info(path)


def test_huge_sidecar(path, monkeypatch):
    save_engine(path, PLAN, INFO)
    monkeypatch.setattr(records, "MOST_BYTES", 1000)
    with pytest.raises(EngineError) as caught:
        read_engine_info(path)
    assert str(caught.value) == (
        f"the sidecar '{path}.json' cannot be read (it is larger than 1,000 bytes); build the engine again"
    )


def test_newer_sidecar(path):
    save_engine(path, PLAN, replace(INFO, format_version=2))
    with pytest.raises(EngineError, match=r"has format 2, and this trtint8 reads up to 1; upgrade trtint8$"):
        read_engine_info(path)


@pytest.mark.parametrize(
    "version",
    [
        "10.16.1.11",
        "8.6.1",
        "8.6.1.post1",
        "10.0.0b6",
        "8.5.2.2-1+cuda11.4",
        "1.2.0.54",
        "10.9.0.34+cuda12",
        "unknown",
    ],
)
def test_versions_of_tensorrt(path, version):
    save_engine(path, PLAN, replace(INFO, tensorrt_version=version))
    assert read_engine_info(path).tensorrt_version == version


@pytest.mark.parametrize("dtype", [kind for kind in ir.DataType if kind != ir.DataType.UNDEFINED], ids=str)
def test_every_element_type_of_a_model(path, dtype):
    spec = TensorSpec("x", dtype.numpy().name, ("unk__123", "floor(height/2 + 1)", "a\nb", None, 0))
    save_engine(path, PLAN, replace(INFO, outputs=(spec,)))
    assert read_engine_info(path).outputs == (spec,)


@pytest.mark.parametrize("plan", [PLAN[:-1], b"", b"\1" + PLAN[1:]])
def test_plan_that_is_not_the_one_described(path, plan):
    save_engine(path, PLAN, INFO)
    path.write_bytes(plan)
    with pytest.raises(EngineError) as caught:
        read_engine_info(path)
    assert str(caught.value) == (
        f"the engine '{path}' is not the one that its sidecar describes: it was truncated or replaced; copy "
        f"both files together, or build the engine again"
    )


def test_a_crash_between_the_two_files_leaves_the_old_ones(path, monkeypatch):
    old = save_engine(path, b"old plan", INFO)
    write = engine.write_atomically

    def crash_at_the_plan(target, data):
        if target.name == path.name:
            raise KeyboardInterrupt
        return write(target, data)

    monkeypatch.setattr(engine, "write_atomically", crash_at_the_plan)
    with pytest.raises(KeyboardInterrupt):
        save_engine(path, PLAN, INFO)
    assert (path.read_bytes(), read_engine_info(path)) == (b"old plan", old)


def test_no_sidecar_is_left_of_a_first_engine_that_was_not_written(path, monkeypatch):
    monkeypatch.setattr(engine, "hashlib", None)
    with pytest.raises(AttributeError):
        save_engine(path, PLAN, INFO)
    assert list(path.parent.iterdir()) == []


def test_folder_that_does_not_exist(tmp_path):
    with pytest.raises(OutputError, match="cannot write"):
        save_engine(tmp_path / "nope" / "model.engine", PLAN, INFO)


def test_layers_in_int8_are_counted_among_all_that_multiply_matrices():
    assert INFO.int8_layers == (1, 3)
    assert replace(INFO, float_nodes=()).int8_layers == (1, 2)
    assert replace(INFO, layers=None).int8_layers is None
    folded = Layer("__myl_Repl_myl0_1", "kgen", (), ("Float",), ("Int8",), ("fc",))
    without = replace(INFO, layers=LayerReport((*INFO.layers.layers, folded)))
    assert without.int8_layers == (1, 2)


def test_an_engine_says_on_one_line_what_it_is():
    assert repr(INFO) == (
        "<EngineInfo: TensorRT for RTX 1.7.1.116 for 8.6, 12.0, 1 of 3 weighted layers in INT8>"
    )
    full = replace(INFO, flavor="tensorrt", tensorrt_version="10.3", layers=None)
    assert repr(full) == "<EngineInfo: TensorRT 10.3 for 8.6, 12.0>"


def test_a_notebook_shows_what_is_known():
    page = INFO._repr_html_()
    for name, value in (
        ("input &#x27;images&#x27;", "float32 Nx3x?x16"),
        ("output &#x27;total&#x27;", "int64 scalar"),
        ("weighted layers in INT8", "1 of 3"),
        ("weight memory", "5.2 kB"),
        ("method", "entropy"),
    ):
        assert f">{name}</td>" in page and f">{value}</td>" in page


@pytest.mark.parametrize(
    "make",
    [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), lambda path: path.mkdir(), lambda path: None],
)
def test_what_is_no_file_is_refused_and_not_waited_for(path, make):
    save_engine(path, PLAN, INFO)
    path.unlink()
    make(path)
    for read in (read_engine_info, read_plan):
        with pytest.raises(EngineError, match=r"the engine '.*' cannot be read \("):
            read(path)
    with pytest.raises(OSError, match="engine"):
        sha256_of(path)


def test_a_plan_that_no_memory_holds(path):
    with path.open("wb") as stream:
        stream.truncate(1 << 39)
    with pytest.raises(EngineError, match="cannot be read"):
        read_plan(path)


ROWS_INFO = engine_info(table())


def test_an_engine_for_a_person():
    rows = dict(engine_rows(ROWS_INFO))
    assert rows["weighted layers in INT8"] == "1 of 2"
    assert rows["weight memory"] == "5.2 kB"
    unlisted = dict(engine_rows(dataclasses.replace(ROWS_INFO, layers=None)))
    assert unlisted["weighted layers in INT8"] == (
        "not listed: profiling verbosity was not 'detailed', the default, or this TensorRT lists none"
    )
    assert "kernels" not in unlisted


def kernels(*shape):
    conv = Layer("c", "correlation", ("Int8",), ("Int8",), ("Float",), ("conv",), (shape,), ((1,),), (shape,))
    name = "__myl_MulMinMaxRounCast_myl0_0"
    return LayerReport((Layer(name, "kgen", ("Float",), (), ("Int8",), (), (shape,), (), (shape,)), conv))


def test_kernels_by_part_and_their_bytes():
    rows = dict(engine_rows(dataclasses.replace(ROWS_INFO, layers=kernels(1, 1000), profiles=())))
    assert rows["kernels"] == "2: 1 INT8 compute, 1 requantization"
    assert rows["bytes per inference"] == "0.005 MB read, 0.005 MB written"
    large = dict(engine_rows(dataclasses.replace(ROWS_INFO, layers=kernels(8, 1_000_000), profiles=())))
    assert large["bytes per inference"] == "40.0 MB read, 40.0 MB written"


def test_kernels_of_one_of_several_profiles():
    quantize, conv = kernels(1, 1000).layers
    of_second = dataclasses.replace(conv, name="c [profile 1]_myl1_0")
    one, both = (
        dict(
            engine_rows(dataclasses.replace(ROWS_INFO, layers=LayerReport(layers), quantized_nodes=("conv",)))
        )
        for layers in ((quantize, conv), (quantize, conv, of_second))
    )
    assert both == {**one, "kernels and bytes": "those of profile 0"}
    assert both["kernels"] == "2: 1 INT8 compute, 1 requantization"


def test_nodes_in_a_part_that_is_compiled_as_a_whole():
    whole = Layer("{ForeignNode[a...b]}", "Myelin", (), (), (), ("a",), (), (), ())
    listed = dataclasses.replace(ROWS_INFO, layers=kernels(1, 1000), quantized_nodes=("conv", "/MatMul"))
    compiled = dataclasses.replace(listed, layers=LayerReport((*kernels(1, 1000).layers, whole)))
    assert (listed.int8_layers, compiled.int8_layers) == ((1, 2), None)
    assert dataclasses.replace(compiled, quantized_nodes=("conv",)).int8_layers == (1, 1)
    for info, text in (
        (listed, "1 of 2"),
        (compiled, "1 seen; TensorRT tells nothing of parts that it compiled"),
    ):
        rows = dict(engine_rows(info))
        assert rows["weighted layers in INT8"].startswith(text)
        assert rows["not in the engine's list"] == "/MatMul"


def test_bytes_that_are_not_known():
    dynamic = dataclasses.replace(ROWS_INFO, layers=kernels(-1, 1000))
    assert dict(engine_rows(dynamic))["bytes per inference"] == (
        "not known for dynamic shapes; 'trtint8 audit' gives them at the optimal ones"
    )
    static = dict(engine_rows(dataclasses.replace(dynamic, profiles=())))
    assert (
        static["bytes per inference"] == "not known, because the builder does not list all shapes and types"
    )


def test_tensors_without_a_range_are_named_up_to_a_number():
    missing = tuple((f"tensor{index}", "layer") for index in range(30))
    rows = engine_rows(dataclasses.replace(ROWS_INFO, missing_ranges=missing))
    assert ("tensors without a range", "30") in rows
    assert sum(value == "of layer 'layer'" for _, value in rows) == 20


def test_why_nodes_stay_in_float():
    nodes = (("a", "too small"), ("b", "recurrent"), ("c", "too small"))
    rows = engine_rows(dataclasses.replace(ROWS_INFO, float_nodes=nodes))
    start = rows.index(("nodes that stay in float", "3"))
    assert rows[start + 1 : start + 3] == [("  2 of them", "too small"), ("  1 of them", "recurrent")]
    assert not any(name == "nodes that stay in float" for name, _ in engine_rows(ROWS_INFO))


def test_the_table_is_the_one_that_the_engine_was_built_with(tmp_path):
    engine, table = tmp_path / "net.engine", CalibrationTable({"x": 2.0})
    info = EngineInfo("tensorrt", "8.6.1", ("8.6",), (), (), (), None, (), None, "")
    known = replace(info, table_fingerprint=table.fingerprint)
    assert read_engine_table(engine, known) is None
    table.save(tmp_path / "net.table.json")
    found = read_engine_table(engine, known)
    assert found is not None and found.amax == {"x": 2.0}
    assert read_engine_table(engine, info) is None
    CalibrationTable({"x": 3.0}).save(tmp_path / "net.table.json")
    with pytest.raises(EngineError, match="is not the table that the engine was built with; move it away"):
        read_engine_table(engine, known)


@pytest.fixture
def built(rtx, table, tmp_path):
    output, kept = tmp_path / "m.engine", ["*"]
    return build_rtx(table, output, keep_int8=kept)


def test_the_model_that_the_engine_was_built_from(built):
    info = read_engine_info(built.engine)
    assert load_engine_qdq(built.qdq_model, info).fingerprint == info.qdq_fingerprint
    assert load_engine_qdq(built.qdq_model, replace(info, qdq_fingerprint=None)).is_quantized


def test_another_model_in_its_place_is_refused(built, table, split, tmp_path):
    """It would be validated, deployed and reported on in the engine's place."""
    onnx = trtint8.quantize(DEMO_MODEL, table.override({"images": 0.5})).SerializeToString()
    for other in (onnx, None):
        if other is None:
            shutil.copy(DEMO_MODEL, built.qdq_model)
        else:
            built.qdq_model.write_bytes(other)
        for call in (
            lambda: trtint8.validate(built.engine, split.heldout_images[:8], reference=DEMO_MODEL),
            lambda: trtint8.deploy(built.engine, "cpp", tmp_path / "deployed"),
            lambda: trtint8.write_report([built.engine], tmp_path / "page.html"),
        ):
            with pytest.raises(EngineError, match=r"m\.qdq\.onnx' is not the Q/DQ model that the engine was"):
                call()
    assert not (tmp_path / "deployed").exists() and not (tmp_path / "page.html").exists()


def test_inputs_as_data_sources_want_them():
    assert input_specs((TensorSpec("x", "float16", (None, 3)),)) == (
        InputSpec("x", np.dtype(np.float16), (None, 3)),
    )
