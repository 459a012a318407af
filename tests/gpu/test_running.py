"""Engines on a device, of every TensorRT that is installed."""

import dataclasses
import threading

import numpy as np
import pytest

from calibrators.errors import CalibrationDataError, EngineError
from calibrators.host.session import open_session
from tests.gpu.conftest import OPTIONS
from tests.trtint8.detectors import images, plugin_detector
from tests.trtint8.models.decoders import decoder, steps_of_sequences
from trtint8 import BuildOptions, Engine, build_int8_engine, validate
from trtint8.data import DEMO_MODEL
from trtint8.engine.profiles import ShapeRange
from trtint8.models.session import ModelSession
from trtint8.runtime import context as bound_context
from trtint8.runtime.bench import bench_contexts

IMAGES = np.random.default_rng(0).random((64, 1, 8, 8), np.float32)
PROFILES = [
    {"images": ShapeRange((1, 1, 8, 8), (1, 1, 8, 8), (4, 1, 8, 8))},
    {"images": ShapeRange((1, 1, 8, 8), (32, 1, 8, 8), (64, 1, 8, 8))},
]


@pytest.fixture(scope="module")
def path(flavor, tmp_path_factory):
    options = OPTIONS if flavor.name == "tensorrt" else None
    result = build_int8_engine(
        DEMO_MODEL,
        IMAGES,
        tmp_path_factory.mktemp("engine") / "digits.engine",
        route="explicit",
        target=flavor.name,
        profiles=PROFILES,
        options=options,
        progress=False,
    )
    return result.engine


@pytest.fixture(scope="module")
def engine(path):
    with Engine.load(path) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def expected(path):
    session = open_session(path.with_name("digits.qdq.onnx"), optimize=False)
    return ModelSession(session).run({"images": IMAGES})[0]


def test_what_it_says_of_itself(engine):
    assert [(spec.name, spec.dtype, spec.shape) for spec in engine.inputs] == [
        ("images", "float32", (None, 1, 8, 8))
    ]
    assert [spec.name for spec in engine.outputs] == ["logits"]
    assert list(engine.profiles) == PROFILES


@pytest.mark.parametrize("batch", [1, 4, 5, 64])
def test_close_to_the_simulation(engine, expected, batch):
    logits = engine.infer({"images": IMAGES[:batch]})["logits"]
    noise = np.square(logits - expected[:batch]).sum() / np.square(expected[:batch]).sum()
    assert 10 * np.log10(noise) < -20


def test_results_are_the_callers_own(engine):
    first = engine.infer({"images": IMAGES[:4]})["logits"]
    kept = first.copy()
    engine.infer({"images": IMAGES[4:8]})
    assert np.array_equal(first, kept)


def test_a_cuda_graph_computes_the_same(engine):
    context = engine.new_context(cuda_graph=True)
    for batch in (4, 4, 8, 4):
        plain = engine.infer({"images": IMAGES[:batch]})["logits"]
        assert np.array_equal(context.infer({"images": IMAGES[:batch]})["logits"], plain)
    context.close()


def test_arrays_on_the_device_go_in_and_out(engine):
    plain = engine.infer({"images": IMAGES[:8]})["logits"]
    on_device = engine.infer({"images": IMAGES[:8]}, on_device=True)["logits"]
    assert np.array_equal(on_device.numpy(), plain)
    interface = on_device.__cuda_array_interface__
    assert (interface["shape"], interface["typestr"]) == ((8, 10), "<f4")


def test_a_bound_call_computes_the_same(engine):
    for graph in (False, True):
        with engine.bind({"images": IMAGES[:8]}, cuda_graph=graph) as call:
            for start in (0, 8, 16):
                part = IMAGES[start : start + 8]
                assert np.array_equal(
                    call({"images": part})["logits"], engine.infer({"images": part})["logits"]
                )


def test_futures_compute_the_same(engine):
    parts = [IMAGES[start : start + 8] for start in range(0, 64, 8)]
    futures = [engine.infer_async({"images": part}) for part in parts]
    for part, future in zip(parts, futures, strict=True):
        assert np.array_equal(future.result()["logits"], engine.infer({"images": part})["logits"])


def test_outputs_go_where_the_caller_says(engine):
    wanted = engine.infer({"images": IMAGES[:8]})["logits"]
    target = np.zeros_like(wanted)
    assert engine.infer({"images": IMAGES[:8]}, outputs={"logits": target}) == {}
    assert np.array_equal(target, wanted)


