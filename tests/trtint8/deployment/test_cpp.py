"""A program in C++."""

import shutil
import subprocess
import sys

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from calibrators.data.images.preprocessing import Preprocessing
from calibrators.errors import UnsupportedError
from tests.sampling import sample
from tests.trtint8.deployment.conftest import IMAGES, LOGITS, shapes
from tests.trtint8.deployment.settings import SETTINGS
from tests.trtint8.onnx_models import normal
from trtint8.deployment.cpp import cpp_files, docker_files, model_header
from trtint8.deployment.writing import deploy
from trtint8.engine.file import TensorSpec

#: Settings of which programs are compiled and run.
PREPARED = ["deviations", "caffe", "last, bgr", "grey", "grey, last", "negative"]

PRINT = """
#include <cstdio>
#include "model.hpp"
int main() {
    for (const Tensor& input : inputs) {
        std::printf("%s %zu", input.name, input.bytes);
        for (auto dim : input.shape) std::printf(" %ld", (long)dim);
        std::printf("\\n");
    }
    for (const Tensor& output : outputs) std::printf("%s %zu\\n", output.name, output.bytes);
    std::printf("%s %d %d %d ", image_input, image_is_float32, image_is_nchw, image_is_bgr);
    std::printf("%.9g\\n", image_scale);
    for (int i = 0; i < 3; ++i) std::printf("%.9g %.9g\\n", image_mean[i], image_std[i]);
}
"""


#: CUDA with memory of the host in place of the GPU's.
CUDA = """
#pragma once
#include <cstdlib>
#include <cstring>
#include <set>
enum cudaError_t { cudaSuccess = 0, cudaErrorMemoryAllocation = 2 };
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2 };
typedef struct CUstream_st* cudaStream_t;
inline const char* cudaGetErrorString(cudaError_t) { return "out of memory"; }
inline std::set<void*> on_device;
inline cudaError_t cudaMalloc(void** address, std::size_t count) {
    on_device.insert(*address = std::malloc(count));
    return cudaSuccess;
}
inline cudaError_t cudaFree(void* address) { std::free(address); return cudaSuccess; }
inline cudaError_t cudaMemcpyAsync(
    void* to, const void* from, std::size_t count, cudaMemcpyKind, cudaStream_t) {
    std::memcpy(to, from, count);
    return cudaSuccess;
}
inline cudaError_t cudaStreamCreate(cudaStream_t* stream) { *stream = nullptr; return cudaSuccess; }
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
"""

#: What the program uses of TensorRT's interface, and an engine that returns the first values of each image:
#: as many as "size" says, which is read on the host, and ten where there is none.
TENSORRT = """
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include "cuda_runtime_api.h"
namespace nvinfer1 {
struct Dims { static constexpr int32_t MAX_DIMS{8}; int32_t nbDims; int64_t d[MAX_DIMS]; };
using AsciiChar = char;
class ILogger {
   public:
    enum class Severity : int32_t { kINTERNAL_ERROR, kERROR, kWARNING, kINFO, kVERBOSE };
    virtual void log(Severity severity, AsciiChar const* message) noexcept = 0;
    virtual ~ILogger() = default;
};
class IExecutionContext {
   public:
    bool setInputShape(char const* name, Dims const& dims) noexcept {
        shapes_[name] = dims;
        return dims.d[0] <= 4;
    }
    Dims getTensorShape(char const*) const noexcept { return Dims{2, {shapes_.at("images").d[0], size()}}; }
    bool setTensorAddress(char const* name, void* data) noexcept {
        data_[name] = data;
        return on_device.count(data) == (std::string(name) != "size");
    }
    bool enqueueV3(cudaStream_t) noexcept {
        const Dims& dims = shapes_["images"];
        const int64_t count = dims.d[1] * dims.d[2] * dims.d[3];
        for (int64_t n = 0; n < dims.d[0]; ++n)
            std::memcpy(
                (float*)data_["logits"] + n * size(), (float*)data_["images"] + n * count, size() * 4);
        return true;
    }
   private:
    int64_t size() const { return data_.count("size") ? *(int64_t*)data_.at("size") : 10; }
    std::map<std::string, Dims> shapes_;
    std::map<std::string, void*> data_;
};
enum class TensorLocation : int32_t { kDEVICE, kHOST };
class ICudaEngine {
   public:
    TensorLocation getTensorLocation(char const* name) const noexcept {
        return std::string(name) == "size" ? TensorLocation::kHOST : TensorLocation::kDEVICE;
    }
    IExecutionContext* createExecutionContext() noexcept { return new IExecutionContext; }
};
class IRuntime {
   public:
    ICudaEngine* deserializeCudaEngine(void const* blob, std::size_t size) noexcept {
        return std::string((char const*)blob, size) == "a plan" ? new ICudaEngine : nullptr;
    }
};
inline IRuntime* createInferRuntime(ILogger&) noexcept { return new IRuntime; }
}
"""


