"""Build options: from the command line, checked against a TensorRT, and on TensorRT for RTX for real."""

import os
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from calibrators.cuda import gpu_problem
from calibrators.errors import BuildError, GpuUnavailableError, OutputError, UnsupportedError
from calibrators.tensorrt import flavor
from calibrators.tensorrt.flavor import Flavor
from calibrators.tensorrt.messages import BuildLog, collected, shared_logger
from tests.trtint8.builder.building import build as compute_capabilities_build
from tests.trtint8.onnx_models import conv_relu_conv
from trtint8.builder.build import Build, _check_dla
from trtint8.builder.config import (
    BuildOptions,
    _check_dla_core,
    attach_timing_cache,
    check_options,
    configure,
    load_plugins,
    nearest_capability,
    resolve_capabilities,
    save_timing_cache,
)
from trtint8.data import DEMO_MODEL
from trtint8.engine.profiles import ShapeRange
from trtint8.models.model import load_model, prepare
from trtint8.models.serialization import runnable
from trtint8.quantization.targets import TARGETS

#: A real library that exports nothing of TensorRT, as one does that registers its plugins where it is loaded.
REGISTERS_ITSELF = np.linalg._umath_linalg.__file__


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bf16": True}, r"has no BF16 switch; use TensorRT 9\.0 to 10\.x"),
        ({"layer_precisions": {"*": "fp32"}}, r"precision of single layers; use TensorRT 8\.5 to 10\.x"),
        ({"precision_constraints": "obey"}, r"precision of single layers; use TensorRT 8\.5 to 10\.x"),
        ({"io_types": {"x": "int8"}}, r"types of inputs and outputs to choose; use TensorRT 8\.5 to 10\.x"),
        ({"calibrate_before_fusion": True}, r"has no calibration; use TensorRT 8\.5 to 10\.x"),
        ({"timing_cache": "x"}, "has no timing cache"),
        (
            {"hardware_compatibility": "ampere_plus"},
            "has no hardware compatibility, but compute capabilities",
        ),
        ({"version_compatible": True}, "has no version compatibility, because it comes without the lean"),
        ({"hardware_compatibility": "same_compute_capability"}, r"use TensorRT 10\.9 or newer"),
    ],
)
def test_what_rtx_lacks(rtx, options, message):
    with pytest.raises(UnsupportedError, match=message):
        check_options(rtx, BuildOptions(**options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimization_level": 6}, "optimization_level is 6; give an integer from 0 to 5"),
        ({"optimization_level": 2.5}, r"optimization_level is 2\.5; give an integer from 0 to 5"),
        ({"optimization_level": True}, "optimization_level is True; give an integer from 0 to 5"),
        ({"max_aux_streams": -1}, "max_aux_streams is -1; give an integer from 0 to 2147483647"),
        ({"max_aux_streams": 2**31}, "max_aux_streams is 2147483648; give an integer from 0 to 2147483647"),
        (
            {"memory_pools": {"workspace": -1}},
            "the limit of the memory pool 'workspace' is -1; give an integer",
        ),
        (
            {"memory_pools": {"workspace": 1e9}},
            r"'workspace' is 1000000000\.0; give an integer from 0 to 1844",
        ),
        ({"memory_pools": {"workspace": 2**64}}, "'workspace' is 18446744073709551616; give an integer"),
        (
            {"shape_values": {"x": ShapeRange((1,), (2,), (2**63,))}},
            "shape_values of input 'x' has 9223372036854775808, which no integer of 64 bits holds",
        ),
        (
            {"shape_values": {"x": (1, 2, 3)}},
            r"of input 'x' is \(1, 2, 3\); give trtint8\.ShapeRange\(min, opt",
        ),
        ({"plugins": ["missing.so"]}, "there is no plugin library 'missing.so'"),
    ],
)
def test_values_out_of_range(rtx, options, message):
    with pytest.raises(BuildError, match=message):
        check_options(rtx, BuildOptions(**options))