def test_single_steps_leave_earlier_outputs_alone(engine):
    first, second = IMAGES[:8], IMAGES[8:16]
    wanted = [engine.infer({"images": part})["logits"] for part in (first, second)]
    context = engine.new_context()
    earlier = context.infer({"images": first}, on_device=True)["logits"]
    with context.device.active():
        context.bind({"images": second})
        context.upload()
        context.enqueue()
        found = context.download()["logits"]
    assert np.array_equal(found, wanted[1])
    assert np.array_equal(earlier.numpy(), wanted[0])
    context.close()


@pytest.mark.parametrize("cuda_graph", [False, True])
def test_a_side_stream_of_pytorch_is_ordered(engine, device, cuda_graph):
    """Without the order, a large product on the side stream is read before it is done."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA")
    context = engine.new_context(cuda_graph=cuda_graph)
    images, side = torch.from_numpy(IMAGES[:8]), torch.cuda.Stream()
    wanted = engine.infer({"images": IMAGES[:8]})["logits"]
    busy = torch.ones((8192, 8192), device="cuda")
    for _ in range(20):
        with torch.cuda.stream(side):
            late = (busy @ busy)[0, 0] * 0  # takes a while, and is 0
            fed = (images.cuda(non_blocking=True) + late).requires_grad_()
            on_host = context.infer({"images": fed})["logits"]
            on_gpu = context.infer({"images": fed}, stream=side, on_device=True)["logits"]
            taken = torch.from_dlpack(on_gpu).clone()
        side.synchronize()
        assert np.array_equal(on_host, wanted)
        assert np.array_equal(taken.cpu().numpy(), wanted)
    context.close()


@pytest.mark.parametrize("cuda_graph", [False, True])
def test_a_bound_call_on_tensors_of_pytorch(engine, cuda_graph):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA")
    side = torch.cuda.Stream()
    fed = torch.zeros((8, 1, 8, 8), device="cuda")
    made = torch.zeros((8, 10), device="cuda")
    with engine.bind({"images": fed}, outputs={"logits": made}, stream=side, cuda_graph=cuda_graph) as call:
        for start in (0, 8, 16, 24):
            part = IMAGES[start : start + 8]
            with torch.cuda.stream(side):
                fed.copy_(torch.from_numpy(part), non_blocking=True)
                call()
                copied = made.clone()
            side.synchronize()
            assert np.array_equal(copied.cpu().numpy(), engine.infer({"images": part})["logits"])


@pytest.mark.parametrize("cuda_graph", [False, True])
def test_every_bound_call_begins_after_the_work_of_pytorch(engine, cuda_graph):
    """Without the order, inputs are read too early, and outputs are overwritten before they are copied."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA")
    fed = torch.zeros((8, 1, 8, 8), device="cuda")
    made = torch.zeros((8, 10), device="cuda")
    busy = torch.ones((8192, 8192), device="cuda")
    parts = [IMAGES[start : start + 8] for start in (0, 8, 16, 24)]
    for stream in (torch.cuda.default_stream(), torch.cuda.Stream()):
        copies = []
        with (
            torch.cuda.stream(stream),
            engine.bind({"images": fed}, outputs={"logits": made}, cuda_graph=cuda_graph) as call,
        ):
            for images in [torch.from_numpy(part).cuda() for part in parts]:
                fed.copy_(images + (busy @ busy)[0, 0] * 0)  # the product takes a while
                call()
                copies.append(made + (busy @ busy)[0, 0] * 0)
            stream.synchronize()
        for part, copied in zip(parts, copies, strict=True):
            assert np.array_equal(copied.cpu().numpy(), engine.infer({"images": part})["logits"])


