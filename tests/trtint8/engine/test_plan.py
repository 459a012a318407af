import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from calibrators.errors import EngineError
from calibrators.tensorrt.flavor import Flavor
from trtint8.builder.build import Build
from trtint8.data import DEMO_MODEL
from trtint8.engine.file import EngineInfo
from trtint8.engine.plan import (
    check_capability,
    check_plan_version,
    check_version,
    inspect_plan,
    parse_inspection,
    plan_flavor,
    plan_version,
    without_metadata,
)
from trtint8.models.model import load_model, prepare
from trtint8.models.serialization import runnable


@pytest.fixture(scope="module")
def plan(rtx):
    prepared = prepare(load_model(DEMO_MODEL))
    with runnable(prepared.graph_model) as serialized:
        return Build(rtx, prepared.inputs).run(serialized).plan


def rtx_plan(size=200):
    return b"vtrt" + bytes(12) + size.to_bytes(8, "little") + bytes(size - 24)


def info(**changes):
    fields = {
        "flavor": "tensorrt",
        "tensorrt_version": "10.16.1.11",
        "compute_capabilities": ("8.9",),
        "inputs": (),
        "outputs": (),
        "profiles": (),
        "layers": None,
        "quantized_nodes": (),
        "weights_bytes": None,
        "model_fingerprint": "",
    }
    return EngineInfo(**{**fields, **changes})


def test_whose_plan_it_is():
    assert plan_flavor(rtx_plan(), "it") == "rtx"
    assert plan_flavor(b"ftrt" + bytes(100), "it") == "tensorrt"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "^it is empty; give a file"),
        (b"\x08\x08\x12\x07pytorch" + bytes(100), "^it is not a TensorRT engine"),
        (b"PK\x03\x04" + bytes(100), "^it is not a TensorRT engine"),
        (b"ftrt" + bytes(20), "^it is truncated"),
        (rtx_plan()[:-1], "^it is truncated"),
        (rtx_plan() + b"x", "^it is truncated"),
    ],
)
def test_what_is_no_plan(data, message):
    with pytest.raises(EngineError, match=message):
        plan_flavor(data, "it")


def versioned(*version, header=0):
    return b"ftrt" + header.to_bytes(4, "little") + bytes(16) + bytes(version) + bytes(100)


def test_the_version_in_a_plan():
    assert plan_version(versioned(8, 6, 1, 6)) == "8.6.1.6"
    assert plan_version(versioned(10, 16, 1, 11)) == "10.16.1.11"
    # Headers of another form are TensorRT's business.
    assert plan_version(versioned(8, 6, 1, 6, header=1)) is None
    assert plan_version(versioned(0, 0, 0, 0)) is None


def test_the_version_in_a_plan_that_tensorrt_wrote(rtx, plan):
    assert plan_version(plan) == rtx.version
    check_plan_version(plan, rtx, "it")
    # The library is what loads it, whatever version the package of the bindings has.
    check_plan_version(plan, Flavor("rtx", "1.6.0.1"), "it")
    other = plan[:24] + bytes((1, 6, 0, 1)) + plan[28:]
    with pytest.raises(
        EngineError, match=r"it was built with version 1\.6\.0\.1 and this is TensorRT for RTX"
    ):
        check_plan_version(other, rtx, "it")


@pytest.mark.parametrize("here", ["8.6.1", "8.6.1.6", "8.6.1.99"])
def test_a_plan_of_the_same_release(here):
    check_plan_version(versioned(8, 6, 1, 6), Flavor("tensorrt", here), "it")


@pytest.mark.parametrize("here", ["8.6.0", "8.5.1", "10.16.1.11"])
def test_a_plan_of_another_release(here, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorrt", None)  # whose library would be asked
    message = rf"^it was built with version 8\.6\.1\.6 and this is TensorRT {here}; install that version or"
    with pytest.raises(EngineError, match=message):
        check_plan_version(versioned(8, 6, 1, 6), Flavor("tensorrt", here), "it")


def with_metadata(metadata, plan):
    text = json.dumps(metadata).encode()
    return len(text).to_bytes(4, "little") + text + plan


@pytest.mark.parametrize("metadata", [{}, {"stride": 32, "task": "detect", "names": {"0": "person"}}])
def test_metadata_before_the_plan_is_passed_over(metadata):
    plan = versioned(8, 6, 1, 6)
    assert without_metadata(with_metadata(metadata, plan)) == plan
    assert plan_flavor(without_metadata(with_metadata(metadata, rtx_plan())), "it") == "rtx"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x02",
        rtx_plan(),
        versioned(8, 6, 1, 6),
        with_metadata({"a": 1}, b"no plan at all"),
        with_metadata([1, 2], versioned(8, 6, 1, 6)),
        b"\x04\x00\x00\x00{...ftrt" + bytes(100),
        b"\xff\xff\xff\xff" + bytes(100),
        (100_000).to_bytes(4, "little") + b"[" * 100_000 + versioned(8, 6, 1, 6),
    ],
)
def test_everything_else_stays_as_it_is(data):
    assert without_metadata(data) == data


