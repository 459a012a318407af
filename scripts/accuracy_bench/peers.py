"""Ranges of other tools, each of which runs in a process of its own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import onnx
from bench_calibration import run_child
from calibration_bench import cases as calibration_cases

import trtint8
from accuracy_bench.methods import Workbench
from calibrators.data.opening import open_batches

#: Name of each method of another tool to the tool and the method as ``calibration_bench`` calls them.
PEER_METHODS = {
    "ONNX Runtime percentile": "ort percentile",
    "Model Optimizer entropy": "modelopt entropy",
    "Model Optimizer max": "modelopt minmax",
    "PPQ kl": "ppq entropy",
}

#: The most seconds that a tool may take for one network.
_MOST_SECONDS = 300

#: The most samples per batch.
_LARGEST_BATCH = 16


class PeerError(Exception):
    """A tool cannot calibrate a network; the message is its last line, or says why."""


class PeerBench:
    """One network, prepared for other tools.

    Args:
        bench: The network, and its table for the ranges that a tool does not give.
        folder: For the tools' files.
        environments: The folder of the tools' environments; None where this one has the tool.
    """

    def __init__(self, bench: Workbench, folder: Path, environments: Path | None) -> None:
        case = bench.case
        (given,) = trtint8.model_inputs(case.model)
        feeds = open_batches(case.calibration, [given], limit=bench.limit, preprocessing=case.preprocessing)
        samples = np.concatenate([feed[given.name] for feed in feeds])
        self.samples = len(samples)
        # ONNX Runtime's histograms take batches of one size only.
        fixed = given.shape[0] if given.shape else None
        sizes = [fixed] if isinstance(fixed, int) else range(_LARGEST_BATCH, 0, -1)
        batch = next(size for size in sizes if self.samples % size == 0)
        self._bench, self._environments = bench, environments
        self._case = calibration_cases.Case(case.name, given.name, batch, folder)
        self._case.model.write_bytes(case.model.read_bytes())
        np.save(self._case.pool, samples)

    def quantize(self, method: str) -> tuple[onnx.ModelProto, str]:
        """Brings the network into INT8 with another tool's ranges.

        Args:
            method: A key of :data:`PEER_METHODS`.

        Returns:
            The model, and how many ranges are from ``minmax``, because the tool did not give them.

        Raises:
            PeerError: The tool fails, or takes too long.
        """
        file = self._case.folder / f"{self._case.name}.{method.replace(' ', '-')}.json"
        kind, environments = PEER_METHODS[method], self._environments
        try:
            done = run_child(kind, self._case, self.samples, 2, file, environments, timeout=_MOST_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise PeerError(f"takes more than {_MOST_SECONDS} s") from error
        if done.returncode:
            raise PeerError((done.stderr.strip().splitlines() or [f"signal {-done.returncode}"])[-1][:100])
        ranges: dict[str, float] = json.loads(file.read_text())["amax"]
        own = self._bench.table.with_method("minmax").amax
        table = trtint8.CalibrationTable({name: ranges.get(name, amax) for name, amax in own.items()})
        missing = len(own.keys() - ranges.keys())
        note = f"{missing} of {len(own)} ranges from minmax" if missing else ""
        return trtint8.quantize(self._bench.case.model, table), note
