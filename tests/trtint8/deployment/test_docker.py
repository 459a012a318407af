"""A container."""

import subprocess
import sys

import numpy as np
import pytest

from calibrators.data.images.preprocessing import Preprocessing
from calibrators.errors import UnsupportedError
from tests.trtint8.deployment.conftest import IMAGES, LOGITS, shapes
from trtint8.deployment.docker import docker_files
from trtint8.deployment.writing import deploy
from trtint8.engine.file import TensorSpec


def test_the_image_has_a_python_that_the_packages_are_for(make_source):
    dockerfile = docker_files(make_source())["Dockerfile"]
    assert dockerfile.startswith("FROM python:3.12-slim\n")
    assert "\nRUN pip install --no-cache-dir -r requirements.txt\n" in dockerfile
    files = docker_files(make_source(tensorrt_version="8.6.1"))
    assert files["Dockerfile"].startswith("FROM python:3.10-slim\n")
    assert "\nRUN NVIDIA_TENSORRT_DISABLE_INTERNAL_PIP=1 pip install " in files["Dockerfile"]
    assert "The image has tensorrt==8.6.1.post1, nvidia-cudnn-cu12<9, cuda" in files["README.md"]


@pytest.mark.parametrize("version", ["10.9.0.34", "8.6.1"])
def test_nothing_but_the_making_of_a_user_is_done_as_root(make_source, version):
    lines = docker_files(make_source(tensorrt_version=version))["Dockerfile"].splitlines()
    as_root = lines[: lines.index("USER app")]
    assert [line for line in as_root if line.startswith(("RUN", "COPY"))] == [
        "RUN useradd --create-home app && mkdir /app && chown app:app /app"
    ]
    assert [line for line in lines if line.startswith("USER")] == ["USER app"]
    assert "ENV PATH=/app/venv/bin:$PATH" in lines


def test_a_tensorrt_without_packages_is_refused(make_source):
    with pytest.raises(UnsupportedError, match=r"which has no TensorRT 9\.2\.0; deploy the engine to triton"):
        docker_files(make_source(tensorrt_version="9.2.0"))


def test_the_files(make_source):
    source = make_source()
    files = docker_files(source)
    assert files["model.engine"] == source.engine
    assert files["requirements.txt"].startswith("# For Python 3.12.\ntensorrt-cu12==10.9.0.34\n")
    # Whatever the image copies is there.
    copied = [line.split()[1:-1] for line in files["Dockerfile"].splitlines() if line.startswith("COPY")]
    assert {name for names in copied for name in names if not name.startswith("--")} <= set(files)
    assert "docker build -t net ." in files["README.md"]


#: Memory of the host in place of the GPU's.
CUDA = """
import ctypes
from enum import Enum

_memory = {}


class cudaError_t(Enum):
    cudaSuccess = 0
    cudaErrorMemoryAllocation = 2


class cudaMemcpyKind(Enum):
    cudaMemcpyHostToDevice = 1
    cudaMemcpyDeviceToHost = 2


def cudaStreamCreate():
    return cudaError_t.cudaSuccess, 7


def cudaMalloc(count):
    if count > 100_000:
        return cudaError_t.cudaErrorMemoryAllocation, 0
    buffer = ctypes.create_string_buffer(count)
    _memory[ctypes.addressof(buffer)] = buffer
    return cudaError_t.cudaSuccess, ctypes.addressof(buffer)


def cudaFree(address):
    del _memory[address]
    return (cudaError_t.cudaSuccess,)


def cudaMemcpyAsync(to, source, count, kind, stream):
    assert stream == 7
    ctypes.memmove(to, source, count)
    return (cudaError_t.cudaSuccess,)


def cudaStreamSynchronize(stream):
    return (cudaError_t.cudaSuccess,)
"""

