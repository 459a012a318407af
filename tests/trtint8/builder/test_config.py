"""Build options: from the command line, checked against a TensorRT, and on TensorRT for RTX for real."""

import sys
import types
from pathlib import Path

import numpy as np
import pytest

from calibrators.cuda import gpu_problem
from calibrators.errors import BuildError, GpuUnavailableError, OutputError, UnsupportedError
from calibrators.tensorrt.flavor import Flavor
from calibrators.tensorrt.messages import shared_logger
from trtint8.builder.build import _check_dla, build_engine
from trtint8.builder.config import _check_dla_core, check_options, configure, load_plugins
from trtint8.builder.options import BuildOptions
from trtint8.data import DEMO_MODEL
from trtint8.engine.profiles import ShapeRange
from trtint8.models.model import load_model, prepare
from trtint8.models.serialization import runnable

#: A real library that exports nothing of TensorRT, as one does that registers its plugins where it is loaded.
REGISTERS_ITSELF = np.linalg._umath_linalg.__file__


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fp16": True}, "has no FP16 switch"),
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
        return build_engine(
            serialized,
            model.inputs,
            flavor=rtx,
            profiles=profiles,
            options=BuildOptions(**options),
            progress=False,
        )


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
    model = prepare(load_model(DEMO_MODEL))
    with runnable(model.graph_model) as serialized:
        options = BuildOptions(profiling_verbosity="none")
        built = build_engine(serialized, model.inputs, flavor=rtx, options=options, progress=False)
    assert built.report is None