def compiled(engine, folder, wanted):
    """Deploys an engine, and compiles the program."""
    deploy(engine, "cpp", folder, preprocessing=wanted)
    (folder / "NvInfer.h").write_text(TENSORRT)
    (folder / "cuda_runtime_api.h").write_text(CUDA)
    command = [compiler(), "-std=c++17", "-Wall", "-Wextra", "-Werror", "-I.", "main.cpp", "-o", "run"]
    subprocess.run(command, cwd=folder, check=True)


@pytest.mark.slow
def test_values_that_decide_shapes_stay_on_the_host(make_engine, tmp_path):
    folder = tmp_path / "program"
    inputs = (IMAGES, TensorSpec("size", "int64", (1,)))
    compiled(make_engine(inputs=inputs, profiles=({"images": shapes(1, 2, 4)},)), folder, None)
    (folder / "out").mkdir()
    images = normal(2, 3, 8, 6)
    images.tofile(folder / "images.bin")
    np.array([7]).tofile(folder / "size.bin")
    subprocess.run([folder / "run", "model.engine", ".", "out"], cwd=folder, check=True)
    found = np.fromfile(folder / "out" / "logits.bin", np.float32).reshape(2, 7)
    assert_array_equal(found, images.reshape(2, -1)[:, :7])


@pytest.mark.slow
def test_an_output_that_is_a_shape_is_refused(make_engine, tmp_path):
    folder = tmp_path / "program"
    outputs = (TensorSpec("size", "int64", (1,)),)
    compiled(make_engine(outputs=outputs, profiles=({"images": shapes(1, 2, 4)},)), folder, None)
    np.zeros((2, 3, 8, 6), np.float32).tofile(folder / "images.bin")
    command = [folder / "run", "model.engine", ".", "."]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.stderr == "error: 'size' is a shape, which this program does not handle\n"


@pytest.mark.slow
def test_a_name_decides_no_folder_and_nothing_on_the_terminal(make_engine, tmp_path):
    folder, name = tmp_path / "program", "../\\..\\a\x1b[2J"
    inputs = (TensorSpec(name, "float32", ("batch", 3, 8, 6)),)
    compiled(make_engine(inputs=inputs, profiles=({name: shapes(1, 2, 4)},)), folder, None)
    command = [folder / "run", "model.engine", ".", "."]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.stderr == "error: cannot read ./..__.._a?[2J.bin\n"


@pytest.mark.slow
def test_the_program_runs_an_engine(make_engine, tmp_path):
    wanted = Preprocessing(scale=0.5, mean=(1, 2, 3), std=(4.0,), channels="BGR")
    folder = tmp_path / "program"
    compiled(make_engine(profiles=({"images": shapes(1, 2, 4)},)), folder, wanted)
    images = np.random.default_rng(0).integers(0, 256, (2, 8, 6, 3), np.uint8)
    prepared = wanted(images)
    for name in ("in", "raw", "out"):
        (folder / name).mkdir()
    prepared.tofile(folder / "in" / "images.bin")
    images.tofile(folder / "raw" / "images.rgb")

    def run(engine, inputs):
        command = [folder / "run", engine, inputs, "out"]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)

    for inputs in ("in", "raw"):
        assert run("model.engine", inputs).returncode == 0
        found = np.fromfile(folder / "out" / "logits.bin", np.float32).reshape(2, 10)
        assert_allclose(found, prepared.reshape(2, -1)[:, :10], rtol=1e-6)
    (folder / "in" / "images.bin").write_bytes(b"1234")
    for engine, message in (
        ("model.engine", "error: 'images' has another size"),
        ("README.md", "error: cannot load README.md; see README.md for the TensorRT and GPU that it needs"),
        ("missing", "error: cannot read missing"),
    ):
        done = run(engine, "in")
        assert (done.returncode, done.stderr) == (1, f"{message}\n")


def compiler():
    found = shutil.which("g++") or shutil.which("clang++")
    if found is None:
        pytest.skip("there is no compiler of C++")
    return found


def printed(source, folder):
    """What a compiler makes of the header."""
    (folder / "model.hpp").write_text(model_header(source))
    (folder / "print.cpp").write_text(PRINT)
    command = [compiler(), "-std=c++17", "-Wall", "-Werror", "print.cpp", "-o", "print"]
    subprocess.run(command, cwd=folder, check=True)
    return subprocess.run([folder / "print"], capture_output=True, check=True).stdout.decode().splitlines()


def test_the_header_compiles_and_says_what_is_known(make_source, tmp_path):
    source = make_source(
        preprocessing=Preprocessing(mean=(0.485, 0.456, 0.406), std=(2.0,), channels="BGR"),
        inputs=(
            TensorSpec("images", "float32", ("batch", 3, 8, 6)),
            TensorSpec('a"b\\9\u00e4', "int64", (2, 5)),
            TensorSpec("scale", "float16", ()),
        ),
    )
    assert printed(source, tmp_path) == [
        "images 4 8 3 8 6",
        'a"b\\9\u00e4 8 2 5',
        "scale 2",
        "logits 4",
        "images 1 1 1 0.00392156886",
        "0.485000014 2",
        "0.456 2",
        "0.405999988 2",
    ]


