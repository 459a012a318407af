"""A program in C++."""

import shutil
import subprocess

import numpy as np
import pytest

from calibrators.data.images.preprocessing import Preprocessing
from calibrators.errors import UnsupportedError
from tests.trtint8.deployment.conftest import IMAGES, shapes
from trtint8.deployment.cpp import cpp_files, model_header
from trtint8.deployment.writing import deploy
from trtint8.engine.file import TensorSpec

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
    deploy(engine, "cpp", folder, wanted)
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
    images = np.random.default_rng(0).standard_normal((2, 3, 8, 6), np.float32)
    images.tofile(folder / "images.bin")
    np.array([7]).tofile(folder / "size.bin")
    subprocess.run([folder / "run", "model.engine", ".", "out"], cwd=folder, check=True)
    found = np.fromfile(folder / "out" / "logits.bin", np.float32).reshape(2, 7)
    np.testing.assert_array_equal(found, images.reshape(2, -1)[:, :7])


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
        np.testing.assert_allclose(found, prepared.reshape(2, -1)[:, :10], rtol=1e-6)
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
