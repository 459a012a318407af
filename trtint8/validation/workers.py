"""Validation over Ray: workers run all models on batches, and the driver puts together what they showed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrators.data.inputs import InputSpec
from calibrators.ray.executor import WORKER_THREADS, RayExecutor
from calibrators.ray.fan_out import check_sees
from calibrators.ray.in_order import look_at, seen_in_turn
from calibrators.ray.shards import Reader, Shard, Shards
from trtint8.models.model import Model, ModelSource, fits_message, load_model, to_proto
from trtint8.validation.accuracy import Accuracy
from trtint8.validation.comparison import OpenModels, merge_results
from trtint8.validation.metrics import Metric, check_mergeable, measurands
from trtint8.validation.opening import engine_path, open_models


def compare_over_ray(
    models: Mapping[str, ModelSource],
    reference: ModelSource,
    original: Model,
    shards: Shards,
    executor: RayExecutor,
    *,
    metrics: Sequence[Metric] | None = None,
    threads: int | None = None,
    progress: bool = True,
) -> Accuracy:
    """What :func:`trtint8.validation.comparison.compare` finds, by workers of a Ray cluster.

    Args:
        models: Models and paths of engines, by what they are called in results.
        reference: The FP32 model.
        original: The same, loaded.
        shards: The data.
        executor: Where to run.
        metrics: What to measure; what applies of the usual where None.
        threads: Threads, and processors, of each worker; 1 where None.
        progress: Show a progress bar on a terminal.

    Returns:
        The comparison.

    Raises:
        TrtInt8Error: As one process would; or of Ray and its workers.
        UnsupportedError: A metric over the data set cannot merge.
    """
    measurands(metrics or ())
    check_mergeable(metrics or ())
    task = _Task(
        {name: _sent(model) for name, model in models.items()},
        _sent(reference, original),
        original.inputs,
        None if metrics is None else tuple(metrics),
        threads or WORKER_THREADS,
        shards.reader,
    )
    with seen_in_turn(
        ValidationWorker,
        task,
        shards,
        executor,
        task.threads,
        description="Validating",
        progress=progress,
    ) as shown:
        return merge_results(shown, metrics)


@dataclass(frozen=True)
class _Task:
    """What every worker is sent once.

    Attributes:
        models: Serialized, or paths, by name.
        reference: Likewise.
        inputs: What all are fed.
        metrics: What to measure.
        threads: Threads within an operator.
        reader: Makes feeds of the shards.
    """

    models: Mapping[str, bytes | Path]
    reference: bytes | Path
    inputs: tuple[InputSpec, ...]
    metrics: tuple[Metric, ...] | None
    threads: int
    reader: Reader


#: Why models are paths.
_NOT_SENT = "engines and models beyond 2 GiB are not sent; put it where all machines see it under this name"


class ValidationWorker:
    """Runs in a process of its own, to the end of which its models stay open."""

    def __init__(self, task: _Task) -> None:
        self._task = task
        self._open = contextlib.ExitStack()
        self._panel: OpenModels | None = None

    def open(self) -> None:
        """Opens the models."""
        task = self._task
        for model in (task.reference, *task.models.values()):
            check_sees(model, _NOT_SENT)
        self._panel = self._open.enter_context(
            open_models(task.models, task.reference, task.inputs, task.metrics, task.threads)
        )

    def work(self, shard: Shard) -> Any:
        """Runs all models on the batches of a shard."""
        assert self._panel is not None
        return look_at(shard, self._task.reader, self._panel.run)


def _sent(model: ModelSource, loaded: Model | None = None) -> bytes | Path:
    """What a worker opens: a serialized model; or the path of an engine, or of a model beyond 2 GiB."""
    if loaded is None and (engine := engine_path(model)):
        return engine.absolute()
    graph_model = (loaded or load_model(model)).graph_model
    if isinstance(model, (str, os.PathLike)) and not fits_message(graph_model):
        return Path(model).absolute()
    serialized: bytes = to_proto(graph_model).SerializeToString()
    return serialized
