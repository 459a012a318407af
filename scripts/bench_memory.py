"""How much memory calibration takes beyond running the model, where activations are large.

python scripts/bench_memory.py            # 1760 x 1760 inputs, and 4 GB of activations per image

Each run is a process of its own, whose largest resident set counts. The bare run is ONNX Runtime with the
model's own outputs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from process_memory import peak_mib

import calibrators  # noqa: F401  # turns off what ONNX Runtime would send

#: Name to image size, channels and number of layers.
_CASES = {"1760 x 1760": (1760, 16, 6), "4 GB per image": (1024, 32, 32)}


def network(size: int, channels: int, layers: int) -> bytes:
    """3 x 3 convolutions with Relu at full resolution, and a mean at the end; random weights, seeded."""
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(0)
    nodes, weights, last, wide = [], [], "x", 3
    for number in range(layers):
        shape = (channels, wide, 3, 3)
        values = random.standard_normal(shape).astype(np.float32) * np.float32(np.sqrt(2 / (9 * wide)))
        weights.append(numpy_helper.from_array(values, f"w{number}"))
        nodes.append(helper.make_node("Conv", [last, f"w{number}"], [f"c{number}"], pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"c{number}"], [f"r{number}"]))
        last, wide = f"r{number}", channels
    nodes.append(helper.make_node("GlobalAveragePool", [last], ["y"]))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, size, size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", channels, 1, 1])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model.SerializeToString()


def run(kind: str, model: Path, data: Path) -> None:
    """One run in this process, whose largest resident set and seconds are printed."""
    begun = time.perf_counter()
    if kind == "bare":
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.enable_mem_pattern = False
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        for image in np.load(data, mmap_mode="r"):
            session.run(None, {"x": np.ascontiguousarray(image[None])})
    else:
        import trtint8

        trtint8.calibrate(model, data, tensors="all", method=kind, progress=False)
    print(f"{peak_mib():.0f} {time.perf_counter() - begun:.2f}")


def main() -> None:
    """Prints one row per network and kind of run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--images", type=int, default=2)
    parser.add_argument("--one", nargs=3, metavar=("KIND", "MODEL", "DATA"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        run(options.one[0], Path(options.one[1]), Path(options.one[2]))
        return
    print("| network | run | peak MiB | beyond the bare run | seconds |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name, (size, channels, layers) in _CASES.items():
            model, data = Path(folder, "m.onnx"), Path(folder, "d.npy")
            model.write_bytes(network(size, channels, layers))
            images = np.random.default_rng(1).standard_normal((options.images, 3, size, size), np.float32)
            np.save(data, images)
            bare = 0.0
            for kind in ("bare", "mse", "auto"):
                done = subprocess.run(
                    [sys.executable, __file__, "--one", kind, os.fspath(model), os.fspath(data)],
                    stdout=subprocess.PIPE,
                    text=True,
                    check=True,
                )
                peak, seconds = map(float, done.stdout.split())
                bare = bare or peak
                print(f"| {name} | {kind} | {peak:.0f} | {peak - bare:+.0f} | {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
