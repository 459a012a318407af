"""The arithmetic of ncnn, against ncnn itself, with the table that is written for it."""

import numpy as np
import pytest

from calibrators.tables.table import CalibrationTable
from tests.trtint8.arithmetic.simulated import output_of, values
from tests.trtint8.onnx_models import Shaped, prepared_graph
from trtint8.interop.migrate import render_ncnn_table

ncnn = pytest.importorskip("ncnn", reason="ncnn is not installed (pip install ncnn)")

#: Marks weights of int8 in ncnn's binary files (``ModelBinFromDataReader::load``).
INT8 = np.array([0x000D4B38], np.uint32).tobytes()


def rounded(array):
    """Half away from zero, clipped, as ncnn's tools write weights."""
    away = np.copysign(np.floor(np.abs(array.astype(np.float64)) + 0.5), array)
    return np.clip(away, -127, 127).astype(np.int8)


class Network:
    """Layers of ncnn one after another, whose scales come from a table of ncnn's."""

    def __init__(self, table):
        self.lines, self.blob = ["Input in 0 1 blob0"], b""
        self.scales = {}
        for line in table.decode().splitlines():
            name, *scales = line.split()
            self.scales[name] = np.array(scales, np.float32)

    def add(self, kind, options):
        number = len(self.lines)
        self.lines.append(f"{kind} layer{number} 1 1 blob{number - 1} blob{number} {options}")

    def weighted(self, kind, name, weights, bias, options, *, follows=None):
        """Adds a layer; the one that follows, if named, gets its integers from it directly."""
        scales = self.scales[f"{name}_param_0"]
        integers = rounded(weights * scales.reshape(-1, *[1] * (weights.ndim - 1)))
        raw = integers.tobytes()
        self.blob += INT8 + raw + b"\0" * (-len(raw) % 4) + bias.tobytes() + scales.tobytes()
        self.blob += self.scales[name].tobytes()
        if follows is not None:
            self.blob += self.scales[follows].tobytes()
        term = 1 if kind == "ConvolutionDepthWise" else 2
        self.add(kind, f"{options} 8={term + (100 if follows else 0)}")

    def run(self, array, folder):
        (folder / "net.param").write_text(
            "\n".join(["7767517", f"{len(self.lines)} {len(self.lines)}", *self.lines, ""])
        )
        (folder / "net.bin").write_bytes(self.blob)
        net = ncnn.Net()
        # Packed depthwise kernels for x86 take reciprocals of scales that are right to 12 bits.
        for option in ("vulkan_compute", "fp16_packed", "fp16_storage", "fp16_arithmetic", "packing_layout"):
            setattr(net.opt, f"use_{option}", False)
        assert net.load_param(str(folder / "net.param")) == 0
        assert net.load_model(str(folder / "net.bin")) == 0
        extractor = net.create_extractor()
        extractor.input("blob0", ncnn.Mat(array).clone())
        status, found = extractor.extract(f"blob{len(self.lines) - 1}")
        assert status == 0
        return np.array(found)


def table_for(model, ranges, path):
    path.write_bytes(model.SerializeToString())
    table = CalibrationTable(ranges)
    return render_ncnn_table(table, path)


def assert_close(ours, theirs):
    ours = ours.reshape(theirs.shape)
    assert np.abs(ours - theirs).max() <= 1e-5 * np.abs(theirs).max()


CASES = [(1, 8, 12, 3, 1, 1), (2, 4, 16, 1, 1, 0), (3, 3, 5, 3, 2, 1), (4, 16, 16, 5, 1, 2)]


@pytest.mark.parametrize(("seed", "channels", "filters", "kernel", "stride", "pad"), CASES)
@pytest.mark.parametrize("share", [1.2, 0.6])
def test_a_convolution(tmp_path, seed, channels, filters, kernel, stride, pad, share):
    weights, bias = values((filters, channels, kernel, kernel), seed), values(filters, seed + 10)
    images = values((1, channels, 11, 11), seed + 20)
    g = Shaped()
    out = g.Conv(
        "conv",
        "x",
        g.constant(weights),
        g.constant(bias),
        kernel_shape=[kernel] * 2,
        strides=[stride] * 2,
        pads=[pad] * 4,
    )
    model, ranges = g.model({"x": list(images.shape)}, out), {"x": float(np.abs(images).max()) * share}
    net = Network(table_for(model, ranges, tmp_path / "model.onnx"))
    options = f"0={filters} 1={kernel} 3={stride} 4={pad} 5=1 6={weights.size}"
    net.weighted("Convolution", "conv", weights, bias, options)
    assert_close(output_of(model, ranges, "ncnn", {"x": images}), net.run(images[0], tmp_path))


