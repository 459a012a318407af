"""Build options: from the command line, checked against a TensorRT, and on TensorRT for RTX for real."""

import argparse

import pytest

from calibrators.cuda import gpu_problem
from calibrators.errors import BuildError, GpuUnavailableError, UnsupportedError
from calibrators.tensorrt import flavor
from calibrators.tensorrt.messages import BuildLog, shared_logger
from trtint8.builder.build import build_engine
from trtint8.builder.config import check_options
from trtint8.builder.options import BuildOptions
from trtint8.builder.precisions import data_type, match_layers
from trtint8.builder.timing_cache import attach_timing_cache, save_timing_cache
from trtint8.cli.build_options import add_build_options, build_options_from, profiles_from
from trtint8.data import DEMO_MODEL
from trtint8.engine.profiles import ShapeRange
from trtint8.models.model import load_model, prepare, runnable


@pytest.fixture(scope="module")
def rtx():
    return flavor.load("rtx")


def parsed(*arguments):
    parser = argparse.ArgumentParser()
    add_build_options(parser)
    return build_options_from(parser.parse_args(arguments))


def test_nothing_given_leaves_everything_to_tensorrt():
    assert parsed() == BuildOptions()


def test_every_option():
    assert parsed(
        *(
            "--no-fp16",
            "--bf16",
            "--no-tf32",
            "--layer-precision",
            "/a=b/Conv=fp16",
            "--output-type",
            "x*=fp32",
        ),
        *(
            "--precision-constraints",
            "obey",
            "--io-type",
            "images=int8",
            "--io-format",
            "images=LINEAR,CHW32",
        ),
        *(
            "--calibrate-before-fusion",
            "--memory-pool",
            "workspace=1.5G",
            "--memory-pool",
            "tactic_dram=512MB",
        ),
        *(
            "--timing-cache",
            "t.cache",
            "--optimization-level",
            "3",
            "--max-aux-streams",
            "2",
            "--dla-core",
            "1",
        ),
        *("--no-gpu-fallback", "--hardware-compatibility", "ampere_plus", "--version-compatible"),
        *(
            "--profiling-verbosity",
            "none",
            "--sparse-weights",
            "--refit",
            "--strip-plan",
            "--tactic-source",
            "jit_convolutions",
            "--plugin",
            "p.so",
        ),
    ) == BuildOptions(
        fp16=False,
        bf16=True,
        tf32=False,
        layer_precisions={"/a=b/Conv": "fp16"},
        output_types={"x*": "fp32"},
        precision_constraints="obey",
        io_types={"images": "int8"},
        io_formats={"images": ["LINEAR", "CHW32"]},
        calibrate_before_fusion=True,
        memory_pools={"workspace": 3 << 29, "tactic_dram": 512 << 20},
        timing_cache="t.cache",
        optimization_level=3,
        max_aux_streams=2,
        dla_core=1,
        gpu_fallback=False,
        hardware_compatibility="ampere_plus",
        version_compatible=True,
        sparse_weights=True,
        refit=True,
        strip_plan=True,
        tactic_sources=["jit_convolutions"],
        profiling_verbosity="none",
        plugins=("p.so",),
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--layer-precision", "conv1"), "--layer-precision: 'conv1' is not NAME=VALUE"),
        (("--io-type", "=int8"), "--io-type: '=int8' is not NAME=VALUE"),
        (
            ("--memory-pool", "workspace=big"),
            "--memory-pool: 'big' is not a size; write for example 512M or 1G",
        ),
    ],
)
def test_malformed_options(arguments, message):
    with pytest.raises(BuildError, match=message):
        parsed(*arguments)


def test_an_input_named_again_begins_another_profile():
    one, two = ShapeRange((1, 3), (2, 3), (4, 3)), ShapeRange((8, 3), (8, 3), (8, 3))
    mask = ShapeRange((1,), (2,), (4,))
    assert profiles_from(["x=1x3,2x3,4x3", "mask=1,2,4", "x=8x3,8x3,8x3"]) == [
        {"x": one, "mask": mask},
        {"x": two},
    ]
    assert profiles_from([]) == []


def test_patterns_of_layers():
    names = ["/a/Conv", "/b/Conv", "/b/Relu"]
    assert match_layers(names, {"*": "fp16", "/b/*": "fp32", "/b/Relu": "int8"}) == {
        "/a/Conv": "fp16",
        "/b/Conv": "fp32",
        "/b/Relu": "int8",
    }
    with pytest.raises(
        BuildError, match=r"the pattern '/c/\*' matches no layer of the network; it has for exam"
    ):
        match_layers(names, {"/c/*": "fp16"})


