"""Names of classes and decoders of boxes in deployments."""

import json
import shutil
import subprocess

import numpy as np
import onnx
import pytest
from numpy.testing import assert_allclose

import trtint8
from calibrators.errors import CalibrationDataError, UnsupportedError
from calibrators.tables.table import CalibrationTable
from tests.trtint8.onnx_models import parsed
from trtint8.calibration import float_tensors
from trtint8.cli.main import main
from trtint8.models.model import load_model, prepare

NAMES = ["cat", "dog"]


def network(shape, columns):
    """A network of images of 8x8 whose output has 64 boxes of so many values, in a shape."""
    turn = "y = Transpose <perm = [0, 2, 1]> (r)" if shape == "rows" else "y = Identity (r)"
    sizes = f"64, {columns}" if shape == "rows" else f"{columns}, 64"
    weights = np.random.default_rng(0).uniform(-1, 1, (columns, 3, 1, 1)).astype(np.float32)
    return parsed(
        "float[N, 3, 8, 8] images", f"float[N, {sizes}] y",
        f"c = Conv (images, w) r = Reshape (c, s) {turn}",
        w=weights, s=np.array([0, columns, 64]),
    )  # fmt: skip


def classifier(classes=2):
    return parsed(
        "float[N, 3, 8, 8] images", f"float[N, {classes}] y",
        "f = Flatten (images) y = MatMul (f, w)", w=np.ones((192, classes), np.float32),
    )  # fmt: skip


def table_of(model):
    return CalibrationTable(dict.fromkeys(float_tensors(prepare(load_model(model.SerializeToString()))), 2.0))


@pytest.fixture
def deploy(tmp_path):
    """Deploys a model to somewhere; gives the folder."""

    def call(model, to, *, metadata=None, **more):
        if metadata is not None:
            model.metadata_props.add(key="names", value=metadata)
        onnx.save(model, tmp_path / "net.onnx")
        trtint8.deploy(tmp_path / "net.onnx", to, tmp_path / "there", table=table_of(model), **more)
        return tmp_path / "there"

    return call


def properties(folder):
    lines = (folder / "config_infer.txt").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


@pytest.mark.parametrize(
    ("metadata", "given"),
    [
        ("{0: 'cat', 1: 'dog'}", None),
        ("['cat', 'dog']", None),
        ("{0: 'a', 1: 'b', 2: 'c'}", NAMES),
        (None, "names.txt"),
        (None, "data.yaml"),
        (None, "instances.json"),
    ],
)
def test_a_detector_in_deepstream(deploy, tmp_path, metadata, given):
    (tmp_path / "names.txt").write_text("cat\ndog\n\n")
    (tmp_path / "data.yaml").write_text("names: {0: cat, 1: dog}\n")
    categories = [{"id": 18, "name": "dog"}, {"id": 17, "name": "cat"}]
    instances = {"images": [], "annotations": [], "categories": categories}
    (tmp_path / "instances.json").write_text(json.dumps(instances))
    names = tmp_path / given if isinstance(given, str) else given
    folder = deploy(network("columns", 6), "deepstream", metadata=metadata, class_names=names)
    assert (folder / "labels.txt").read_text() == "cat\ndog\n"
    found = properties(folder)
    assert found["network-type"] == "0"
    assert found["num-detected-classes"] == "2"
    assert found["labelfile-path"] == "labels.txt"
    assert found["parse-bbox-func-name"] == "NvDsInferParseTrtInt8"
    assert found["cluster-mode"] == "2"
    assert "NvDsInferParseTrtInt8" in (folder / "nvdsinfer_parser.cpp").read_text()


@pytest.mark.parametrize(
    "metadata",
    [
        "{0: 'cat', 2: 'dog'}", "{", "__import__('os').system('true')", "[" * 5000,
        "{0: 'a\\nb', 1: 'c'}", "", "7", "{0: ['a'], 1: 'b'}", "{True: 'a', 0: 'b'}", "[]",
    ],
)  # fmt: skip
def test_names_in_a_model_that_are_none(deploy, metadata):
    with pytest.warns(UserWarning, match="class_names"):
        folder = deploy(network("columns", 6), "deepstream", metadata=metadata)
    assert properties(folder)["network-type"] == "100"
    assert not (folder / "labels.txt").exists() and not (folder / "nvdsinfer_parser.cpp").exists()