class ByDlpack:
    """An array of CuPy that tells no stream, and is asked for the order like those of PyTorch."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


@pytest.mark.parametrize("given", [lambda array: array, ByDlpack], ids=["interface", "dlpack"])
@pytest.mark.parametrize("cuda_graph", [False, True])
def test_every_bound_call_begins_after_the_work_of_cupy(engine, cuda_graph, given):
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    parts = [IMAGES[start : start + 8] for start in (0, 8, 16, 24)]
    wanted = [engine.infer({"images": part})["logits"] for part in parts]
    found = []
    with cupy.cuda.Stream(non_blocking=True):
        fed, ready = cupy.zeros((8, 1, 8, 8), cupy.float32), [cupy.asarray(part) for part in parts]
        busy = cupy.ones(1 << 26, cupy.float32)
        with engine.bind({"images": given(fed)}, cuda_graph=cuda_graph) as call:
            for images in ready:
                for _ in range(20):
                    cupy.multiply(busy, 1, out=busy)  # takes a while
                cupy.multiply(images, busy[0], out=fed)
                found.append(call()["logits"].copy())
    for one, right in zip(found, wanted, strict=True):
        assert np.array_equal(one, right)


def test_arrays_of_cupy_tell_their_stream(engine):
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    wanted = engine.infer({"images": IMAGES[:8]})["logits"]
    for _ in range(20):
        with cupy.cuda.Stream(non_blocking=True):
            fed = cupy.asarray(IMAGES[:8]) + 0
            found = cupy.asarray(engine.infer({"images": fed}, on_device=True)["logits"])
            assert np.array_equal(found.get(), wanted)


def test_alternating_shapes_and_addresses_keep_their_graphs(engine, monkeypatch):
    captures = []
    real = bound_context.capture
    monkeypatch.setattr(
        bound_context, "capture", lambda stream, work: captures.append(1) or real(stream, work)
    )
    context = engine.new_context(cuda_graph=True)
    for batch in (4, 8, 4, 8, 4, 8):
        plain = engine.infer({"images": IMAGES[:batch]})["logits"]
        assert np.array_equal(context.infer({"images": IMAGES[:batch]})["logits"], plain)
    assert len(captures) == 2
    context.close()


def test_four_threads_get_what_one_gets(engine):
    wanted = [engine.infer({"images": IMAGES[i : i + 8]})["logits"] for i in range(16)]
    wrong = []

    def work(shift):
        for step in range(200):
            i = (step + shift) % 16
            if not np.array_equal(engine.infer({"images": IMAGES[i : i + 8]})["logits"], wanted[i]):
                wrong.append((shift, step))

    threads = [threading.Thread(target=work, args=(shift,)) for shift in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_memory_does_not_grow(engine, device):
    with device.active():
        engine.infer({"images": IMAGES})
        before = device.memory()[0]
        for _ in range(500):
            engine.infer({"images": IMAGES})
        assert device.memory()[0] == before


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({}, "needs the input 'images'"),
        ({"images": IMAGES, "more": IMAGES}, "has no input 'more'"),
        ({"images": IMAGES.astype(np.float64)}, "takes float32 but was given float64"),
        ({"images": IMAGES[:, :, :4]}, r"takes shape \?x1x8x8 but was given 64x1x4x8"),
        ({"images": np.concatenate([IMAGES, IMAGES])}, r"takes 'images' 1x1x8x8 to 4x1x8x8 or"),
    ],
)
def test_feeds_that_do_not_fit(engine, feeds, message):
    with pytest.raises(CalibrationDataError, match=message):
        engine.infer(feeds)
    engine.infer({"images": IMAGES[:1]})


def test_times_are_measured(engine):
    for transfers in (True, False):
        context = engine.new_context()
        report = bench_contexts(
            context, {"images": IMAGES[:8]}, name="x", batch_size=8, seconds=0.2, transfers=transfers
        )
        assert report.inferences > 10
        assert report.throughput == pytest.approx(report.inferences / report.seconds)
        assert set(report.phases) == {"latency", "enqueue", "compute"} | (
            {"h2d", "d2h"} if transfers else set()
        )
        assert 0 < report.phases["compute"].min <= report.phases["latency"].max
        context.close()


def test_copies_overlap_with_computation(engine):
    for count in (1, 3):
        first, *beside = (engine.new_context() for _ in range(count))
        report = bench_contexts(
            first, {"images": IMAGES}, beside=beside, name="x", batch_size=64, seconds=0.5
        )
        assert report.overlapped == (count > 1)
        assert report.inferences > 10
        for context in (first, *beside):
            context.close()


def test_plans_that_are_no_plans(path, tmp_path):
    plan = path.read_bytes()
    for name, data in (("short", plan[: len(plan) // 2]), ("text", b"hello " * 50), ("empty", b"")):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(EngineError):
            Engine.load(tmp_path / name)


def test_a_closed_engine(path):
    engine = Engine.load(path)
    engine.infer({"images": IMAGES[:1]})
    engine.close()
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        engine.infer({"images": IMAGES[:1]})


def test_kernels_are_kept_between_runs(path, flavor, tmp_path):
    if flavor.name != "rtx":
        pytest.skip(f"{flavor} compiles nothing when it loads an engine")
    cache = tmp_path / "kernels.cache"
    with Engine.load(path, runtime_cache=cache) as engine:
        wanted = engine.infer({"images": IMAGES[:4]})["logits"]
    assert cache.stat().st_size
    kept = cache.read_bytes()
    with Engine.load(path, runtime_cache=cache) as engine:
        assert np.array_equal(engine.infer({"images": IMAGES[:4]})["logits"], wanted)
    assert cache.read_bytes() == kept


def test_limits_of_memory_pools(flavor, tmp_path):
    """A limit that TensorRT takes is the one that it tells."""
    options = OPTIONS if flavor.name == "tensorrt" else BuildOptions()
    options = dataclasses.replace(options, memory_pools={"workspace": 300_000_000, "tactic_dram": 1 << 30})
    asked = {"route": "explicit", "target": flavor.name, "options": options, "progress": False}
    result = build_int8_engine(DEMO_MODEL, IMAGES, tmp_path / "digits.engine", **asked)
    with Engine.load(result.engine) as engine:
        assert engine.infer({"images": IMAGES[:4]})["logits"].shape == (4, 10)


def test_a_plugin_of_tensorrt(flavor, tmp_path):
    """Calibrated before the plugin, built with it, and found again when the engine is loaded."""
    if flavor.name != "tensorrt":
        pytest.skip(f"{flavor} has no EfficientNMS_TRT")
    result = build_int8_engine(
        plugin_detector(),
        images(16),
        tmp_path / "detector.engine",
        route="explicit",
        target=flavor.name,
        options=OPTIONS,
        progress=False,
    )
    with Engine.load(result.engine) as engine:
        outputs = engine.infer({"images": images(4, seed=1)})
    assert {name: array.shape for name, array in outputs.items()} == {
        "num": (4, 1),
        "nms_boxes": (4, 4, 4),
        "nms_scores": (4, 4),
        "nms_classes": (4, 4),
    }
    assert outputs["num"].min() >= 0 and 1 <= outputs["num"].max() <= 4


def test_a_library_that_registers_its_plugins_itself(flavor, tmp_path):
    """Loaded for the build, for the list of layers, and for the engine; here one that registers nothing."""
    libraries = (np.linalg._umath_linalg.__file__,)
    options = OPTIONS if flavor.name == "tensorrt" else BuildOptions()
    options = dataclasses.replace(options, plugins=libraries)
    asked = {"route": "explicit", "target": flavor.name, "options": options, "progress": False}
    result = build_int8_engine(DEMO_MODEL, IMAGES, tmp_path / "digits.engine", **asked)
    assert result.info.layers.layers
    with Engine.load(result.engine, plugins=libraries) as engine:
        assert engine.infer({"images": IMAGES[:4]})["logits"].shape == (4, 10)


def test_a_decoder_begins_with_an_empty_cache(flavor, tmp_path):
    options = OPTIONS if flavor.name == "tensorrt" else None
    built = build_int8_engine(
        decoder(),
        lambda: steps_of_sequences(20, seed=1),
        tmp_path / "decoder.engine",
        route="explicit",
        target=flavor.name,
        options=options,
        progress=False,
    )
    session = ModelSession(open_session(built.engine.with_name("decoder.qdq.onnx"), optimize=False))
    with Engine.load(built.engine) as engine:
        for feed in steps_of_sequences(1, seed=2):
            found, wanted = (
                engine.infer(feed),
                dict(zip(session.output_names, session.run(feed), strict=True)),
            )
            assert {name: array.shape for name, array in found.items()} == {
                name: array.shape for name, array in wanted.items()
            }
            noise = np.square(found["logits"] - wanted["logits"]).sum() / np.square(wanted["logits"]).sum()
            assert 10 * np.log10(noise) < -20


def test_tensors_inside_an_engine_are_those_of_the_simulation(path):
    """A step is what rounding may make; TensorRT adds up exact sums."""
    qdq = path.with_name("digits.qdq.onnx")
    found = validate(path, IMAGES[:16], reference=DEMO_MODEL, tensors=["*relu*", "images"], progress=False)
    assert "outputs" in found.judged
    twin = validate(qdq, IMAGES[:16], reference=DEMO_MODEL, tensors=["*relu*", "images"], progress=False)
    assert [one.name for one in found.tensors.tensors] == [one.name for one in twin.tensors.tensors]
    for one, other in zip(found.tensors.tensors, twin.tensors.tensors, strict=True):
        assert one.step == other.step
        assert abs(one.sqnr_db - other.sqnr_db) < 1
    with pytest.warns(UserWarning, match="Q/DQ pairs"):
        beside = validate(path, IMAGES[:16], reference=qdq, tensors=["*relu*", "images"], progress=False)
    assert max(one.steps for one in beside.tensors.tensors if one.in_int8) <= 2
