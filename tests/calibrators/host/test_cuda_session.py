"""Calibration on a GPU, as far as a machine without one can show it."""

import contextlib
import importlib
import sys
from types import SimpleNamespace

import numpy as np
import onnxruntime as ort
import pytest

from calibrators.data.opening import open_batches
from calibrators.errors import CalibrationDataError, GpuMemoryError, GpuUnavailableError, UnsupportedError
from calibrators.histograms.counting import OnDevice
from calibrators.host import observer
from calibrators.host.cuda_session import Gpu, open_gpu
from calibrators.host.observer import Observer
from calibrators.host.plan import plan_observation
from tests.calibrators.here import NEEDS_DLPACK, Here
from tests.calibrators.networks import network
from tests.calibrators.specs import floats, normal

pytestmark = NEEDS_DLPACK

INPUTS = (floats("x", "n", 3),)
DATA = normal(5, 40, 3)
FULL = (
    "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code returned while running Conv node. "
    "Name:'conv1' Status Message: Failed to allocate memory for requested buffer of size 939524096"
)


def _model(operator="Relu", output="float"):
    code = {"float": 1, "float16": 10, "double": 11}[output]
    return network(
        f"""(float[n,3] x) => ({output}[n,3] y) {{
            square = MatMul(x, x)
            product = {operator}(square)
            y = Cast <to = {code}> (product)
        }}"""
    ).SerializeToString()


def _observed(batches, tensors=("x", "square", "product"), model=None, device="cuda"):
    observer = Observer(model or _model(), INPUTS, tensors, 2, device)
    return observer.observe(open_batches(batches, INPUTS))


def _squares():
    return ({"x": DATA[start : start + 3]} for start in range(0, 39, 3))


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_what_stays_there_is_counted_as_on_the_host(monkeypatch, name):
    gpu = Here(pytest.importorskip(name))
    expected = _observed(_squares, device="cpu")
    monkeypatch.setattr(observer, "open_device", lambda device: gpu)
    seen = _observed(_squares)
    assert seen.histograms == expected.histograms
    assert seen.data_fingerprint == expected.data_fingerprint
    assert len(gpu.given) == 2 * 13  # x is an input and stays on the host


def test_nan_and_other_errors_of_a_run_stay_what_they_are(monkeypatch):
    monkeypatch.setattr(observer, "open_device", lambda device: Here())
    with pytest.raises(CalibrationDataError, match="'product' held NaN"):
        _observed(_squares, model=_model("Sqrt"))
    with pytest.raises(CalibrationDataError, match=r"'x' \(4, 3\)"):
        _observed({"x": DATA[:4]})


def _outputs(names, output="float"):
    plan = plan_observation(_model(output=output), ["x"], names)
    session = Here().open_session(plan.parts[0].model, optimize=True)
    return Gpu.run(Here(), session, names, {"x": DATA[:3]})


@pytest.mark.parametrize("output", ["float16", "double"])
def test_other_types_are_counted_on_the_host(output):
    square, y = _outputs(("square", "y"), output)
    assert isinstance(square, OnDevice)
    assert isinstance(y, np.ndarray)
    np.testing.assert_allclose(y, np.maximum(square.values, 0), rtol=1e-3)


def test_the_wrapped_tensor_is_asked_where_the_wrapper_speaks_no_dlpack(monkeypatch):
    monkeypatch.delattr(ort.OrtValue, "__dlpack__", raising=False)
    (square,) = _outputs(("square",))
    np.testing.assert_allclose(square.values, DATA[:3] @ DATA[:3], rtol=1e-5)


class _Session:
    """Remembers in what order it is asked; its output is on the host, as that of a node on the CPU."""

    def __init__(self):
        self.asked = []

    def io_binding(self):
        return self

    def __getattr__(self, name):
        return lambda *arguments: self.asked.append((name, *arguments))

    def get_outputs(self):
        return [ort.OrtValue.ortvalue_from_numpy(DATA)]


def test_order_of_the_run_and_outputs_of_nodes_that_ran_on_the_cpu():
    session, entered = _Session(), []

    @contextlib.contextmanager
    def active():
        entered.append(True)
        yield

    (output,) = Gpu(1, np, active).run(session, ("y",), {"x": DATA})
    assert isinstance(output, np.ndarray)
    assert np.array_equal(output, DATA)
    assert session.asked == [
        ("bind_cpu_input", "x", DATA),
        ("bind_output", "y", "cuda", 1),
        ("synchronize_inputs",),
        ("run_with_iobinding", session),
        ("synchronize_outputs",),
    ]
    assert entered == [True]
    assert Gpu(0, np, active).run(session, (), {"x": DATA}) == []


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (RuntimeError(FULL), "requested buffer of size 939524096"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB."), "Tried to allocate 2.00 GiB"),
        (MemoryError("Out of memory allocating 1,024 bytes (allocated so far: 0 bytes)."), "1,024 bytes"),
        (RuntimeError("CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED"), "CUBLAS_STATUS_ALLOC_FAILED"),
    ],
)
def test_full_memory_is_said_plainly(monkeypatch, error, says):
    class Full(_Session):
        def run_with_iobinding(self, binding):
            raise error

    small = Here()
    monkeypatch.setattr(type(small), "open_session", lambda *_, **__: Full())
    monkeypatch.setattr(observer, "open_device", lambda device: small)
    with pytest.raises(GpuMemoryError, match=f"GPU 0 .*{says}.*batch_size"):
        _observed(_squares)