def test_outputs_that_no_decoder_is_known_of(deploy):
    with pytest.warns(UserWarning, match="'y' Nx9x64.* 2 classes"):
        folder = deploy(network("columns", 9), "deepstream", class_names=NAMES)
    found = properties(folder)
    assert (found["network-type"], found["output-tensor-meta"]) == ("100", "1")
    assert (folder / "labels.txt").read_text() == "cat\ndog\n"
    assert "none of the layouts" in (folder / "README.md").read_text()


def test_a_classifier(deploy, tmp_path):
    folder = deploy(classifier(), "deepstream", class_names=NAMES)
    assert (folder / "labels.txt").read_text() == "cat;dog\n"
    assert properties(folder)["network-type"] == "1"
    shutil.rmtree(folder)
    folder = deploy(classifier(), "triton", class_names=NAMES)
    assert (folder / "net" / "labels.txt").read_text() == "cat\ndog\n"
    assert 'dims: [ 2 ] label_filename: "labels.txt" }' in (folder / "net" / "config.pbtxt").read_text()


def test_names_of_other_classes_than_the_outputs_have(deploy):
    with pytest.warns(UserWarning, match="'y' Nx2.* 3 classes"):
        folder = deploy(classifier(), "triton", class_names=[*NAMES, "cow"])
    assert "label_filename" not in (folder / "net" / "config.pbtxt").read_text()


def test_a_detector_in_triton(deploy):
    folder = deploy(network("columns", 6), "triton", class_names=NAMES)
    assert (folder / "net" / "labels.txt").read_text() == "cat\ndog\n"
    # Triton takes the places of values for classes.
    assert "label_filename" not in (folder / "net" / "config.pbtxt").read_text()
    assert "no decoder of boxes" in (folder / "README.md").read_text()


@pytest.mark.parametrize(
    ("names", "error"),
    [
        (["a", "b;c"], UnsupportedError),
        (["a", "b\nc"], CalibrationDataError),
        (["a", ""], CalibrationDataError),
        ([], CalibrationDataError),
        (["a", None], CalibrationDataError),
        ("missing.txt", CalibrationDataError),
        ("missing.json", CalibrationDataError),
        ("", CalibrationDataError),
    ],
)
def test_names_that_cannot_be_written_are_refused(deploy, tmp_path, names, error):
    with pytest.raises(error):
        deploy(network("columns", 6), "deepstream", class_names=names)
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize(
    "categories",
    [{"id": 1, "name": "a"}, [], [{"id": 1}], [{"id": 1, "name": "a"}] * 2, [{"id": 1, "name": ["a"]}]],
)
def test_categories_without_a_name_each_are_refused(deploy, tmp_path, categories):
    file = tmp_path / "instances.json"
    file.write_text(json.dumps({"images": [], "annotations": [], "categories": categories}))
    with pytest.raises(CalibrationDataError):
        deploy(network("columns", 6), "deepstream", class_names=file)
    assert not (tmp_path / "there").exists()


def test_the_command_line(tmp_path, capsys):
    onnx.save(network("columns", 6), tmp_path / "net.onnx")
    table_of(network("columns", 6)).save(tmp_path / "net.table.json")
    (tmp_path / "data.yaml").write_text("nc: 2\nnames: [cat, dog]\n")
    command = [
        "deploy",
        str(tmp_path / "net.onnx"),
        "--to",
        "triton",
        "-o",
        str(tmp_path / "there"),
        "--json",
    ]
    command += ["--table", str(tmp_path / "net.table.json"), "--classes", str(tmp_path / "data.yaml")]
    command += ["--target", "tensorrt-10", "--profile", "images=1x3x8x8,2x3x8x8,4x3x8x8"]
    assert main([*command, "--json", "--preferred-batch-size", "2", "--preferred-batch-size", "4"]) == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert str(tmp_path / "there" / "net" / "labels.txt") in files
    assert "preferred_batch_size: [ 2, 4 ]" in (tmp_path / "there" / "net" / "config.pbtxt").read_text()
    assert main(command[:-2]) == 2 and main([*command, "--target", "tensorrt-99"]) == 2


