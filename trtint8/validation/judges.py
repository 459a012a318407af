"""Opens what is to be judged: an engine on the GPU, or a model in ONNX Runtime."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators.cuda import gpu_names, gpu_problem
from calibrators.data.batches import FeedDict
from calibrators.data.feeds import is_float
from calibrators.data.inputs import InputSpec
from calibrators.errors import GpuUnavailableError, ModelError
from trtint8.engine.file import read_engine_info
from trtint8.interop.integer_models import RUN_TIME_SCALES, expand_static, integer_operators
from trtint8.models.model import ModelSource, load_model, runnable
from trtint8.runtime.engine import Engine
from trtint8.validation.accuracy import Judged, Runner, onnx_runner
from trtint8.validation.comparison import Panel
from trtint8.validation.metrics import Metric


@contextlib.contextmanager
def open_panel(
    models: Mapping[str, ModelSource],
    reference: bytes | Path,
    inputs: Sequence[InputSpec],
    metrics: Sequence[Metric] | None,
    threads: int | None = None,
) -> Iterator[Panel]:
    """Opens models beside a reference.

    Args:
        models: By what they are called in results.
        reference: The FP32 model, as ONNX Runtime takes it.
        inputs: What all are fed.
        metrics: What to measure; what applies of the usual where None.
        threads: Threads within an operator; ONNX Runtime's choice where None.

    Yields:
        All of them, ready to be fed.

    Raises:
        TrtInt8Error: As :func:`open_judged`; or a metric is unknown.
    """
    run, names = onnx_runner(reference, optimize=True, threads=threads)
    with contextlib.ExitStack() as stack:
        judged = [
            stack.enter_context(open_judged(name, model, inputs, names, threads))
            for name, model in models.items()
        ]
        yield Panel(judged, run, names, inputs, metrics)


@contextlib.contextmanager
def open_judged(
    name: str,
    model: ModelSource,
    inputs: Sequence[InputSpec],
    output_names: Sequence[str],
    threads: int | None = None,
) -> Iterator[Judged]:
    """Opens one model or engine beside a reference.

    An engine runs on the GPU where there is one, else the Q/DQ model beside it stands for it. Floating-point
    feeds are rounded to the model's own input type: that is part of what an FP16 model costs.

    Args:
        name: What it is called in results.
        model: A model, or the path of an engine file.
        inputs: The reference's.
        output_names: The reference's, in order.
        threads: Of a model in ONNX Runtime, within an operator; its choice where None.

    Yields:
        What runs it.

    Raises:
        ModelError: Its inputs or outputs are not the reference's.
        GpuUnavailableError: It is an engine with no model beside it, and there is no GPU.
    """
    plan = engine_path(model)
    if plan and gpu_problem() is None:
        with Engine.load(plan) as engine:
            names = [spec.name for spec in engine.outputs]
            dtypes = {spec.name: np.dtype(spec.dtype) for spec in engine.inputs}

            def infer(feed: FeedDict) -> list[NDArray[Any]]:
                outputs = engine.infer(feed)
                return [outputs[output] for output in names]

            yield _judged(name, infer, dtypes, names, inputs, output_names, f"the engine on {gpu_names()[0]}")
        return
    stand_in = _beside(plan) if plan else None
    loaded = load_model(stand_in or model)
    whose = f"the engine's {{}} '{stand_in.name}'" if stand_in else "the {}"
    # ONNX Runtime's kernels for integer operators are not what a GPU computes: Q/DQ pairs in float are.
    graph_model, integers = loaded.graph_model, integer_operators(loaded.graph_model)
    if integers:
        graph_model = expand_static(graph_model)
        left = integer_operators(graph_model)
        what = _integers_run(whose.format("model"), integers, left)
    elif loaded.is_quantized:
        left, what = (), whose.format("Q/DQ model") + " as fake quantization in ONNX Runtime"
    else:
        left, what = (), whose.format("model") + " in ONNX Runtime"
    with runnable(graph_model) as file:
        # Sums of a dynamically quantized product are exact on every processor only in an optimized graph.
        run, names = onnx_runner(
            file, optimize=any(name in RUN_TIME_SCALES for name in left), threads=threads
        )
        dtypes = {spec.name: spec.dtype for spec in loaded.inputs}
        yield _judged(name, run, dtypes, names, inputs, output_names, what)


def _integers_run(model: str, integers: Sequence[str], left: Sequence[str]) -> str:
    """How a model with integer operators is run, for the summary."""
    expanded = [name for name in integers if name not in left]
    how = []
    if expanded:
        how.append(f"{', '.join(expanded)} expanded to Q/DQ pairs, as fake quantization")
    if left:
        how.append(f"{', '.join(left)} in integer kernels")
    return f"{model} with {' and '.join(how)}, in ONNX Runtime"


def engine_path(model: ModelSource) -> Path | None:
    """The path of an engine; None for a model."""
    path = Path(model) if isinstance(model, (str, os.PathLike)) else None
    return path if path and path.suffix.lower() != ".onnx" else None


def _beside(engine: Path) -> Path:
    """The Q/DQ model that an engine was built from."""
    info = read_engine_info(engine)
    if info.qdq_model is None:
        raise GpuUnavailableError(
            f"'{engine}' has no Q/DQ model beside it to judge it by without a GPU, and "
            f"{gpu_problem()}; validate it on a machine with a GPU"
        )
    return engine.with_name(info.qdq_model)


def _judged(
    name: str,
    run: Runner,
    dtypes: Mapping[str, np.dtype[Any]],
    names: Sequence[str],
    inputs: Sequence[InputSpec],
    output_names: Sequence[str],
    description: str,
) -> Judged:
    wanted = [spec.name for spec in inputs]
    if set(dtypes) != set(wanted):
        raise ModelError(_differ(name, "inputs", list(dtypes), wanted))
    if list(names) != list(output_names):
        raise ModelError(_differ(name, "outputs", names, output_names))

    def rounded(feed: FeedDict) -> list[NDArray[Any]]:
        return run({key: _rounded(array, dtypes[key]) for key, array in feed.items()})

    return Judged(name, rounded, description)


def _rounded(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    return array.astype(dtype, copy=False) if is_float(array.dtype) and is_float(dtype) else array


def _differ(name: str, what: str, own: Sequence[str], wanted: Sequence[str]) -> str:
    return (
        f"the {what} of {name} are {', '.join(own)}, the reference's {', '.join(wanted)}; "
        "compare with the model that it was made from"
    )