@pytest.mark.parametrize("here", ["10.16.1.11", "10.16.1.99", "10.16.1"])
def test_the_same_release_runs_it(here):
    check_version(info(), Flavor("tensorrt", here), "it")


@pytest.mark.parametrize("here", ["10.16.2.1", "10.15.1.11", "8.6.1", "11.4.0.106"])
def test_another_release_does_not(here):
    with pytest.raises(EngineError, match=r"it was built with version 10\.16\.1\.11 and this is TensorRT"):
        check_version(info(), Flavor("tensorrt", here), "it")


def test_unless_it_was_built_to():
    portable = info(version_compatible=True)
    check_version(portable, Flavor("tensorrt", "10.17.0"), "it")
    with pytest.raises(EngineError, match="was built with version"):
        check_version(portable, Flavor("tensorrt", "10.15.0"), "it")


@pytest.mark.parametrize(
    ("built", "here", "runs", "more"),
    [
        (("8.0", "8.6"), "8.6", True, {"flavor": "rtx"}),
        (("8.0",), "8.9", True, {"flavor": "rtx"}),
        (("8.9",), "8.6", False, {"flavor": "rtx"}),
        (("8.0", "12.0"), "9.0", False, {"flavor": "rtx"}),
        (("12.0",), "12.1", True, {"flavor": "rtx"}),
        (("current",), "9.0", True, {"flavor": "rtx"}),
        (("8.9",), "8.9", True, {}),
        (("8.0",), "8.9", False, {}),
        (("8.0",), "8.9", True, {"hardware_compatibility": "ampere_plus"}),
        (("8.0",), "7.5", False, {"hardware_compatibility": "ampere_plus"}),
        (("8.0",), "9.0", True, {"hardware_compatibility": "ampere_plus"}),
        (("8.9",), "8.6", False, {"hardware_compatibility": "same_compute_capability"}),
        (("8.9",), "8.9", True, {"hardware_compatibility": "same_compute_capability"}),
    ],
)
def test_compute_capabilities(built, here, runs, more):
    origin = info(compute_capabilities=built, **more)
    if runs:
        check_capability(origin, here, "it")
    else:
        with pytest.raises(EngineError, match=f"built for compute capability .*, and this GPU has {here}"):
            check_capability(origin, here, "it")


def tensor(datatype):
    return {"Name": "t", "Dimensions": [1], "Format/Datatype": datatype}


def layer(name, inputs, outputs, **more):
    return {
        "Name": name,
        "LayerType": "CaskConvolution",
        "ParameterType": "Convolution",
        "Inputs": [tensor(text) for text in inputs],
        "Outputs": [tensor(text) for text in outputs],
        **more,
    }


INT8 = "Thirty-two wide channel vectorized row major Int8 format"


def report(*layers):
    return parse_inspection(json.dumps({"Layers": list(layers), "Bindings": ["x"]}))


def test_the_runtime_that_inspects_knows_the_plugins(monkeypatch):
    text = json.dumps({"Layers": [layer("a", [], [])]})
    inspector = SimpleNamespace(get_engine_information=lambda _format: text)
    engine = SimpleNamespace(create_engine_inspector=lambda: inspector)

    class Runtime:
        def __init__(self, _logger):
            self.knows = []

        def deserialize_cuda_engine(self, _plan):
            return engine if self.knows == ["mine.so"] else None

    def load(library, owner, _flavor, error):
        if library == "broken.so":
            raise error("broken")
        owner.knows.append(library)

    monkeypatch.setattr("trtint8.engine.plan.load_plugin_library", load)
    trt = SimpleNamespace(Runtime=Runtime, LayerInformationFormat=SimpleNamespace(JSON=1))
    flavor = SimpleNamespace(module=trt, has_version_compatible_plans=True)
    assert inspect_plan(flavor, None, b"plan") is None
    assert inspect_plan(flavor, None, b"plan", ["broken.so", "mine.so"]).layers[0].name == "a"


