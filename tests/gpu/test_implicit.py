"""The implicit route on a device: calibrate, build, run."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from calibrators.errors import BuildError
from calibrators.tables.cache_origin import read_origin
from calibrators.tensorrt.calibrators import calibrator_class
from tests.gpu.conftest import NORMALIZED, OPTIONS
from tests.trtint8.onnx_models import conv_relu_conv
from tests.trtint8.refused_models import NODES, refused_model
from trtint8 import Engine, build_int8_engine, calibrate, validate
from trtint8.engine.profiles import ShapeRange

ROOT = Path(__file__).parents[2]
PROFILES = [{"input": ShapeRange((1, 3, 32, 32), (50, 3, 32, 32), (100, 3, 32, 32))}]
ALLOWED_DROP = {
    "EntropyCalibrator2": 0.5,
    "EntropyCalibrator": 0.5,
    "MinMaxCalibrator": 1.0,
    "LegacyCalibrator": 0.5,
}


def new_calibrator(kind, cifar, implicit_flavor, **options):
    options = {"batch_size": 50, "preprocessing": NORMALIZED, **options}
    return calibrator_class(kind, implicit_flavor)(cifar.calibration, cifar.inputs, **options)


def logits_of(path, images, batch=50):
    with Engine.load(path) as engine:
        parts = [images[start : start + batch] for start in range(0, len(images), batch)]
        return np.concatenate([engine.infer({"input": part})[engine.outputs[0].name] for part in parts])


def build(cifar, calibration, output, **options):
    options = {"target": "tensorrt", "route": "implicit", "profiles": PROFILES, "options": OPTIONS, **options}
    return build_int8_engine(cifar.model, calibration, output, progress=False, **options)


def build_from_images(cifar, output, **options):
    return build(cifar, cifar.calibration, output, batch_size=50, preprocessing=NORMALIZED, **options)


@pytest.mark.parametrize("kind", ALLOWED_DROP)
def test_a_calibrator_all_the_way(cifar, implicit_flavor, tmp_path, kind, record_property):
    cache = tmp_path / "model.cache"
    calibrator = new_calibrator(kind, cifar, implicit_flavor, cache=cache)
    result = build(cifar, calibrator, tmp_path / "model.engine")
    assert calibrator.batches == 10
    assert read_origin(cache, cache.read_bytes()).model == result.info.model_fingerprint
    logits = logits_of(result.engine, cifar.images)
    top1, fp32 = cifar.top1(logits), cifar.top1(cifar.logits)
    agreement = 100 * float((logits.argmax(1) == cifar.logits.argmax(1)).mean())
    record_property("accuracy", f"{kind}: top-1 {top1:.2f} (FP32 {fp32:.2f}), same class {agreement:.2f}")
    assert top1 >= fp32 - ALLOWED_DROP[kind]
    assert result.info.layers.weighted_summary(result.info.quantized_nodes).get("INT8")

    again = new_calibrator(kind, cifar, implicit_flavor, cache=cache)
    build(cifar, again, tmp_path / "again.engine")
    assert again.batches == 0
    assert again.table.amax == calibrator.table.amax


def test_host_and_device_calibration_agree(cifar, implicit_flavor, tmp_path, record_property):
    calibrator = new_calibrator("MinMaxCalibrator", cifar, implicit_flavor)
    build(cifar, calibrator, tmp_path / "model.engine")
    table = calibrate(
        cifar.model, cifar.calibration, method="minmax", preprocessing=NORMALIZED, progress=False
    )
    shared = sorted(calibrator.table.amax.keys() & table.amax.keys())
    ratios = np.array([calibrator.table.amax[name] / table.amax[name] for name in shared])
    record_property(
        "ratios",
        f"TensorRT's amax over the host's, {len(shared)} tensors: median {np.median(ratios):.4f}, "
        f"{ratios.min():.4f} to {ratios.max():.4f}",
    )
    assert len(shared) >= 20
    assert 0.98 < np.median(ratios) < 1.02


def test_manual_ranges_alone(cifar, implicit_flavor, tmp_path):
    table = calibrate(cifar.model, cifar.calibration, preprocessing=NORMALIZED, progress=False)
    result = build(cifar, None, tmp_path / "model.engine", dynamic_ranges=dict(table.amax))
    top1 = cifar.top1(logits_of(result.engine, cifar.images))
    assert top1 >= cifar.top1(cifar.logits) - 0.5


def test_manual_ranges_win_over_calibrated_ones(cifar, implicit_flavor, tmp_path):
    calibrator = new_calibrator("EntropyCalibrator2", cifar, implicit_flavor)
    result = build(cifar, calibrator, tmp_path / "model.engine", dynamic_ranges={"input": 0.01})
    assert result.table.amax["input"] == 0.01
    # Nearly everything is clipped away.
    assert cifar.top1(logits_of(result.engine, cifar.images)) < 50


def test_a_manual_range_of_an_input_that_is_int8(cifar, implicit_flavor, tmp_path):
    table = calibrate(cifar.model, cifar.calibration, preprocessing=NORMALIZED, progress=False)
    options = dataclasses.replace(OPTIONS, io_types={"input": "int8"}, io_formats={"input": ("LINEAR",)})
    result = build(cifar, None, tmp_path / "model.engine", dynamic_ranges=dict(table.amax), options=options)
    with Engine.load(result.engine) as engine:
        assert engine.inputs[0].dtype == "int8"
        scaled = np.clip(np.rint(cifar.images[:50] * 127 / table.amax["input"]), -127, 127).astype(np.int8)
        logits = engine.infer({"input": scaled})[engine.outputs[0].name]
    assert (logits.argmax(1) == cifar.logits[:50].argmax(1)).mean() > 0.9


def test_layers_of_an_engine_with_dynamic_shapes_are_known(cifar, implicit_flavor, tmp_path):
    result = build_from_images(cifar, tmp_path / "model.engine")
    assert len(result.info.layers.weighted_summary(result.info.quantized_nodes)["INT8"]) >= 10


def test_one_engine_takes_every_batch_size(cifar, implicit_flavor, tmp_path):
    result = build_from_images(cifar, tmp_path / "model.engine")
    whole = logits_of(result.engine, cifar.images[:200])
    for batch in (1, 8, 50):
        np.testing.assert_allclose(logits_of(result.engine, cifar.images[:200], batch), whole, atol=0.5)


# TensorRT chooses the types of so small a network by times that are mostly noise.
@pytest.mark.filterwarnings("ignore:none of the 2 weighted layers is seen to run in INT8")
def test_sizes_that_a_model_leaves_open_are_those_of_the_samples(implicit_flavor, tmp_path):
    onnx.save(conv_relu_conv(quantized=False, size=("height", "width")), tmp_path / "m.onnx")
    images = np.random.default_rng(0).standard_normal((16, 3, 24, 16)).astype(np.float32)
    result = build_int8_engine(
        tmp_path / "m.onnx",
        images,
        tmp_path / "m.engine",
        target="tensorrt",
        route="implicit",
        options=OPTIONS,
        progress=False,
    )
    wanted = {"images": ShapeRange((1, 3, 24, 16), (8, 3, 24, 16), (32, 3, 24, 16))}
    assert result.info.profiles == (wanted,)
    with Engine.load(result.engine) as engine:
        (output,) = engine.infer({"images": images[:4]}).values()
    assert output.shape == (4, 16, 24, 16)


def test_explicit_beside_implicit(cifar, implicit_flavor, tmp_path, record_property):
    explicit = build_from_images(cifar, tmp_path / "qdq.engine", route="explicit")
    implicit = build_from_images(cifar, tmp_path / "implicit.engine")
    figures = {}
    for name, result in (("explicit", explicit), ("implicit", implicit)):
        figures[name] = cifar.top1(logits_of(result.engine, cifar.images))
    record_property("accuracy", str(figures))
    assert abs(figures["explicit"] - figures["implicit"]) <= 1.0


def test_the_engine_is_judged_itself(cifar, implicit_flavor, tmp_path):
    result = build_from_images(cifar, tmp_path / "model.engine")
    accuracy = validate(
        result.engine,
        {"input": cifar.images, "labels": cifar.labels},
        reference=cifar.model,
        batch_size=50,
        progress=False,
    )
    assert accuracy.judged.startswith("the engine on ")
    assert accuracy.top1.value >= accuracy.reference_top1.value - 0.005


@pytest.mark.parametrize("error", [ValueError("disk gone"), KeyboardInterrupt()])
def test_a_failing_source_ends_the_build(cifar, implicit_flavor, tmp_path, device, error):
    def feeds():
        yield {"input": cifar.images[:50]}
        raise error

    calibrator = calibrator_class("EntropyCalibrator2", implicit_flavor)(
        feeds, cifar.inputs, cache=tmp_path / "model.cache"
    )
    with device.active():
        free = device.memory()[0]
    with pytest.raises(type(error)):
        build(cifar, calibrator, tmp_path / "model.engine")
    assert list(tmp_path.iterdir()) == []
    with device.active():
        assert device.memory()[0] >= free - (64 << 20)


IN_A_CONTEXT_OF_ITS_OWN = """
import json, sys
{before}
from calibrators.cuda import context_problem
from calibrators.tensorrt.calibrators import calibrator_class
from calibrators.tensorrt.flavor import load
from tests.gpu.conftest import OPTIONS
from trtint8 import TrtInt8Error, build_int8_engine, model_inputs
from trtint8.data import DEMO_MODEL, load_digits_split
before = context_problem(0)
images, inputs = load_digits_split().calibration_images, model_inputs(DEMO_MODEL)
calibrator = calibrator_class("MinMaxCalibrator", load("tensorrt"))(
    images, inputs, batch_size=50, progress=False
)
try:
    asked = {{"target": "tensorrt", "route": "implicit", "options": OPTIONS, "progress": False}}
    build_int8_engine(DEMO_MODEL, calibrator, sys.argv[1], **asked)
