"""What calibration costs, against what running the model costs, and against other calibrators.

python scripts/bench_calibration.py                          # a ResNet-50 with random weights
python scripts/bench_calibration.py --threads 1 2 4 --images 64 --repeat 3
TRTINT8_CIFAR10=FOLDER python scripts/bench_calibration.py   # and a trained resnet56, with its top-1 in INT8
python scripts/bench_calibration.py --peers FOLDER           # Model Optimizer and PPQ too, installed there
python scripts/bench_calibration.py --thresholds             # the search for thresholds alone

Every figure comes from a process of its own: the seconds from when the libraries are imported, without the
time for making inputs, and the peak of its memory. Measurements take turns, and medians are printed. Ratios
are to `exposed`: ONNX Runtime running the model, batch by batch, with the tensors that placement needs as
outputs, which are thrown away. `cpu` is the ratio of processor time, which other programs disturb less, and
`ranges` is how far the ranges are from ours by the same method, in the median.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

#: Random images that are fed in turn, so that data of any length takes the same memory.
_POOL = 64

#: What other tools are installed from.
_PEERS = {
    "modelopt": ["nvidia-modelopt[onnx]"],
    "ppq": ["ppq", "torch", "onnx<1.15", "protobuf<3.21", "numpy<2", "setuptools<80"],
}

_FIELDS = ("seconds", "cpu", "peak")
_OURS = ("entropy", "minmax")
_ORT = ("ort entropy", "ort minmax")

Work = Callable[[], None]


@dataclass(frozen=True)
class Case:
    """A model, and its files in the benchmark's folder.

    Attributes:
        name: What it is called.
        input: Its only input.
        batch: Images a batch.
        images: Of calibration; float32, shape (n, channels, height, width), as a .npy file.
    """

    name: str
    input: str
    batch: int
    folder: Path

    @property
    def model(self) -> Path:
        """The float model."""
        return self.folder / f"{self.name}.onnx"

    @property
    def exposed(self) -> Path:
        """The same with the tensors that placement needs as outputs."""
        return self.folder / f"{self.name}.exposed.onnx"

    @property
    def pool(self) -> Path:
        """The images."""
        return self.folder / f"{self.name}.npy"

    def feeds(self, images: int) -> Iterator[dict[str, np.ndarray]]:
        """Batches of images, beginning anew at the end of the pool."""
        pool = np.load(self.pool)
        for first in range(0, images, self.batch):
            rows = np.arange(first, min(first + self.batch, images)) % len(pool)
            yield {self.input: pool[rows]}


def resnet50() -> Any:
    """A ResNet-50 for 224 x 224 images with random weights."""
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(0)
    weights, nodes = [], []

    def conv(source: str, width: tuple[int, int], kernel: int, stride: int, name: str, relu: bool) -> str:
        fan_in = width[0] * kernel * kernel
        array = random.standard_normal((width[1], width[0], kernel, kernel)) * (2 / fan_in) ** 0.5
        weights.append(numpy_helper.from_array(array.astype(np.float32), f"{name}.weight"))
        bias = random.standard_normal(width[1]).astype(np.float32) / 100
        weights.append(numpy_helper.from_array(bias, f"{name}.bias"))
        inputs, pads = [source, f"{name}.weight", f"{name}.bias"], [kernel // 2] * 4
        nodes.append(helper.make_node("Conv", inputs, [name], name, strides=[stride] * 2, pads=pads))
        if relu:
            nodes.append(helper.make_node("Relu", [name], [f"{name}.relu"], f"{name}.relu"))
        return f"{name}.relu" if relu else name

    source = conv("x", (3, 64), 7, 2, "stem", True)
    pool = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}
    nodes.append(helper.make_node("MaxPool", [source], ["pool"], "pool", **pool))
    source, channels = "pool", 64
    for stage, (width, blocks) in enumerate([(64, 3), (128, 4), (256, 6), (512, 3)]):
        for block in range(blocks):
            name, stride = f"layer{stage}.{block}", 2 if stage and not block else 1
            branch = conv(source, (channels, width), 1, 1, f"{name}.conv1", True)
            branch = conv(branch, (width, width), 3, stride, f"{name}.conv2", True)
            branch = conv(branch, (width, 4 * width), 1, 1, f"{name}.conv3", False)
            if not block:
                source = conv(source, (channels, 4 * width), 1, stride, f"{name}.down", False)
            nodes.append(helper.make_node("Add", [branch, source], [f"{name}.add"], f"{name}.add"))
            nodes.append(helper.make_node("Relu", [f"{name}.add"], [f"{name}.out"], f"{name}.out"))
            source, channels = f"{name}.out", 4 * width
    weights.append(numpy_helper.from_array(np.float32(0.02) * _normal(random, (2048, 1000)), "fc.weight"))
    nodes += [
        helper.make_node("GlobalAveragePool", [source], ["average"], "average"),
        helper.make_node("Flatten", ["average"], ["flat"], "flat"),
        helper.make_node("Gemm", ["flat", "fc.weight"], ["y"], "fc"),
    ]
    graph = helper.make_graph(
        nodes,
        "resnet50",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 224, 224])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 1000])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _normal(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return random.standard_normal(shape, dtype=np.float32)


# What is measured, each in a process of its own: a function imports, and returns what is timed ------------


def run_onnx(model: Path, case: Case, images: int, threads: int) -> Work:
    """Runs a model and throws its outputs away."""
    import onnxruntime as ort

    def work() -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        session = ort.InferenceSession(os.fspath(model), options, providers=["CPUExecutionProvider"])
        for feed in case.feeds(images):
            session.run(None, feed)

    return work


def run_ours(case: Case, images: int, threads: int, method: str, table: Path) -> Work:
    """Calibrates as a user would, and writes the table."""
    import onnxruntime  # noqa: F401  (which we import late)

    from trtint8.calibration import calibrate

    def work() -> None:
        found = calibrate(
            case.model,
            lambda: case.feeds(images),
            method=method,
            tensors="placed",
            threads=threads,
            progress=False,
        )
        found.save(table)

    return work


def run_ort(case: Case, images: int, threads: int, method: str, table: Path) -> Work:
    """ONNX Runtime's own calibrators, over the same tensors."""
    from onnxruntime import InferenceSession, SessionOptions
    from onnxruntime.quantization import calibrate as ort

    class Reader(ort.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._feeds = case.feeds(images)

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self._feeds, None)

    options = SessionOptions()
    options.intra_op_num_threads = threads
    chosen = ort.CalibrationMethod.Entropy if method == "entropy" else ort.CalibrationMethod.MinMax
    extra = {"num_bins": 2048} if method == "entropy" else {}

    def work() -> None:
        augmented = os.fspath(table.with_suffix(".augmented.onnx"))
        calibrator = ort.create_calibrator(
            case.model,
            ["Conv", "Gemm", "MatMul"],
            augmented_model_path=augmented,
            calibrate_method=chosen,
            extra_options={"symmetric": True, **extra},
        )
        # It has no option for threads.
        calibrator.infer_session = InferenceSession(augmented, options, providers=["CPUExecutionProvider"])
        calibrator.collect_data(Reader())
        ranges = calibrator.compute_data().data
        amax = {
            name: float(max(np.abs(np.ravel(bound)).max() for bound in found.range_value))
            for name, found in ranges.items()
        }
        table.write_text(json.dumps({"amax": amax}))

    return work