@pytest.mark.parametrize(("channels", "kernel", "stride"), [(8, 3, 1), (12, 3, 2), (5, 5, 1)])
def test_a_depthwise_convolution(tmp_path, channels, kernel, stride):
    weights, bias, images = (
        values((channels, 1, kernel, kernel)),
        values(channels, 1),
        values((1, channels, 13, 13), 2),
    )
    g = Shaped()
    out = g.Conv(
        "conv",
        "x",
        g.constant(weights),
        g.constant(bias),
        kernel_shape=[kernel] * 2,
        strides=[stride] * 2,
        group=channels,
    )
    model, ranges = g.model({"x": list(images.shape)}, out), {"x": float(np.abs(images).max())}
    net = Network(table_for(model, ranges, tmp_path / "model.onnx"))
    options = f"0={channels} 1={kernel} 3={stride} 4=0 5=1 6={weights.size} 7={channels}"
    net.weighted("ConvolutionDepthWise", "conv", weights, bias, options)
    assert_close(output_of(model, ranges, "ncnn", {"x": images}), net.run(images[0], tmp_path))


@pytest.mark.parametrize(("inner", "columns"), [(16, 10), (100, 7), (512, 33)])
def test_an_inner_product(tmp_path, inner, columns):
    weights, bias, rows = values((columns, inner)), values(columns, 1), values((1, inner), 2)
    g = Shaped()
    out = g.Gemm("gemm", "x", g.constant(weights), g.constant(bias), transB=1)
    model, ranges = g.model({"x": [1, inner]}, out), {"x": float(np.abs(rows).max())}
    net = Network(table_for(model, ranges, tmp_path / "model.onnx"))
    net.weighted("InnerProduct", "gemm", weights, bias, f"0={columns} 1=1 2={weights.size}")
    assert_close(output_of(model, ranges, "ncnn", {"x": rows}), net.run(rows[0], tmp_path))


@pytest.mark.parametrize("requantized", [False, True])
def test_three_layers(tmp_path, requantized):
    """Layers that hand on integers compute what layers do that hand on floats."""
    first, second, last = values((8, 3, 3, 3)), values((8, 1, 3, 3), 1), values((10, 8 * 36), 2)
    biases = [values(8, 3), values(8, 4), values(10, 5)]
    images = values((1, 3, 8, 8), 6)
    g = Shaped()
    x = g.Conv("first", "x", g.constant(first), g.constant(biases[0]), kernel_shape=[3, 3], pads=[1] * 4)
    hidden = g.Relu("relu", x)
    x = g.Conv("second", hidden, g.constant(second), g.constant(biases[1]), kernel_shape=[3, 3], group=8)
    behind = g.Relu("relu2", x)
    flat = g.Flatten("flat", behind)
    out = g.Gemm("last", flat, g.constant(last), g.constant(biases[2]), transB=1)
    model = g.model({"x": list(images.shape)}, out)
    ranges = {"x": 2.5, hidden: 9.0, flat: 20.0}
    net = Network(table_for(model, ranges, tmp_path / "model.onnx"))
    follows = {"follows": "second"} if requantized else {}
    net.weighted("Convolution", "first", first, biases[0], f"0=8 1=3 4=1 5=1 6={first.size} 9=1", **follows)
    net.weighted(
        "ConvolutionDepthWise", "second", second, biases[1], f"0=8 1=3 4=0 5=1 6={second.size} 7=8 9=1"
    )
    net.weighted("InnerProduct", "last", last, biases[2], f"0=10 1=1 2={last.size}")
    assert_close(output_of(model, ranges, "ncnn", {"x": images}), net.run(images[0], tmp_path))
    assert prepared_graph(model).graph.num_nodes() == 6
