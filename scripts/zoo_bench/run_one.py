"""One network through every verb, in a process of its own; prints a row as JSON.

python run_one.py NAME EXPORTER FOLDER
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import torch

import trtint8
from calibrators.operators import operator_named
from trtint8.models.model import load_model, prepare
from trtint8.quantization.placement import Placement, place
from trtint8.quantization.targets import target_named
from zoo_bench.architectures import ARCHITECTURES, Architecture

#: Samples for calibration, and for judging.
_CALIBRATION, _JUDGED = 16, 8

#: Batches for the statistics of BatchNorm.
_NORMALIZED = 20

#: The GPU that engines are estimated for.
_GPU = "RTX 4090"


def export(architecture: Architecture, exporter: str, path: Path) -> None:
    """Writes the network as ONNX, with a dynamic number of samples."""
    torch.manual_seed(0)
    model = architecture.make()
    inputs = architecture.inputs(2)
    if any(isinstance(part, torch.nn.modules.batchnorm._BatchNorm) for part in model.modules()):
        # With the statistics that they begin with, activations vanish or grow from layer to layer.
        with torch.no_grad():
            for _ in range(_NORMALIZED):
                model.train()(*architecture.inputs(8))
    model.eval()
    dynamic = torch.export.Dim.DYNAMIC
    keywords = (
        {"dynamo": True, "dynamic_shapes": _shapes(model, architecture, {0: dynamic})}
        if exporter == "dynamo"
        else {"dynamo": False, "dynamic_axes": {name: {0: "N"} for name in architecture.names}}
    )
    with torch.no_grad():
        for parameter in model.parameters():
            # Classifiers that begin with zeros have constant outputs, which show no error.
            if parameter.dim() > 1 and not parameter.any():
                parameter.normal_(std=0.02)
    # The exporter "script" has no form of the operator that replaces nn.MultiheadAttention outside training.
    torch.backends.mha.set_fastpath_enabled(False)
    with torch.no_grad(), contextlib.redirect_stdout(sys.stderr):
        torch.onnx.export(
            model, inputs, path, input_names=list(architecture.names), external_data=False, **keywords
        )


def _shapes(model: torch.nn.Module, architecture: Architecture, dims: dict[int, object]) -> object:
    """Dynamic dimensions of every input, in the form that ``forward`` has its arguments."""
    import inspect

    kinds = [p.kind for p in inspect.signature(model.forward).parameters.values()]
    each = tuple(dims for _ in architecture.names)
    return (each,) if kinds and kinds[0] is inspect.Parameter.VAR_POSITIONAL else each


def data(architecture: Architecture, samples: int, seed: int) -> dict[str, np.ndarray]:
    """Random inputs by name."""
    torch.manual_seed(seed)
    found = architecture.inputs(samples)
    return {name: value.numpy() for name, value in zip(architecture.names, found, strict=True)}


def reasons(placement: Placement) -> tuple[int, int, dict[str, int]]:
    """How many weighted nodes are quantized, of how many, and why the others are not."""
    decisions = [d for d in placement.decisions if operator_named(d.operator).is_weighted]
    why = Counter(f"{d.operator}: {d.reason}" for d in decisions if not d.quantized)
    return sum(d.quantized for d in decisions), len(decisions), dict(why)


def main() -> None:
    """Exports, calibrates, quantizes, validates and builds one network."""
    name, exporter, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    architecture = ARCHITECTURES[name]
    row: dict[str, object] = {"name": name, "exporter": exporter}
    path = folder / "model.onnx"
    stage = "export"
    try:
        export(architecture, exporter, path)
        begun = time.perf_counter()
        warnings.simplefilter("ignore")
        stage = "calibrate"
        table = trtint8.calibrate(path, data(architecture, _CALIBRATION, 1), progress=False)
        stage = "quantize"
        target = target_named("rtx", "8.9")
        placement = place(prepare(load_model(path)).graph_model, target=target, float16=True)
        quantized = trtint8.quantize(path, table, target="rtx", keep_float=placement.slower)
        row["int8"], row["weighted"], row["why"] = reasons(placement)
        stage = "validate"
        judged = trtint8.validate(
            quantized, data(architecture, _JUDGED, 2), reference=path, metrics=["sqnr"], progress=False
        )
        row["sqnr_db"] = min(output.sqnr_db for output in judged.outputs)
        stage = "audit"
        row |= compiled(path, table)
        row["seconds"] = time.perf_counter() - begun
    except Exception as error:  # noqa: BLE001  # whatever it is, the row says it
        row["failed"] = f"{stage}: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
    row["mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()
    os._exit(0)


def compiled(path: Path, table: trtint8.CalibrationTable) -> dict[str, object]:
    """What engines in FP16, and in INT8 with FP16 for the rest, consist of."""
    found = trtint8.audit(path, table, _GPU, target="rtx", progress=False)
    half, mixed = found.engine("FP16"), found.engine("INT8+FP16")
    row: dict[str, object] = {"attention": [e.part("attention").kernels for e in (mixed, half)]}
    if half.traffic and mixed.traffic:
        row["bytes"] = (mixed.traffic.read + mixed.traffic.written) / (
            half.traffic.read + half.traffic.written
        )
    if half.ends and mixed.ends:
        row["time"] = [one / other for one, other in zip(mixed.ends, half.ends, strict=True)]
    return row


if __name__ == "__main__":
    main()
