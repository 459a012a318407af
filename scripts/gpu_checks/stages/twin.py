"""The integers that a CPU follows beside those of an engine, tensor by tensor."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators.tables.table import CalibrationTable
from gpu_checks import limits
from gpu_checks.checking import Check
from gpu_checks.records import Finding
from gpu_checks.stages.host import host_side
from gpu_checks.subjects import Subject, small_options, subjects
from trtint8 import Engine, build_int8_engine
from trtint8.arithmetic.simulation import Simulation, simulate
from trtint8.models.model import load_model, prepare
from trtint8.models.serialization import save_model
from trtint8.models.session import open_graph_model
from trtint8.quantization.config import arithmetic_named

_TABLE = "Integers on the CPU beside the engine's"

#: The integers of a tensor may differ by so many: sums of floats round ties differently.
_STEPS = 1


def run(check: Check) -> None:
    """Runs the stage."""
    for subject in subjects(check, _TABLE, ("demo", "resnet20")):
        for route in ("explicit", "implicit"):
            _compare(check, subject, route)


def _compare(check: Check, subject: Subject, route: str) -> None:
    found = host_side(check, subject).table
    # By hand, because a model with more outputs is another model.
    table = CalibrationTable(found.amax, found.method, overridden=frozenset(found.amax))
    folder = check.settings.scratch / "twin"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    scales, twin = marked(subject.model, table, route, folder / "marked.onnx")

    def work() -> Finding:
        result = build_int8_engine(
            folder / "marked.onnx",
            table,
            folder / "model.engine",
            target="tensorrt",
            route="implicit" if route == "implicit" else "explicit",
            profiles=subject.profiles,
            options=small_options(check, fp16=False),
            progress=False,
        )
        feed = {subject.input: subject.images[: limits.JUDGING_BATCH]}
        with Engine.load(result.engine) as engine:
            there = engine.infer(feed)
        session = open_graph_model(twin.graph_model)
        here = dict(zip(session.output_names, session.run(feed), strict=True))
        return judged(scales, here, there)

    check.attempt(_TABLE, f"{subject.name}, {route}", work)


def marked(
    model: Path, table: CalibrationTable, route: str, path: Path
) -> tuple[dict[str, NDArray[np.float32]], Simulation]:
    """Writes a model whose tensors in INT8 are outputs, which may change what an engine of it fuses.

    Args:
        model: The float model.
        table: Its ranges.
        route: An arithmetic's name.
        path: The file that is written.

    Returns:
        Tensor name to scale, and what a CPU computes of the written model.
    """
    prepared = prepare(load_model(model))
    arithmetic = arithmetic_named(route)
    nodes = {node.name: node for node in prepared.graph_model.graph}
    scales = {}
    for (node, index), config in simulate(prepared, table, arithmetic).stored.activations.items():
        value = nodes[node].inputs[index]
        if value is not None and value.producer() is not None and config.scale is not None:
            scales[value.name or ""] = config.scale
    graph_model: ir.Model = prepared.graph_model.clone()
    values = {value.name: value for node in graph_model.graph for value in node.outputs}
    outputs = graph_model.graph.outputs
    outputs.extend(values[name] for name in scales if values[name] not in outputs)
    save_model(graph_model, path)
    return scales, simulate(prepare(load_model(path)), table, arithmetic)


def judged(
    scales: dict[str, NDArray[np.float32]],
    here: dict[str, NDArray[np.float32]],
    there: dict[str, NDArray[np.float32]],
) -> Finding:
    """How far the integers of two runs are apart, at most and on the whole.

    Args:
        scales: Tensor name to scale.
        here: Tensor name to values.
        there: The same of the other run.
    """
    apart = {
        name: np.abs(np.rint(there[name] / scale) - np.rint(here[name] / scale))
        for name, scale in scales.items()
    }
    worst = max(apart, key=lambda name: float(apart[name].max()))
    first = next((name for name, steps in apart.items() if steps.max() > _STEPS), "")
    differing = sum(int((steps > 0).sum()) for steps in apart.values())
    every = sum(steps.size for steps in apart.values())
    return Finding(
        {
            "tensors": len(apart),
            "most steps": float(apart[worst].max()),
            "worst tensor": worst,
            "first beyond one step": first,
            "differing %": 100 * differing / every,
        },
        not first,
    )