def test_a_convolution_in_int8():
    found = report(layer("conv1 + relu1", [INT8], [INT8], Weights={"Type": "Int8", "Count": 9}))
    assert found.precision_of("conv1") == found.precision_of("relu1") == "INT8"
    assert found.weighted_summary(["conv1", "other"]) == {"INT8": ["conv1"], "unknown": ["other"]}


def test_int8_in_and_float_out_is_int8():
    found = report(layer("conv1", [INT8], ["Row major linear FP32"], Weights={"Type": "Int8", "Count": 9}))
    assert found.precision_of("conv1") == "INT8"


@pytest.mark.parametrize(
    ("datatype", "precision"),
    [
        ("Row major linear FP32", "FP32"),
        ("Channel major FP16 format where channel % 8 == 0", "FP16"),
        ("Half", "FP16"),
        ("Float", "FP32"),
        ("BFloat16", "BF16"),
    ],
)
def test_other_precisions(datatype, precision):
    found = report(layer("conv1", [datatype], [datatype], Weights={"Type": "Float", "Count": 9}))
    assert found.precision_of("conv1") == ("FP32" if precision == "FP32" else found.layers[0].precision)
    assert report(layer("conv1", [datatype], [datatype])).precision_of("conv1") == precision


def test_nodes_stand_in_the_metadata_where_there_is_some():
    metadata = "[ONNX Layer: /a/Conv]\x1f[ONNX Layer: /a/Relu]"
    found = report(layer("fused", [INT8], [INT8], Metadata=metadata, Weights={"Type": "Int8", "Count": 1}))
    assert found.layers[0].onnx_nodes == ("/a/Conv", "/a/Relu")
    assert found.precision_of("/a/Conv") == "INT8"


def test_nodes_behind_an_if_with_a_constant_condition():
    # As the builder of TensorRT for RTX lists them.
    metadata = "[ONNX Layer: c2 | if2 (If) | if (If)]\x1f[ONNX Layer: a_out_dq | if2 (If) | if (If)]"
    found = report(layer("c2_myl0_4", [INT8], [INT8], Metadata=metadata))
    assert found.weighted_summary(["c2", "a"]) == {"INT8": ["c2"], "unknown": ["a"]}


DYNAMIC = "N/A due to dynamic shapes"


@pytest.mark.parametrize(
    ("tactic", "precision"),
    [
        ("sm80_xmma_fprop_implicit_gemm_interleaved_i8i8_i8i32_f32_nchw_vect_c_32kcrs_vect_c_32", "INT8"),
        ("sm80_xmma_gemm_i8i8_f32i32_f32_tn_n_tilesize128x128x64", "INT8"),
        ("sm80_xmma_fprop_implicit_gemm_interleaved_i8f32_i8i32_f32_nchw_vect_c_32kcrs_vect_c_32", "INT8"),
        ("trt_ampere_int8_i8816cudnn_int8_128x128_ldg16_relu_interior_nt_v1", "INT8"),
        ("sm80_xmma_fprop_implicit_gemm_f16f16_f16f16_f16_nhwckrsc_nhwc_tilesize128x128x32", "FP16"),
        ("sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc", "BF16"),
        ("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc", "FP32"),
        ("sm80_xmma_fprop_implicit_gemm_indexed_wo_smem_f32f32_f32f32_f32_nchwkcrs_nchw", "FP32"),
        ("trt_volta_h884cudnn_256x64_ldg8_relu_exp_small_nhwc_tn_v1", "FP16"),
        ("0x0000000000000000", None),
    ],
)
def test_layers_of_dynamic_engines_are_known_by_their_tactic(tactic, precision):
    found = report(layer("conv1 + relu1", [DYNAMIC], [DYNAMIC], TacticName=tactic))
    assert found.precision_of("conv1") == precision


def test_weights_tell_the_type_where_neither_tensors_nor_tactic_do():
    for kind, precision in (("Int8", "INT8"), ("Half", "FP16"), ("Float", "FP32")):
        found = report(layer("conv1", [DYNAMIC], [DYNAMIC], Weights={"Type": kind, "Count": 9}))
        assert found.precision_of("conv1") == precision