def test_the_largest_values_are_taken(rtx):
    values = ShapeRange((-(2**63),), (-1,), (2**63 - 1,))
    check_options(
        rtx,
        BuildOptions(
            memory_pools={"workspace": 2**64 - 1}, max_aux_streams=2**31 - 1, shape_values={"x": values}
        ),
    )


def test_a_timing_cache_that_cannot_be_written(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tensorrt", types.SimpleNamespace(ITimingCache=object))
    options = BuildOptions(timing_cache=tmp_path / "no" / "t.cache")
    with pytest.raises(OutputError, match=r"cannot write '.*t\.cache': the folder '.*no' does not exist"):
        check_options(Flavor("tensorrt", "10.3.0"), options)


@pytest.mark.skipif(gpu_problem() is None, reason="this machine has a GPU")
def test_refitting_needs_a_gpu(rtx):
    with pytest.raises(GpuUnavailableError, match="building a refittable engine with TensorRT for RTX"):
        check_options(rtx, BuildOptions(refit=True))


@pytest.mark.parametrize(
    ("flag", "options"),
    [
        ("SPARSE_WEIGHTS", {"sparse_weights": True}),
        ("REFIT", {"refit": True}),
        ("STRIP_PLAN", {"strip_plan": True}),
        ("VERSION_COMPATIBLE", {"version_compatible": True}),
        ("TF32", {"tf32": False}),
    ],
)
def test_flags_that_this_tensorrt_lacks(rtx, flag, options):
    module = types.SimpleNamespace(**vars(rtx.module))
    members = {name: kind for name, kind in rtx.module.BuilderFlag.__members__.items() if name != flag}
    module.BuilderFlag = types.SimpleNamespace(__members__=members)
    builder = module.Builder(shared_logger(rtx.module))
    config = builder.create_builder_config()
    with pytest.raises(UnsupportedError, match=f"no builder flag {flag}; leave out the option"):
        configure(module, rtx, builder, config, BuildOptions(**options), int8=True)
    configure(module, rtx, builder, config, BuildOptions(), int8=True)


def build(rtx, profiles=(), **options):
    model = prepare(load_model(DEMO_MODEL))
    with runnable(model.graph_model) as serialized:
        build = Build(rtx, model.inputs, profiles, options=BuildOptions(**options))
        return build.run(serialized)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"optimization_level": 0},
        {"memory_pools": {"workspace": 300_000_000, "TACTIC_DRAM": 1 << 28, "tactic_shared_memory": 1 << 20}},
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
        (
            {"memory_pools": {"tactic_dram": 4_000_000_000}},
            BuildError,
            r"refuses 4000000000 bytes for the memory pool 'tactic_dram' \(Param.*has_single_bit.*\); "
            "give another size, for tactic_dram and the pools of the DLA a power of two from 4096 on",
        ),
        (
            {"memory_pools": {"dla_local_dram": 1 << 20}},
            BuildError,
            r"refuses 1048576 bytes for the memory pool 'dla_local_dram' \(Setting DLA memory pool size on ",
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


def test_only_libraries_that_give_creators_are_stored_in_a_plan(rtx, monkeypatch):
    builder = rtx.module.Builder(shared_logger(rtx.module))
    config = builder.create_builder_config()
    gives = {"self.so": False, "one.so": True, "two.so": True}
    monkeypatch.setattr("trtint8.builder.config.load_plugin_library", lambda library, *_: gives[library])
    load_plugins(rtx, builder, config, BuildOptions(plugins=["self.so", "one.so"]))
    assert config.plugins_to_serialize == []
    load_plugins(rtx, builder, config, BuildOptions(plugins=["one.so", "two.so"], version_compatible=True))
    absolute = [str(Path(name).absolute()) for name in ("one.so", "two.so")]
    assert sorted(config.plugins_to_serialize) == absolute
    words = "'self.so' cannot be stored in a version-compatible plan: it exports neither getCreators nor"
    with pytest.raises(BuildError, match=words):
        load_plugins(rtx, builder, config, BuildOptions(plugins=["self.so"], version_compatible=True))


def test_tensorrt_for_rtx_builds_for_no_dla(rtx):
    words = "there is no DLA core 0: TensorRT for RTX .* builds for GPUs only, and the TensorRT of a Jetson"
    with pytest.raises(UnsupportedError, match=words):
        build(rtx, dla_core=0)


@pytest.mark.parametrize(
    ("core", "cores", "words"),
    [
        (2, 2, "there is no DLA core 2: this machine has 2, numbered from 0; leave dla_core out"),
        (0, 0, "there is no DLA core 0: this machine has none; leave dla_core out"),
    ],
)
def test_dla_cores_that_a_machine_lacks(core, cores, words):
    with pytest.raises(UnsupportedError, match=words):
        _check_dla_core(core, cores)
    _check_dla_core(1, 2)


def test_the_dla_takes_fixed_shapes():
    fixed, open_ = ShapeRange(*[(1, 1, 8, 8)] * 3), ShapeRange((1, 1, 8, 8), (2, 1, 8, 8), (2, 1, 8, 8))
    _check_dla(BuildOptions(dla_core=0), [{"images": fixed}])
    _check_dla(BuildOptions(), [{"images": open_}])
    with pytest.raises(
        BuildError, match="the DLA takes fixed shapes only, and the profile of input 'images'"
    ):
        _check_dla(BuildOptions(dla_core=0), [{"images": fixed}, {"images": open_}])


def test_builds_take_a_library_that_registers_its_plugins_itself(rtx):
    assert build(rtx, plugins=[REGISTERS_ITSELF]).plan.startswith(b"vtrt")


def test_without_verbosity_there_is_no_report(rtx):
    assert build(rtx, profiling_verbosity="none").report is None


@pytest.mark.parametrize("option", ["profiling_verbosity", "precision_constraints", "hardware_compatibility"])
def test_misspelt_options_of_the_build_are_refused(option):
    with pytest.raises(UnsupportedError, match=f"^{option} is 'no'; use one of "):
        BuildOptions(**{option: "no"})


def test_layers_that_may_not_run_on_the_gpu_need_a_dla():
    with pytest.raises(UnsupportedError, match=r"^gpu_fallback=False needs a DLA"):
        BuildOptions(gpu_fallback=False)
    assert not BuildOptions(gpu_fallback=False, dla_core=0).gpu_fallback


def test_a_single_name_is_not_its_letters():
    options = BuildOptions(plugins="own.so", tactic_sources="cudnn", io_formats={"images": "LINEAR"})
    assert options.plugins == ("own.so",)
    assert options.tactic_sources == ("cudnn",)
    assert options.io_formats == {"images": ("LINEAR",)}


@pytest.mark.parametrize("option", ["memory_pools", "shape_values", "io_formats", "io_types"])
def test_what_is_no_dict_is_refused(option):
    with pytest.raises(UnsupportedError, match=f"^{option} is 'bad'; give a dict from "):
        BuildOptions(**{option: "bad"})


@pytest.mark.parametrize("device", ["x", "0", -1, True, 1.0, None])
def test_a_device_is_the_index_of_a_gpu(device):
    with pytest.raises(UnsupportedError) as caught:
        BuildOptions(device=device)
    assert str(caught.value) == f"device is {device!r}; give the index of a GPU, such as 0"
    assert BuildOptions(device=np.int64(3)).device == 3


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
    builder = rtx.module.Builder(shared_logger(rtx.module))
    config = builder.create_builder_config()
    with (
        collected(rtx.module) as log,
        pytest.raises(BuildError, match=r"notes\.txt' is not a timing cache of this TensorRT and GPU"),
    ):
        attach_timing_cache(config, path, log)
    assert path.read_bytes() == b"my notes " * 50


def test_a_timing_cache_that_is_a_folder(config, tmp_path):
    with pytest.raises(BuildError, match="cannot be read: Is a directory"):
        attach_timing_cache(config, tmp_path, BuildLog())


def test_a_timing_cache_that_cannot_be_locked(config, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(BuildError, match=r"t\.cache' cannot be locked with '.*t\.cache\.lock': "):
        attach_timing_cache(config, tmp_path / "file" / "t.cache", BuildLog())


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_a_timing_cache_that_is_no_file_is_refused_and_not_waited_for(config, tmp_path, make):
    make(tmp_path / "t.cache")
    with pytest.raises(BuildError, match=r"the timing cache '.*t\.cache' cannot be read"):
        attach_timing_cache(config, tmp_path / "t.cache", BuildLog())


def test_a_link_in_the_place_of_the_lock_is_not_followed(config, tmp_path):
    (tmp_path / "other").write_text("kept")
    (tmp_path / "t.cache.lock").symlink_to("other")
    with pytest.raises(BuildError, match=r"t\.cache\.lock': it is a symbolic link"):
        attach_timing_cache(config, tmp_path / "t.cache", BuildLog())
    assert (tmp_path / "other").read_text() == "kept"


AMPERE_ON = ("8.0", "8.6", "8.9", "12.0", "12.1")


def test_chosen_capabilities(rtx):
    engine = compute_capabilities_build(
        conv_relu_conv(), rtx, compute_capabilities=["SM86", "12.0", "8.6", "sm_89"]
    )
    assert engine.compute_capabilities == ("8.6", "12.0", "8.9")
    assert engine.report.precision_of("first") == "INT8"


@pytest.mark.parametrize("name", ["9.0", "fast", "7.5"])
def test_capabilities_that_cannot_be_built_for(rtx, name):
    with pytest.raises(UnsupportedError, match=f"{rtx} .* {name}; choose among 8.0, 8.6, 8.9, 12.0, 12.1"):
        resolve_capabilities(rtx, [name])


def test_default_capabilities(rtx, monkeypatch):
    monkeypatch.setattr("trtint8.builder.config.gpu_problem", lambda: "there is none")
    assert resolve_capabilities(rtx, []) == AMPERE_ON
    with pytest.raises(
        UnsupportedError, match=r"the current GPU, because there is none; choose among 8.0, 8.6"
    ):
        resolve_capabilities(rtx, ["current"])
    monkeypatch.setattr("trtint8.builder.config.gpu_problem", lambda: None)
    monkeypatch.setattr("trtint8.builder.config.compute_capability", lambda _device: "8.9")
    assert resolve_capabilities(rtx, []) == ("current",)
    assert resolve_capabilities(rtx, ["Current"]) == ("current",)


@pytest.mark.parametrize("wanted", [[], ["current"], ["8.6", "current"]])
def test_a_gpu_of_a_capability_that_cannot_be_built_for(rtx, monkeypatch, wanted):
    capabilities = {0: "8.9", 1: "7.5"}
    monkeypatch.setattr("trtint8.builder.config.gpu_problem", lambda: None)
    monkeypatch.setattr("trtint8.builder.config.compute_capability", lambda device: capabilities[device])
    assert "current" in resolve_capabilities(rtx, wanted)
    with pytest.raises(UnsupportedError, match=f"{rtx} .* 7.5; choose among 8.0, 8.6, 8.9, 12.0, 12.1"):
        resolve_capabilities(rtx, wanted, 1)


def test_tensorrt_has_no_choice_of_capabilities():
    tensorrt = flavor.Flavor("tensorrt", "10.1")
    assert resolve_capabilities(tensorrt, []) == ()
    with pytest.raises(
        UnsupportedError, match=r"^TensorRT 10\.1 builds for the GPU it runs on, .*\(8\.6\) cannot be"
    ):
        resolve_capabilities(tensorrt, ["8.6"])
    assert nearest_capability(tensorrt, "8.6") is None


@pytest.mark.parametrize(
    ("wanted", "nearest"),
    [("7.5", "8.0"), ("8.0", "8.0"), ("8.7", "8.6"), ("8.9", "8.9"), ("9.0", "8.9"), ("12.0", "12.0")],
)
def test_the_nearest_capability(rtx, wanted, nearest):
    assert nearest_capability(rtx, wanted) == nearest


def test_models_are_quantized_for_what_engines_are_built_for(rtx):
    assert TARGETS["rtx"].capabilities == AMPERE_ON
    assert resolve_capabilities(rtx, AMPERE_ON) == AMPERE_ON