#: An engine whose logits are the sums over images: as many as "size" says, which is read on the host,
#: and ten where there is none.
TENSORRT = """
import ctypes
from enum import Enum

import numpy as np
from cuda.bindings.runtime import _memory


class TensorLocation(Enum):
    DEVICE = 0
    HOST = 1


class Logger:
    WARNING = 1

    def __init__(self, level):
        pass


class Runtime:
    def __init__(self, logger):
        pass

    def deserialize_cuda_engine(self, plan):
        return Engine() if plan == b"a plan" else None


class Engine:
    def create_execution_context(self):
        return Context()

    def get_tensor_location(self, name):
        return TensorLocation.HOST if name in ("size", "found") else TensorLocation.DEVICE


class Context:
    def __init__(self):
        self.profile, self.shapes, self.addresses = None, {}, {}

    def set_optimization_profile_async(self, index, stream):
        self.profile = index

    def set_input_shape(self, name, shape):
        self.shapes[name] = shape
        return self.profile is not None

    @property
    def size(self):
        return ctypes.c_int64.from_address(self.addresses["size"]).value if "size" in self.addresses else 10

    def get_tensor_shape(self, name):
        return () if name == "found" else (self.shapes["images"][0], self.size)

    def set_tensor_address(self, name, address):
        assert (address in _memory) == (name not in ("size", "found"))
        self.addresses[name] = address

    def execute_async_v3(self, stream):
        shape = self.shapes["images"]
        count = int(np.prod(shape))
        images = np.frombuffer((ctypes.c_float * count).from_address(self.addresses["images"]), np.float32)
        sums = np.repeat(images.reshape(shape[0], -1).sum(1, keepdims=True), self.size, 1)
        logits = np.ascontiguousarray(sums + self.profile, np.float32)
        ctypes.memmove(self.addresses["logits"], logits.ctypes.data, logits.nbytes)
        if "found" in self.addresses:
            ctypes.c_int64.from_address(self.addresses["found"]).value = self.size
        return True
"""


@pytest.fixture
def ends():
    """The inputs and outputs of the engine, where they are others."""
    return {}


@pytest.fixture
def run(make_engine, tmp_path, ends):
    """Runs the program of a container on arrays."""
    folder = tmp_path / "image"
    profiles = ({"images": shapes(1, 2, 4)}, {"images": shapes(5, 8, 16)})
    deploy(make_engine(profiles=profiles, **ends), "docker", folder, Preprocessing(scale=2.0))
    (folder / "tensorrt.py").write_text(TENSORRT)
    (folder / "cuda" / "bindings").mkdir(parents=True)
    (folder / "cuda" / "bindings" / "runtime.py").write_text(CUDA)

    def call(**arrays):
        np.savez(tmp_path / "in.npz", **arrays)
        command = [sys.executable, "image/run.py", "in.npz", "out.npz"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        if done.returncode:
            return done.stderr.splitlines()[-1]
        with np.load(tmp_path / "out.npz") as found:
            return dict(found)

    return call


def test_the_program_runs_the_engine(run):
    images = np.random.default_rng(0).standard_normal((3, 3, 8, 6), np.float32)
    np.testing.assert_allclose(run(images=images)["logits"][:, 4], images.sum((1, 2, 3)), rtol=1e-4)
    # The second profile takes more samples; raw images are prepared.
    raw = np.ones((6, 8, 6, 3), np.uint8)
    assert run(images=raw)["logits"].tolist() == [[3 * 8 * 6 * 2 + 1] * 10] * 6


@pytest.mark.parametrize(
    "ends",
    [
        {
            "inputs": (IMAGES, TensorSpec("size", "int64", ())),
            "outputs": (LOGITS, TensorSpec("found", "int64", ())),
        }
    ],
)
def test_values_that_decide_shapes_stay_on_the_host(run):
    images = np.random.default_rng(0).standard_normal((3, 3, 8, 6), np.float32)
    outputs = run(images=images, size=np.array(7))
    assert outputs["logits"].shape == (3, 7) and outputs["found"] == 7
    np.testing.assert_allclose(outputs["logits"][:, 4], images.sum((1, 2, 3)), rtol=1e-4)


@pytest.mark.parametrize("ends", [{"inputs": (IMAGES, TensorSpec("a\x1b[2J", "int64", ()))}])
def test_names_reach_the_terminal_without_control_characters(run):
    images = np.zeros((3, 3, 8, 6), np.float32)
    assert run(**{"images": images, "a\x1b[2J": np.float32(1)}) == (
        r"ValueError: the engine takes 'a\x1b[2J' as int64, not float32; convert it"
    )


def test_the_program_says_what_is_wrong(run, tmp_path):
    large = np.zeros((17, 3, 8, 6), np.float32)
    assert run(images=large) == (
        "ValueError: the engine takes no 'images' of shape (17, 3, 8, 6); see README.md"
    )
    assert run(images=large[:3].astype(np.float64)) == (
        "ValueError: the engine takes 'images' as float32, not float64; convert it"
    )
    (tmp_path / "image" / "model.engine").write_bytes(b"another plan")
    assert "model.engine: it needs TensorRT 10.9.0.34 (tensorrt) and a GPU of compute capability" in run(
        images=large
    )