def test_what_tensorrt_itself_says_of_the_demo_model():
    """The inspector's text on the engine that TensorRT 8.6.0 calibrated and built on a GPU, byte by byte."""
    text = (Path(__file__).with_name("golden") / "inspector_8.6.0.json").read_text()
    found = parse_inspection(text)
    weighted = [
        *("/stem/conv/Conv", "/block1/conv1/Conv", "/block1/conv2/Conv", "/block2/shortcut/conv/Conv"),
        *("/block2/conv1/Conv", "/block2/conv2/Conv", "/block3/conv1/Conv", "/block3/conv2/Conv", "/fc/Gemm"),
    ]
    assert found.weighted_summary(weighted) == {"INT8": weighted}
    assert found.layers[1].onnx_nodes == ("/stem/conv/Conv", "/stem/relu/Relu")
    assert found.reformats == 1


def test_a_part_that_is_compiled_as_a_whole_tells_no_types():
    name = "{ForeignNode[w + (Unnamed Layer* 7) [Shuffle]...(Unnamed Layer* 9) [ElementWise]]}"
    found = report(layer("conv1", [INT8], [INT8]), {"LayerType": "Myelin", "Name": name})
    assert found.compiles_parts
    assert found.layers[1].onnx_nodes == ()
    assert found.weighted_summary(["conv1", "/a/MatMul"]) == {"INT8": ["conv1"], "unknown": ["/a/MatMul"]}
    assert not report(layer("conv1", [INT8], [INT8])).compiles_parts


def test_types_that_are_told_count_more_than_a_tactic():
    found = report(layer("conv1", ["Half"], ["Half"], TacticName="sm80_xmma_gemm_i8i8_f32i32"))
    assert found.precision_of("conv1") == "FP16"


def test_reformats_are_counted():
    copy = layer("Reformatting CopyNode", ["Float"], [INT8], LayerType="Reformat", ParameterType="Reformat")
    assert report(copy, layer("conv1", [INT8], [INT8]), copy).reformats == 2


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "[]",
        '{"Layers": []}',
        '{"Layers": ["conv1", "conv2"]}',
        '{"Layers": 1.5}',
        "[" * 100_000,
    ],
)
def test_an_inspector_that_tells_nothing(text):
    assert parse_inspection(text) is None


@pytest.mark.parametrize("tensors", [None, 1.5, [[]], ["x"]])
def test_tensors_that_are_not_described_have_no_type(tensors):
    found = parse_inspection(json.dumps({"Layers": [{"Name": "conv1", "Inputs": tensors}]}))
    assert found.layers[0].inputs == ()


def test_shapes():
    weights = {"Type": "Int8", "Count": 432}
    found = report(layer("conv1", [INT8], [INT8, INT8], Weights=weights)).layers[0]
    assert (found.input_shapes, found.constant_shapes, found.output_shapes) == (
        ((1,),),
        ((432,),),
        ((1,), (1,)),
    )


def test_shapes_that_are_not_listed():
    unknown = {"Name": "t", "Format/Datatype": INT8}
    found = report(
        {"Name": "a", "LayerType": "Scale", "Inputs": [unknown], "Outputs": [tensor(INT8), unknown]}
    )
    assert (found.layers[0].input_shapes, found.layers[0].output_shapes) == ((), ())
    assert found.layers[0].inputs == ("Int8",)


class Runtime:
    """TensorRT's runtime, which takes no plan and has no attributes but those of its version."""

    __slots__ = ("logger",)

    def __init__(self, logger):
        self.logger = logger

    def deserialize_cuda_engine(self, _plan):
        return None


class RuntimeWithCode(Runtime):
    __slots__ = ("engine_host_code_allowed",)

    def deserialize_cuda_engine(self, _plan):
        assert self.engine_host_code_allowed is True


@pytest.mark.parametrize(("runtime", "has_code"), [(Runtime, False), (RuntimeWithCode, True)])
def test_code_in_a_plan_runs_where_plans_can_have_it(runtime, has_code):
    flavor = SimpleNamespace(module=SimpleNamespace(Runtime=runtime), has_version_compatible_plans=has_code)
    assert inspect_plan(flavor, None, b"a plan") is None