#: The parts of DeepStream's interface that the parser uses.
HEADER = """
#pragma once
#include <vector>
struct NvDsInferDims { unsigned numDims; unsigned d[8]; unsigned numElements; };
struct NvDsInferLayerInfo {
    int dataType; NvDsInferDims inferDims; int index; const char* layerName; void* buffer;
};
struct NvDsInferNetworkInfo { unsigned width, height, channels; };
struct NvDsInferParseDetectionParams {
    unsigned numClassesConfigured;
    std::vector<float> perClassPreclusterThreshold, perClassPostclusterThreshold;
};
struct NvDsInferObjectDetectionInfo {
    unsigned classId; float left, top, width, height, detectionConfidence, rotation_angle;
};
typedef NvDsInferObjectDetectionInfo NvDsInferParseObjectInfo;
#define CHECK_CUSTOM_PARSE_FUNC_PROTOTYPE(name) static void check_##name() { (void)&name; }
"""

PROGRAM = """
#include <cstdio>
#include <cstdlib>
#include "nvdsinfer_parser.cpp"
int main(int, char** arguments) {
    const unsigned first = std::atoi(arguments[1]), second = std::atoi(arguments[2]);
    std::vector<float> values(first * second);
    for (float& value : values) if (std::scanf("%f", &value) != 1) return 2;
    NvDsInferLayerInfo layer{0, {2, {first, second}, first * second}, 0, "y", values.data()};
    std::vector<NvDsInferParseObjectInfo> found;
    if (!NvDsInferParseTrtInt8({layer}, {100, 50, 3}, {2, {0.25F, 0.5F}, {}}, found)) return 3;
    for (const auto& one : found)
        std::printf("%u %g %g %g %g %g\\n", one.classId, one.left, one.top, one.width, one.height,
                    one.detectionConfidence);
}
"""

#: Rows of a layout, with the boxes that are in them: class, left, top, width, height and score.
BOXES = {
    "rows": [[10, 20, 8, 6, 0.25, 0], [50, 25, 200, 10, 0.25, 0.75],
             [5, 5, 2, 2, 0.2, 0.45], [1, 1, 0, 2, 1, 0]],
    "objectness": [[10, 20, 8, 6, 0.5, 0.5, 0], [50, 25, 200, 10, 1, 0.25, 0.75], [5, 5, 2, 2, 0.5, 0, 0.9]],
    "corners": [[6, 17, 14, 23, 0.25, 0], [-50, 20, 150, 30, 0.75, 1],
                [4, 4, 6, 6, 0.4, 1], [4, 4, 6, 6, 1, 7]],
}  # fmt: skip


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no compiler of C++")
@pytest.mark.parametrize("layout", ["columns", "rows", "objectness", "corners"])
@pytest.mark.parametrize("unit", ["pixels", "shares"])
def test_the_parser_finds_the_boxes(deploy, tmp_path, layout, unit):
    rows = np.array(BOXES["rows" if layout == "columns" else layout], np.float32)
    if unit == "shares":
        rows[:, :4] /= np.float32([100, 50, 100, 50])
    rows = np.concatenate([rows, np.full((1, rows.shape[1]), np.nan, np.float32)])
    if layout == "corners":
        model = parsed(
            "float[N, 3, 8, 8] images", "float[N, 5, 6] y",
            "c = Conv (images, w) r = Reshape (c, s) t, i = TopK <axis = 1> (r, k) y = Identity (t)",
            w=np.ones((6, 3, 1, 1), np.float32), s=np.array([0, 64, 6]), k=np.array([5]),
        )  # fmt: skip
    else:
        model = network("columns" if layout == "columns" else "rows", rows.shape[1])
    folder = deploy(model, "deepstream", class_names=NAMES)
    assert properties(folder)["cluster-mode"] == ("4" if layout == "corners" else "2")
    (tmp_path / "nvdsinfer_custom_impl.h").write_text(HEADER)
    (tmp_path / "main.cpp").write_text(PROGRAM)
    flags = [
        "-std=c++17",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-Wno-unused-function",
        f"-I{tmp_path}",
        f"-I{folder}",
    ]
    subprocess.run(["g++", *flags, "main.cpp", "-o", "parse"], cwd=tmp_path, check=True)
    values = rows.T if layout == "columns" else rows
    done = subprocess.run(
        [tmp_path / "parse", *map(str, values.shape)],
        input=" ".join(map(str, values.ravel())),
        capture_output=True,
        text=True,
        check=True,
    )
    found = [[float(part) for part in line.split()] for line in done.stdout.splitlines()]
    assert_allclose(found, [[0, 6, 17, 8, 6, 0.25], [1, 0, 20, 100, 10, 0.75]], atol=1e-4)