def run_modelopt(case: Case, images: int, threads: int, method: str, table: Path) -> Work:
    """Model Optimizer's ONNX quantization: calibration and Q/DQ in one call."""
    # It has no option for threads either, and ONNX Runtime takes as many as there are processors.
    os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:threads]))
    from modelopt.onnx.quantization import quantize

    def work() -> None:
        target = table.with_suffix(".onnx")
        quantize(
            os.fspath(case.model),
            quantize_mode="int8",
            calibration_data={case.input: np.concatenate([f[case.input] for f in case.feeds(images)])},
            calibration_method="entropy" if method == "entropy" else "max",
            calibration_eps=["cpu"],
            output_path=os.fspath(target),
            high_precision_dtype="fp32",
        )
        table.write_text(json.dumps({"amax": _scales_in(target)}))

    return work


def run_ppq(case: Case, images: int, threads: int, method: str, table: Path) -> Work:
    """PPQ's TensorRT platform."""
    import torch
    from ppq import QuantizationSettingFactory, TargetPlatform
    from ppq.api import quantize_onnx_model

    torch.set_num_threads(threads)

    def work() -> None:
        batches = [torch.from_numpy(feed[case.input]) for feed in case.feeds(images)]
        setting = QuantizationSettingFactory.default_setting()
        setting.quantize_activation_setting.calib_algorithm = "kl" if method == "entropy" else "minmax"
        graph = quantize_onnx_model(
            onnx_import_file=os.fspath(case.model),
            calib_dataloader=batches,
            calib_steps=max(8, len(batches)),
            input_shape=list(batches[0].shape),
            setting=setting,
            platform=TargetPlatform.TRT_INT8,
            device="cpu",
            verbose=0,
        )
        table.write_text(json.dumps({"amax": _ppq_ranges(graph)}))

    return work


