"""Tools that write models with Q/DQ pairs, each run in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from process_memory import peak_mib

import calibrators  # noqa: F401  # turns off what ONNX Runtime would send

#: Inputs of one run by name.
Feed = dict[str, np.ndarray]

_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Job:
    """What a tool has to do.

    Attributes:
        model: The float model.
        samples: Calibration samples: see :func:`feeds_of`.
        batch: Samples per run.
        output: Where the model with Q/DQ pairs goes.
    """

    model: str
    samples: str
    batch: int
    output: str

    def feeds(self) -> Iterator[Feed]:
        """The samples in batches."""
        yield from feeds_of(self.model, self.samples, self.batch)

    def joined(self) -> Feed:
        """All samples as one array per input."""
        feeds = list(self.feeds())
        return {name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]}


def feeds_of(model: str, samples: str, batch: int = 1) -> Iterator[Feed]:
    """Reads samples in batches.

    Args:
        model: The model whose inputs they are.
        samples: An ``.npz`` with an array per input, whose axis 0 is that of the samples. If the input has no
            axis of samples there, each array has one axis more, and each run gets one sample.
        batch: Samples per run.
    """
    import onnx

    inputs = onnx.load(model, load_external_data=False).graph.input
    with np.load(samples) as file:
        arrays = {each.name: file[each.name] for each in inputs if each.name in file}
    whole = {e.name for e in inputs if np.ndim(arrays.get(e.name)) > len(e.type.tensor_type.shape.dim)}
    for first in range(0, len(next(iter(arrays.values()))), 1 if whole else batch):
        yield {name: a[first] if name in whole else a[first : first + batch] for name, a in arrays.items()}


def with_trtint8(job: Job, **options: Any) -> None:
    """Quantizes by trtint8, with these options of its own."""
    import onnx

    import trtint8

    table = trtint8.calibrate(job.model, job.feeds, progress=False)
    onnx.save(trtint8.quantize(job.model, table, **options), job.output)


def with_onnx_runtime(job: Job, **options: Any) -> None:
    """Quantizes by ONNX Runtime, with these options of its own."""
    from onnxruntime.quantization import CalibrationDataReader, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._feeds = job.feeds()

        def get_next(self) -> Feed | None:
            return next(self._feeds, None)

    quantize_static(job.model, job.output, Reader(), **options)


def with_model_optimizer(job: Job, **options: Any) -> None:
    """Quantizes by Model Optimizer, with these options of its own."""
    from modelopt.onnx.quantization import quantize

    quantize(
        job.model,
        quantize_mode="int8",
        calibration_data=job.joined(),
        calibration_eps=["cpu"],
        output_path=job.output,
        **options,
    )


def with_onnxconverter(job: Job) -> None:
    """Converts to FP16 by onnxconverter-common."""
    import onnx
    from onnxconverter_common.float16 import convert_float_to_float16

    onnx.save(convert_float_to_float16(onnx.load(job.model)), job.output)


def with_autocast(job: Job, *, with_samples: bool = False) -> None:
    """Converts to FP16 by Model Optimizer's AutoCast, which takes random inputs unless it gets samples."""
    import onnx
    from modelopt.onnx.autocast import convert_to_mixed_precision

    samples = f"{job.output}.npz" if with_samples else None
    if samples:
        np.savez(samples, **job.joined())
    onnx.save(convert_to_mixed_precision(job.model, calibration_data=samples), job.output)


#: Name of each tool to what quantizes with it.
Tools = Mapping[str, Callable[[Job], None]]

#: Name of each tool to its environment in the folder of peers, unless it runs in this one.
ENVIRONMENTS = {
    "Model Optimizer": "modelopt",
    "AutoCast": "modelopt",
    "AutoCast, samples": "modelopt",
    "onnxconverter": "onnxconverter",
}


@dataclass(frozen=True)
class Cost:
    """What one run took: processor seconds, seconds and the peak in MiB."""

    processor: float
    seconds: float
    peak: float


def run(script: str, tool: str, job: Job, peers: Path | None, timeout: float | None = None) -> Cost | str:
    """Quantizes with a tool in a process of its own; returns the reason where it fails.

    Args:
        script: The script that passes the arguments behind ``--child`` to :func:`work`.
        tool: Name of the tool.
        job: What it has to do.
        peers: The folder of the environments; None where this environment has the tool.
        timeout: The most seconds that it may take.
    """
    environment = ENVIRONMENTS.get(tool)
    python = os.fspath(peers / environment / "bin" / "python") if peers and environment else sys.executable
    begun, before = time.perf_counter(), os.times()
    try:
        done = subprocess.run(
            [python, script, "--child", tool, json.dumps(asdict(job))],
            env={**os.environ, "PYTHONPATH": os.fspath(_ROOT)},
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        return f"took more than {timeout:.0f} s"
    after = os.times()
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [""])[-1]
        return f"signal {-done.returncode}" if done.returncode < 0 else last
    result = json.loads(done.stdout.splitlines()[-1])
    processor = after.children_user + after.children_system - before.children_user - before.children_system
    return result.get("failed") or Cost(processor, time.perf_counter() - begun, result["peak"])


def work(tools: Tools, tool: str, job: str) -> None:
    """Does a job in this process, and prints its peak of memory, or the first line of the error."""
    try:
        tools[tool](Job(**json.loads(job)))
        result: dict[str, Any] = {"peak": peak_mib()}
    except Exception as error:  # noqa: BLE001  # whatever it is, the table says it
        first = next(iter(str(error).strip().splitlines()), "")
        result = {"failed": f"{type(error).__name__}: {first[:300]}"}
    print(f"\n{json.dumps(result)}", flush=True)