def _pretend(monkeypatch, *, cuda=True, cupy=None, torch=None):
    """ONNX Runtime with or without CUDA, and libraries that see so many GPUs."""
    providers = ["CUDAExecutionProvider"] * cuda + ["CPUExecutionProvider"]
    monkeypatch.setattr(ort, "get_available_providers", lambda: providers)
    for name, value in (("cupy", cupy), ("torch", torch)):
        module = SimpleNamespace(cuda=value, ones=lambda size, device=None: np.ones(size))
        monkeypatch.setitem(sys.modules, name, module if value else None)


def _cupy(count):
    return SimpleNamespace(
        runtime=SimpleNamespace(getDeviceCount=count),
        Device=lambda index: contextlib.nullcontext(f"cupy {index}"),
    )


def _torch(count):
    return SimpleNamespace(
        device_count=lambda: count, device=lambda index: contextlib.nullcontext(f"torch {index}")
    )


def _no_driver():
    raise RuntimeError("cudaErrorInsufficientDriver: CUDA driver version is insufficient")


def test_cupy_is_preferred_and_pytorch_takes_its_place(monkeypatch):
    for cupy, expected in ((_cupy(lambda: 2), "cupy 1"), (_cupy(_no_driver), "torch 1"), (None, "torch 1")):
        _pretend(monkeypatch, cupy=cupy, torch=_torch(2))
        with open_gpu(1).entered() as entered:
            assert entered == expected


def test_cupy_that_cannot_compile_is_passed_over(monkeypatch):
    def fails(size):
        raise RuntimeError("Failed to find CUDA headers")

    _pretend(monkeypatch, cupy=_cupy(lambda: 1), torch=_torch(1))
    monkeypatch.setattr(sys.modules["cupy"], "ones", fails)
    with open_gpu(0).entered() as entered:
        assert entered == "torch 0"
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UnsupportedError, match=r"\(cupy: Failed to find CUDA headers; torch: "):
        open_gpu(0)


def test_an_onnx_runtime_or_an_index_that_does_not_do(monkeypatch):
    _pretend(monkeypatch, torch=_torch(2))
    with pytest.raises(GpuUnavailableError, match="index 2; torch sees 2"):
        open_gpu(2)
    _pretend(monkeypatch, cuda=False, torch=_torch(1))
    with pytest.raises(UnsupportedError, match=r"onnxruntime-gpu\[cuda,cudnn\]"):
        open_gpu(0)
    _pretend(monkeypatch, torch=_torch(1))
    old = SimpleNamespace(ortvalue_from_numpy=lambda array: SimpleNamespace(_ortvalue=object()))
    monkeypatch.setattr(ort, "OrtValue", old)
    with pytest.raises(UnsupportedError, match=r"onnxruntime-gpu 1\.23"):
        open_gpu(0)


def test_no_library_or_none_that_sees_a_gpu(monkeypatch):
    _pretend(monkeypatch, cupy=_cupy(_no_driver), torch=_torch(0))
    monkeypatch.setattr(ort, "cuda_version", "13.0", raising=False)
    with pytest.raises(
        UnsupportedError, match=r"cupy: cudaErrorInsufficientDriver.*torch sees no GPU.*cupy-cuda13x\[ctk\]"
    ):
        open_gpu(0)
    _pretend(monkeypatch)
    with pytest.raises(UnsupportedError, match=r"\(cupy: .*; torch: .*\)"):
        open_gpu(0)


@pytest.mark.filterwarnings("ignore:Specified provider")
@pytest.mark.skipif("CUDAExecutionProvider" in ort.get_available_providers(), reason="it may load here")
def test_a_provider_that_did_not_load_is_not_replaced_in_silence(capsys):
    gpu = Gpu(0, np, contextlib.nullcontext)
    with pytest.raises(UnsupportedError, match="has a CUDA provider, but could not load it"):
        gpu.open_session(_model(), optimize=True)
    assert capsys.readouterr().out == ""


def test_how_a_session_is_asked_for(monkeypatch):
    asked = {}

    def open_session(model, **options):
        asked.update(options)
        return SimpleNamespace(get_providers=lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"])

    monkeypatch.setattr(
        importlib.import_module("calibrators.host.cuda_session"), "open_session", open_session
    )
    Gpu(1, np, contextlib.nullcontext).open_session(b"", optimize=True, threads=2)
    (name, options), fallback = asked["providers"]
    assert (name, fallback) == ("CUDAExecutionProvider", "CPUExecutionProvider")
    assert options["device_id"] == "1"
    assert options["use_tf32"] == "0"
    assert (asked["optimize"], asked["threads"]) == (True, 2)
    Gpu(0, np, contextlib.nullcontext).open_session(b"", optimize=True)
    assert "device_id" not in asked["providers"][0][1]