def _ppq_ranges(graph: Any) -> dict[str, float]:
    """The range of every variable that PPQ gave a scale."""
    amax = {}
    for operation in graph.operations.values():
        if hasattr(operation, "config_with_variable"):
            for config, variable in operation.config_with_variable:
                scale = getattr(config.dominated_by, "scale", None)
                if not variable.is_parameter and scale is not None and scale.numel() == 1:
                    amax[variable.name] = 127 * float(scale)
    return amax


def _scales_in(model: Path) -> dict[str, float]:
    """The range of every activation with a per-tensor QuantizeLinear."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(model).graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    return {
        node.input[0]: 127 * float(numpy_helper.to_array(constants[node.input[1]]))
        for node in graph.node
        if node.op_type == "QuantizeLinear"
        and node.input[0] not in constants
        and not constants[node.input[1]].dims
    }


def child(options: argparse.Namespace) -> None:
    """Does one thing, and prints what it took."""
    case = Case(options.case, options.input, options.batch, options.folder)
    kind, _, method = options.child.partition(" ")
    images, threads, table = options.images[0], options.threads[0], options.table
    if kind in ("plain", "exposed"):
        work = run_onnx(case.model if kind == "plain" else case.exposed, case, images, threads)
    elif kind in _OURS:
        work = run_ours(case, images, threads, kind, table)
    else:
        peers = {"ort": run_ort, "modelopt": run_modelopt, "ppq": run_ppq}
        work = peers[kind](case, images, threads, method, table)
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    found = {"seconds": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
    print(json.dumps({**found, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))


# The parent --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One line of the result: medians of seconds, of processor seconds and of the peak in MiB."""

    kind: str
    seconds: float
    cpu: float
    peak: float
    table: Path


def measure(
    case: Case, kinds: Sequence[str], images: int, threads: int, repeat: int, peers: Path | None
) -> list[Row]:
    """Runs every kind ``repeat`` times, in turns, so that a busy moment meets all of them."""
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    tables = {kind: case.folder / f"{case.name}.{kind.replace(' ', '-')}.json" for kind in kinds}
    for _ in range(repeat):
        for kind in kinds:
            python = sys.executable
            if peers and (name := kind.split()[0]) in _PEERS:
                python = os.fspath(peers / name / "bin" / "python")
            command = [python, __file__, "--child", kind, "--case", case.name, "--input", case.input]
            command += ["--batch", str(case.batch), "--folder", os.fspath(case.folder)]
            command += ["--images", str(images), "--threads", str(threads)]
            command += ["--table", os.fspath(tables[kind])]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                reason = (done.stderr.strip().splitlines() or [f"signal {-done.returncode}"])[-1]
                print(f"  {kind}: failed ({reason[:150]})")
                break
            found[kind].append(json.loads(done.stdout.splitlines()[-1]))
    return [
        Row(kind, *(statistics.median(each[key] for each in times) for key in _FIELDS), tables[kind])
        for kind, times in found.items()
        if times
    ]