def test_without_preprocessing(make_source, tmp_path):
    assert printed(make_source(), tmp_path)[2:] == [" 0 1 0 1", "0 1", "0 1", "0 1"]


def test_an_input_whose_sizes_no_profile_names_is_refused(make_source):
    inputs = (IMAGES, TensorSpec("mask", "bool", ("batch", None)))
    with pytest.raises(
        UnsupportedError, match=r"which sizes 'mask' \(batch x \?\) has; build the engine again"
    ):
        cpp_files(make_source(inputs=inputs))


def test_a_type_without_a_size_is_refused(make_source):
    source = make_source(outputs=(TensorSpec("logits", "int4", ("batch", 10)),))
    with pytest.raises(UnsupportedError, match="no element type for 'logits' of int4; export the model"):
        cpp_files(source)


def test_the_files(make_source):
    files = cpp_files(make_source())
    assert (
        "find_library(TENSORRT_LIBRARY nvinfer HINTS ${TENSORRT_ROOT}/lib REQUIRED)"
        in files["CMakeLists.txt"]
    )
    assert "TENSORRT_LIBRARY tensorrt_rtx HINTS" in cpp_files(make_source(flavor="rtx"))["CMakeLists.txt"]
    assert "\n    pip install -r requirements.txt\n" in files["README.md"]
    old = cpp_files(make_source(tensorrt_version="8.6.1"))
    assert "\n    NVIDIA_TENSORRT_DISABLE_INTERNAL_PIP=1 pip install -r" in old["README.md"]
    assert "\ntensorrt==8.6.1.post1\n" in old["requirements.txt"]
    assert "was not compiled against TensorRT's headers" in files["README.md"]
    assert {"main.cpp", "model.hpp", "model.engine", "run.py", "requirements.txt"} < set(files)


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


def test_docker_the_files(make_source):
    source = make_source()
    files = docker_files(source)
    assert files["model.engine"] == source.engine
    assert files["requirements.txt"].startswith("# For Python 3.12.\ntensorrt-cu12==10.9.0.34\n")
    # Whatever the image copies is there.
    copied = [line.split()[1:-1] for line in files["Dockerfile"].splitlines() if line.startswith("COPY")]
    assert {name for names in copied for name in names if not name.startswith("--")} <= set(files)
    assert "docker build -t net ." in files["README.md"]


#: Memory of the host in place of the GPU's.
DOCKER_CUDA = """
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
DOCKER_TENSORRT = """
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
    deploy(make_engine(profiles=profiles, **ends), "docker", folder, preprocessing=Preprocessing(scale=2.0))
    (folder / "tensorrt.py").write_text(DOCKER_TENSORRT)
    (folder / "cuda" / "bindings").mkdir(parents=True)
    (folder / "cuda" / "bindings" / "runtime.py").write_text(DOCKER_CUDA)

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
    images = normal(3, 3, 8, 6)
    assert_allclose(run(images=images)["logits"][:, 4], images.sum((1, 2, 3)), rtol=1e-4)
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
def test_docker_values_that_decide_shapes_stay_on_the_host(run):
    images = normal(3, 3, 8, 6)
    outputs = run(images=images, size=np.array(7))
    assert outputs["logits"].shape == (3, 7) and outputs["found"] == 7
    assert_allclose(outputs["logits"][:, 4], images.sum((1, 2, 3)), rtol=1e-4)


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


@pytest.mark.slow
@pytest.mark.parametrize("name", sample(PREPARED, PREPARED[::2]))
def test_images_are_prepared_as_trtint8_does_it(name, make_engine, tmp_path):
    setting, folder = SETTINGS[name], tmp_path / "there"
    spec = setting.input
    outputs = (TensorSpec("logits", "float32", ("batch", 48 * setting.channels)),)
    engine = make_engine(
        inputs=(spec, TensorSpec("size", "int64", (1,))),
        outputs=outputs,
        profiles=({"images": shapes(1, 2, 4, spec.shape[1:])},),
    )
    compiled(engine, folder, setting.wanted)
    (folder / "out").mkdir()
    setting.images.tofile(folder / "images.rgb")
    np.array([48 * setting.channels]).tofile(folder / "size.bin")
    subprocess.run([folder / "run", "model.engine", ".", "out"], cwd=folder, check=True)
    wanted = setting.wanted(setting.images)
    found = np.fromfile(folder / "out" / "logits.bin", np.float32).reshape(wanted.shape)
    assert_allclose(found, wanted, rtol=1e-6, atol=1e-6 * np.abs(wanted).max())
