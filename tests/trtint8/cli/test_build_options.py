"""Build options from the command line."""

import argparse

import pytest

from calibrators.errors import TrtInt8Error
from trtint8.api.building import build_int8_engine
from trtint8.builder.config import BuildOptions
from trtint8.cli.build import configure
from trtint8.cli.verbs import values_of
from trtint8.engine.profiles import ShapeRange


def parsed(*arguments):
    parser = argparse.ArgumentParser()
    configure(parser)
    options = parser.parse_args(["m.onnx", "-o", "m.engine", *arguments])
    return values_of(build_int8_engine, options)["options"]


def test_nothing_given_leaves_everything_to_tensorrt():
    assert parsed() == BuildOptions()


EVERYTHING = """
    --no-fp16 --bf16 --no-tf32 --layer-precision /a=b/Conv=fp16 --output-type x*=fp32
    --precision-constraints obey --io-type images=int8 --io-format images=LINEAR,CHW32
    --calibrate-before-fusion --memory-pool workspace=1.5G --memory-pool tactic_dram=512MB
    --timing-cache t.cache --optimization-level 3 --max-aux-streams 2 --dla-core 1
    --device 2 --shape-values size=4x4,8x8,16x16
    --no-gpu-fallback --hardware-compatibility ampere_plus --version-compatible
    --profiling-verbosity none --sparse-weights --refit --strip-plan
    --tactic-source jit_convolutions --plugin p.so
"""


def test_every_option():
    assert parsed(*EVERYTHING.split()) == BuildOptions(
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
        shape_values={"size": ShapeRange((4, 4), (8, 8), (16, 16))},
        device=2,
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
    ("arguments", "named"),
    [
        ("--layer-precision conv1", "--layer-precision.*'conv1'"),
        ("--io-type =int8", "--io-type.*'=int8'"),
        ("--io-type x=int8 --io-type x=fp16", "--io-type.*'x' twice"),
        ("--shape-values s=1,2,3 --shape-values s=1,2,4", "--shape-values.*'s' twice"),
        ("--memory-pool workspace=big", "--memory-pool.*'workspace=big'"),
        (f"--memory-pool workspace={'9' * 400}G", "--memory-pool.*9G'"),
    ],
)
def test_malformed_options(arguments, named):
    with pytest.raises(TrtInt8Error, match=named):
        parsed(*arguments.split())