def show(case: Case, rows: Sequence[Row], images: int, threads: int, top1: dict[str, float]) -> None:
    """Prints the table of one setting."""
    base = {row.kind: row for row in rows}
    exposed, plain = base["exposed"], base["plain"]
    ours = {method: _ranges(base[method].table) for method in _OURS if method in base}
    print(f"\n{case.name}, {images} images in batches of {case.batch}, {threads} threads")
    print(f"{'':18}{'s':>8}{'exposed':>9}{'plain':>8}{'cpu':>8}{'MiB':>8}{'':8}{'ranges':>9}{'top-1':>8}")
    for row in rows:
        ranges = _ranges(row.table) if row.table.exists() else {}
        reference = ours.get(row.kind.split()[-1], {})
        shared = [abs(ranges[name] / reference[name] - 1) for name in ranges if reference.get(name)]
        apart = f"{100 * statistics.median(shared):.1f} %" if shared else ""
        accuracy = f"{top1[row.kind]:.2f}" if row.kind in top1 else ""
        print(
            f"{row.kind:18}{row.seconds:8.2f}{row.seconds / exposed.seconds:8.2f}x"
            f"{row.seconds / plain.seconds:7.2f}x{row.cpu / exposed.cpu:7.2f}x"
            f"{row.peak:8.0f}{row.peak - exposed.peak:+8.0f}{apart:>9}{accuracy:>8}"
        )


def _ranges(table: Path) -> dict[str, float]:
    ranges: dict[str, float] = json.loads(table.read_text())["amax"]
    return ranges


def write_exposed(case: Case) -> None:
    """The model that placement sees, with all that it needs among the outputs."""
    from onnx import helper

    from trtint8.model import load_model, prepare, to_proto
    from trtint8.quantization.placement import place

    prepared = prepare(load_model(case.model))
    model = to_proto(prepared.graph_model)
    present = {value.name for value in (*model.graph.input, *model.graph.output)}
    tensors = [name for name in place(prepared.graph_model).tensors if name not in present]
    model.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in tensors)
    case.exposed.write_bytes(model.SerializeToString())


def accuracy(case: Case, rows: Sequence[Row], heldout: Path) -> dict[str, float]:
    """Top-1 in per cent of the model quantized with each table, and of the float model as `plain`."""
    import trtint8
    from calibrators.preprocessing import Preprocessing
    from calibrators.table import CalibrationTable

    preprocessing = Preprocessing(mean=_MEAN, std=_STD)
    needed = trtint8.calibrate(
        case.model, case.feeds(case.batch), tensors="placed", method="minmax", progress=False
    )
    top1 = {}
    for row in rows:
        if row.kind in ("plain", "exposed"):
            continue
        ranges = _ranges(row.table)
        if missing := [name for name in needed.amax if name not in ranges]:
            print(f"  {row.kind}: no range for {len(missing)} of {len(needed.amax)} tensors, so minmax's")
        table = CalibrationTable({name: ranges.get(name, amax) for name, amax in needed.amax.items()})
        report = trtint8.validate(
            trtint8.quantize(case.model, table),
            heldout,
            reference=case.model,
            preprocessing=preprocessing,
            progress=False,
        )
        if report.top1 and report.reference_top1:
            top1[row.kind], top1["plain"] = 100 * report.top1.value, 100 * report.reference_top1.value
    return top1