def test_precision_names(rtx):
    assert data_type(rtx.module, "fp16") == rtx.module.DataType.HALF
    with pytest.raises(
        UnsupportedError, match="there is no precision 'fp12' here; use one of fp32, fp16, bf16"
    ):
        data_type(rtx.module, "fp12")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fp16": True}, "has no FP16 switch"),
        ({"bf16": True}, r"has no BF16 switch; use TensorRT 9\.0 to 10\.x"),
        ({"layer_precisions": {"*": "fp32"}}, r"precision of single layers; use TensorRT 8\.5 to 10\.x"),
        ({"io_types": {"x": "int8"}}, r"types of inputs and outputs to choose; use TensorRT 8\.5 to 10\.x"),
        ({"calibrate_before_fusion": True}, r"has no calibration; use TensorRT 8\.5 to 10\.x"),
        ({"timing_cache": "x"}, "has no timing cache"),
        (
            {"hardware_compatibility": "ampere_plus"},
            "has no hardware compatibility, but compute capabilities",
        ),
        ({"hardware_compatibility": "same_compute_capability"}, r"use TensorRT 10\.16 or newer"),
    ],
)
def test_what_rtx_lacks(rtx, options, message):
    with pytest.raises(UnsupportedError, match=message):
        check_options(rtx, BuildOptions(**options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimization_level": 6}, "optimization_level is 6; give 0 to 5"),
        ({"plugins": ["missing.so"]}, "there is no plugin library 'missing.so'"),
    ],
)
def test_values_out_of_range(rtx, options, message):
    with pytest.raises(BuildError, match=message):
        check_options(rtx, BuildOptions(**options))


@pytest.mark.skipif(gpu_problem() is None, reason="this machine has a GPU")
def test_refitting_needs_a_gpu(rtx):
    with pytest.raises(GpuUnavailableError, match="building a refittable engine with TensorRT for RTX"):
        check_options(rtx, BuildOptions(refit=True))


def build(rtx, profiles=(), **options):
    model = prepare(load_model(DEMO_MODEL))
    with runnable(model.graph_model) as serialized:
        return build_engine(
            serialized,
            model.inputs,
            flavor=rtx,
            profiles=profiles,
            options=BuildOptions(**options),
            progress=False,
        )


@pytest.mark.parametrize(
    "options",
    [
        {"optimization_level": 0},
        {"memory_pools": {"workspace": 1 << 28}},
        {"tf32": False, "sparse_weights": True},
        {"tactic_sources": ["edge_mask_convolutions"]},
        {"tactic_sources": []},
        {"max_aux_streams": 0},
    ],
)
def test_real_builds_take_them(rtx, options):
    assert build(rtx, **options).plan.startswith(b"vtrt")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"memory_pools": {"attic": 1}},
            UnsupportedError,
            "has no memory pool 'attic'; it has workspace, dla_",
        ),
        ({"tactic_sources": ["nowhere"]}, UnsupportedError, "has no tactic source 'nowhere'; it has "),
        (
            {"io_formats": {"pictures": ["LINEAR"]}},
            BuildError,
            "'pictures' is no input or output of the network",
        ),
        ({"io_formats": {"images": ["ROUND"]}}, UnsupportedError, "has no format 'ROUND'; it has linear"),
    ],
)
def test_real_builds_refuse_them(rtx, options, error, message):
    with pytest.raises(error, match=message):
        build(rtx, **options)


@pytest.mark.skipif(gpu_problem() is None, reason="this machine has a GPU")
def test_there_is_no_dla_here(rtx):
    with pytest.raises(UnsupportedError, match="there is no DLA core 0"):
        build(rtx, [{"images": ShapeRange(*[(1, 1, 8, 8)] * 3)}], dla_core=0)


def test_the_dla_takes_fixed_shapes(rtx):
    with pytest.raises(
        BuildError, match="the DLA takes fixed shapes only, and the profile of input 'images'"
    ):
        build(rtx, dla_core=0)


def test_without_verbosity_there_is_no_report(rtx):
    model = prepare(load_model(DEMO_MODEL))
    with runnable(model.graph_model) as serialized:
        options = BuildOptions(profiling_verbosity="none")
        built = build_engine(serialized, model.inputs, flavor=rtx, options=options, progress=False)
    assert built.report is None


# The timing cache's file. TensorRT for RTX has the class, though it makes no use of it, and says so.

no_ops = pytest.mark.filterwarnings("ignore:Use Deprecated in TensorRT-RTX:DeprecationWarning")


@pytest.fixture
def config(rtx):
    builder = rtx.module.Builder(shared_logger(rtx.module))
    made = builder.create_builder_config()
    yield made
    del made, builder


@no_ops
def test_a_timing_cache_is_made_and_extended(config, tmp_path):
    path = tmp_path / "timing.cache"
    attach_timing_cache(config, path, BuildLog())
    assert not path.exists()
    save_timing_cache(config, path)
    first = path.read_bytes()
    assert first
    save_timing_cache(config, path)
    assert path.read_bytes() == first


@no_ops
def test_a_file_that_tensorrt_complains_of_is_refused_and_left_alone(rtx, tmp_path):
    path = tmp_path / "notes.txt"
    path.write_bytes(b"my notes " * 50)
    log = BuildLog()
    logger = shared_logger(rtx.module)
    builder = rtx.module.Builder(logger)
    config = builder.create_builder_config()
    logger.log_to(log)
    try:
        with pytest.raises(BuildError, match=r"notes\.txt' is not a timing cache of this TensorRT and GPU"):
            attach_timing_cache(config, path, log)
    finally:
        logger.log_to(None)
    assert path.read_bytes() == b"my notes " * 50


def test_a_timing_cache_that_is_a_folder(config, tmp_path):
    with pytest.raises(BuildError, match="cannot be read: Is a directory"):
        attach_timing_cache(config, tmp_path, BuildLog())
