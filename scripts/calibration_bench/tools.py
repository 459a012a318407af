"""Calibrators, ours and others, each as a function that imports what it needs and returns what is timed."""

from __future__ import annotations

import json
import os
import subprocess
import venv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import calibrators  # noqa: F401  # turns off what ONNX Runtime would send
from calibration_bench.cases import Case

#: What is timed.
Work = Callable[[], None]

#: Name of each other tool to the packages that it is installed from.
PEERS = {
    "modelopt": ["nvidia-modelopt[onnx]"],
    "onnxconverter": ["onnxconverter-common", "onnxruntime"],
    "ppq": ["ppq", "torch", "onnx<1.15", "protobuf<3.21", "numpy<2", "setuptools<80"],
}


def install(peers: Path, names: Sequence[str] = tuple(PEERS)) -> list[str]:
    """Makes an environment for each of the other tools, or of some; returns those that could be made."""
    made = []
    for name in names:
        python = peers / name / "bin" / "python"
        if not python.exists():
            venv.create(peers / name, with_pip=True)
        command = [os.fspath(python), "-m", "pip", "install", "--quiet", *PEERS[name]]
        if subprocess.run(command, check=False).returncode:
            print(f"{name}: cannot be installed here, left out")
        else:
            made.append(name)
    return made


def run_onnx(model: Path, case: Case, images: int, threads: int) -> Work:
    """Runs a model and discards its outputs."""
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

    from trtint8 import calibrate

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
    """Calibrates by ONNX Runtime's own calibrators, on the same tensors."""
    from onnxruntime import InferenceSession, SessionOptions
    from onnxruntime.quantization import calibrate as ort

    class Reader(ort.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._feeds = case.feeds(images)

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self._feeds, None)

    options = SessionOptions()
    options.intra_op_num_threads = threads
    chosen = {
        "entropy": ort.CalibrationMethod.Entropy,
        "percentile": ort.CalibrationMethod.Percentile,
        "minmax": ort.CalibrationMethod.MinMax,
    }[method]
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
    """Runs Model Optimizer's ONNX quantization: calibration and Q/DQ in one call."""
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
    """Quantizes by PPQ for its TensorRT platform."""
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