_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def cases(folder: Path, wanted: Sequence[str]) -> Iterator[tuple[Case, Path | None]]:
    """The cases that can be run here, with their files written; and held-out data, where there is any."""
    if "resnet50" in wanted:
        case = Case("resnet50", "x", 8, folder)
        case.model.write_bytes(resnet50().SerializeToString())
        np.save(case.pool, _normal(np.random.default_rng(1), (_POOL, 3, 224, 224)))
        write_exposed(case)
        yield case, None
    cifar = os.environ.get("TRTINT8_CIFAR10")
    if cifar and "resnet56" in wanted:
        case = Case("resnet56", "input", 50, folder)
        case.model.write_bytes((Path(cifar) / "resnet56.onnx").read_bytes())
        images = np.load(Path(cifar) / "calibration.npz")["images"]
        pixels = ((images / np.float32(255) - np.float32(_MEAN)) / np.float32(_STD)).transpose(0, 3, 1, 2)
        np.save(case.pool, np.ascontiguousarray(pixels, np.float32))
        write_exposed(case)
        yield case, Path(cifar) / "heldout.npz"


def install(peers: Path) -> list[str]:
    """Makes an environment for each of the other tools; returns those that could be made."""
    made = []
    for name, packages in _PEERS.items():
        python = peers / name / "bin" / "python"
        if not python.exists():
            venv.create(peers / name, with_pip=True)
        command = [os.fspath(python), "-m", "pip", "install", "--quiet", *packages]
        if subprocess.run(command, check=False).returncode:
            print(f"{name}: cannot be installed here, left out")
        else:
            made.append(name)
    return made


def bench_thresholds() -> None:
    """Seconds of all methods on 120 histograms like those of a ResNet."""
    from calibrators.histogram import Histogram
    from calibrators.table import CalibrationTable, Provenance
    from calibrators.thresholds import METHODS

    for bins in (2_048, 8_192):
        random, histograms = np.random.default_rng(0), {}
        for index in range(120):
            histogram = Histogram(np.zeros(bins, np.int64))
            values = random.laplace(scale=1 + index / 50, size=200_000)
            histogram.observe((np.maximum(values, 0) if index % 2 else values).astype(np.float32))
            histograms[str(index)] = histogram
        times = {}
        for method in METHODS:
            began = time.perf_counter()
            CalibrationTable.from_histograms(histograms, method, Provenance())
            times[method] = time.perf_counter() - began
        shown = ", ".join(f"{method} {seconds:.3f} s" for method, seconds in times.items())
        print(f"120 tensors, {bins:,} bins, all methods: {sum(times.values()):.3f} s ({shown})")


def main() -> None:
    """Prints a table for every setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--images", type=int, nargs="+", default=[64, 512])
    parser.add_argument("--threads", type=int, nargs="+", default=[2])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--cases", nargs="+", default=["resnet50", "resnet56"])
    parser.add_argument("--without-ort", action="store_true", help="leave ONNX Runtime's calibrators out")
    parser.add_argument("--peers", type=Path, help="a folder for environments with Model Optimizer and PPQ")
    parser.add_argument("--thresholds", action="store_true", help="only the search for thresholds")
    for name, kind in {"child": str, "case": str, "input": str, "batch": int}.items():
        parser.add_argument(f"--{name}", type=kind, help=argparse.SUPPRESS)
    for name in ("folder", "table"):
        parser.add_argument(f"--{name}", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options)
        return
    bench_thresholds()
    if options.thresholds:
        return
    peers = install(options.peers) if options.peers else []
    kinds = ["plain", "exposed", *_OURS, *(() if options.without_ort else _ORT)]
    kinds += [f"{peer} {method}" for peer in peers for method in _OURS]
    with tempfile.TemporaryDirectory() as name:
        for case, heldout in cases(Path(name), options.cases):
            for images in options.images:
                for threads in options.threads:
                    rows = measure(case, kinds, images, threads, options.repeat, options.peers)
                    top1 = accuracy(case, rows, heldout) if heldout else {}
                    show(case, rows, images, threads, top1)


if __name__ == "__main__":
    main()
