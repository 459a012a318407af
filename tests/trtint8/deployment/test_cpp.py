"""A program in C++."""

import shutil
import subprocess

import pytest

from calibrators.data.preprocessing import Preprocessing
from calibrators.errors import UnsupportedError
from trtint8.deployment.cpp import cpp_files, model_header
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


def printed(source, folder):
    """What a compiler makes of the header."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("there is no compiler of C++")
    (folder / "model.hpp").write_text(model_header(source))
    (folder / "print.cpp").write_text(PRINT)
    command = [compiler, "-std=c++17", "-Wall", "-Werror", "print.cpp", "-o", "print"]
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
    assert "was not compiled against TensorRT's headers" in files["README.md"]
    assert {"main.cpp", "model.hpp", "model.engine", "run.py", "requirements.txt"} < set(files)
