"""What quantizing costs: seconds by the number of nodes, and memory for a model of more than 2 GiB.

python scripts/bench_quantize.py            # graphs of 1,000 to 10,000 nodes
python scripts/bench_quantize.py --large    # 2.4 GB of weights in a temporary folder
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from calibrators.tables.table import CalibrationTable
from trtint8.models.model import load_model, prepare
from trtint8.models.serialization import save_model
from trtint8.quantization.placement import place
from trtint8.quantization.quantize import quantize_graph

_SIZES = (1_000, 2_000, 5_000, 10_000)
_WIDTH, _LAYERS = 7_300, 12


def chain(nodes: int) -> onnx.ModelProto:
    """Residual blocks of Conv, Relu, Conv, Add, Relu until there are that many nodes."""
    random = np.random.default_rng(0)
    weights, made, source = [], [], "x"
    for block in range(nodes // 5):
        a, b, c, d, e = (f"{name}{block}" for name in "abcde")
        for name in (f"w{a}", f"w{c}"):
            array = random.standard_normal((8, 8, 3, 3)).astype(np.float32)
            weights.append(numpy_helper.from_array(array, name))
        made += [
            helper.make_node("Conv", [source, f"w{a}"], [a], a, pads=[1] * 4),
            helper.make_node("Relu", [a], [b], b),
            helper.make_node("Conv", [b, f"w{c}"], [c], c, pads=[1] * 4),
            helper.make_node("Add", [c, source], [d], d),
            helper.make_node("Relu", [d], [e], e),
        ]
        source = e
    shape = ["N", 8, 16, 16]
    graph = helper.make_graph(
        made,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(source, TensorProto.FLOAT, shape)],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def write_large(folder: Path) -> Path:
    """A chain of matrix products with weights in a file of their own."""
    weights, nodes, source = [], [], "x"
    with (folder / "weights.bin").open("wb") as stream:
        for index in range(_LAYERS):
            array = np.random.default_rng(index).standard_normal((_WIDTH, _WIDTH), dtype=np.float32)
            tensor = TensorProto(name=f"w{index}", data_type=TensorProto.FLOAT, dims=array.shape)
            tensor.data_location = TensorProto.EXTERNAL
            place_of = {"location": "weights.bin", "offset": stream.tell(), "length": array.nbytes}
            for key, value in place_of.items():
                tensor.external_data.add(key=key, value=str(value))
            stream.write(array.tobytes())
            weights.append(tensor)
            nodes.append(helper.make_node("MatMul", [source, f"w{index}"], [f"m{index}"], f"matmul{index}"))
            nodes.append(helper.make_node("Relu", [f"m{index}"], [f"r{index}"], f"relu{index}"))
            source = f"r{index}"
    shape = ["N", _WIDTH]
    graph = helper.make_graph(
        nodes,
        "large",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(source, TensorProto.FLOAT, shape)],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


def quantize_file(source: Path, target: Path) -> float:
    """Seconds from one file to the other."""
    start = time.perf_counter()
    prepared = prepare(load_model(source))
    tensors = place(prepared.graph_model).tensors
    graph_model, _ = quantize_graph(prepared, CalibrationTable(dict.fromkeys(tensors, 1.0)))
    save_model(graph_model, target)
    return time.perf_counter() - start


def main() -> None:
    """Prints one line per model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--large", action="store_true", help="a model of 2.4 GB; needs 8 GB of disk")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        if options.large:
            bench_large(Path(name))
        else:
            bench_nodes(Path(name))


def bench_large(folder: Path) -> None:
    """Seconds and peak memory for the large model."""
    source = write_large(folder)
    weights = (folder / "weights.bin").stat().st_size / 2**20
    seconds = quantize_file(source, folder / "quantized.onnx")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"weights {weights:,.0f} MiB: {seconds:.1f} s, peak {peak:,.0f} MiB, {peak / weights:.2f}x")


def bench_nodes(folder: Path) -> None:
    """Seconds by the number of nodes, and how they grow compared with the smallest graph."""
    first = None
    for nodes in _SIZES:
        onnx.save(chain(nodes), folder / "model.onnx")
        each = quantize_file(folder / "model.onnx", folder / "quantized.onnx") / nodes
        first = first or each
        print(f"{nodes:6,} nodes: {nodes * each:5.2f} s, {1e6 * each:4.0f} us per node, {each / first:.2f}x")


if __name__ == "__main__":
    main()