except TrtInt8Error as error:
    sys.exit(f"{{type(error).__name__}}: {{error}}")
assert context_problem(0) == before
print(json.dumps(calibrator.table.amax))
"""


def run_with(before, path):
    program = IN_A_CONTEXT_OF_ITS_OWN.format(before=before)
    return subprocess.run(
        [sys.executable, "-c", program, str(path)], cwd=ROOT, capture_output=True, text=True, timeout=600
    )


def test_a_calibration_with_a_context_of_pycudas_own(implicit_flavor, tmp_path):
    pytest.importorskip("pycuda")
    plain, own = (run_with(before, tmp_path / "m.engine") for before in ("", "import pycuda.autoinit"))
    assert (plain.returncode, own.returncode) == (0, 0), plain.stderr + own.stderr
    assert json.loads(own.stdout) == pytest.approx(json.loads(plain.stdout), rel=0.05)


def test_a_builder_that_works_in_a_context_of_pycudas_own(implicit_flavor, tmp_path):
    """The build runs in the current context, as a program's own builder does."""
    pytest.importorskip("pycuda")
    before = (
        "import contextlib, pycuda.autoinit, trtint8.builder.build\n"
        "trtint8.builder.build._context = lambda *_: contextlib.nullcontext()"
    )
    done = run_with(before, tmp_path / "m.engine")
    assert done.returncode == 1
    words = "UnsupportedError: TensorRT cannot read the batches: another CUDA context is current than the"
    assert words in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("method", "most"), [("entropy", 1), ("mse", 0)])
def test_refused_nodes_are_named_before_anything_is_calibrated(implicit_flavor, tmp_path, method, most):
    """Of TensorRT's own calibrator, for which a first batch tells the shapes, and of one on the CPU."""
    nodes = (*NODES[:2], ("Unique", ["r"], "first", {}), *NODES[4:7])
    taken = []

    def samples():
        for _ in range(9):
            taken.append(1)
            yield np.zeros((2, 3, 8, 8), np.float32)

    with pytest.raises(BuildError, match=r"\(Unique\).*; nor does it take '.*' \(Unique\)"):
        build_int8_engine(
            refused_model(nodes, ["first", "values"]),
            samples,
            tmp_path / "model.engine",
            method=method,
            target="tensorrt",
            route="implicit",
            options=OPTIONS,
            progress=False,
        )
    assert len(taken) <= most
