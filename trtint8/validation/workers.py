"""Validation by workers: they run all models on batches, and this process puts their results together."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from calibrators.data.batches import Batches, Shard, Source
from calibrators.data.feeds import FeedDict
from calibrators.data.inputs import InputSpec
from calibrators.errors import ModelError
from calibrators.host.onnx_session import open_session
from calibrators.host.threads import runs_at_once
from calibrators.host.work import BatchFunction, check_sees
from calibrators.run import RunOptions
from trtint8.models.model import Model, ModelSource, load_model
from trtint8.models.serialization import fits_message, to_proto
from trtint8.models.session import ModelSession, open_model
from trtint8.runtime.loading import LoadingOptions
from trtint8.validation.accuracy import Accuracy
from trtint8.validation.budget import Budget
from trtint8.validation.comparison import BatchResult, OpenModels, merge_results
from trtint8.validation.metrics import Metric, check_metrics
from trtint8.validation.opening import open_models
from trtint8.validation.output_shapes import DeclaredOutputs
from trtint8.validation.running_reference import RunningReference
from trtint8.validation.user_metrics import check_mergeable


def compare_by_workers(
    models: Mapping[str, ModelSource],
    loaded: Mapping[str, Model | Path],
    reference: ModelSource,
    original: Model,
    batches: Batches,
    run: RunOptions,
    head: Shard | None,
    *,
    declared: DeclaredOutputs,
    loading: LoadingOptions,
    metrics: Sequence[Metric] | None = None,
    budget: Budget | None = None,
) -> Accuracy:
    """Compares as :func:`trtint8.validation.comparison.compare` does, by workers in other processes.

    Args:
        models: Models and paths of engines, by their names in results.
        loaded: The same, with the models loaded.
        reference: The FP32 model.
        original: The FP32 model, loaded, without what ONNX Runtime cannot run.
        batches: The data.
        run: Where and how models are run.
        head: The first batches of the data, which every worker looks at; None where there are none.
        declared: What ``original`` declares of its outputs.
        loading: How engines are loaded.
        metrics: What to measure; what applies of the usual metrics where None.
        budget: What the samples are to keep; None for nothing.

    Returns:
        The comparison.

    Raises:
        TrtInt8Error: One process would raise it too, or the workers failed.
        UnsupportedError: A metric over the data set cannot merge.
    """
    check_metrics(metrics or ())
    check_mergeable(metrics or ())
    work = _ValidationWork(
        {name: _sent(models[name], model) for name, model in loaded.items()},
        _sent(reference, original),
        original.inputs,
        None if metrics is None else tuple(metrics),
        run.worker_threads,
        declared,
        replace(loading, plugins=tuple(Path(library).absolute() for library in loading.plugins)),
        head,
        batches.source,
        batches.usual_rows,
    )
    with run.results(work, batches, description="Validating") as results:
        return merge_results(results, metrics, batches.class_names, budget)


#: Why a worker was sent paths.
_NOT_SENT = (
    "engines, plugin libraries and models beyond 2 GiB are not sent; put it where all machines see it under "
    "this name"
)


@dataclass(frozen=True)
class _ValidationWork:
    """Runs all models on single batches; they stay open to the end of the worker's process.

    Attributes:
        models: Serialized models, or paths of models and engines, by name.
        reference: The serialized FP32 model, or its path.
        inputs: What all models are fed.
        metrics: What to measure; what applies of the usual metrics where None.
        threads: Threads for each model.
        declared: What the FP32 model declares of its outputs.
        loading: How engines are loaded.
        head: The first batches of the data; None where there are none.
        source: The source of the data.
        rows: How many samples the batches usually have.
    """

    models: Mapping[str, bytes | Path]
    reference: bytes | Path
    inputs: tuple[InputSpec, ...]
    metrics: tuple[Metric, ...] | None
    threads: int
    declared: DeclaredOutputs
    loading: LoadingOptions
    head: Shard | None
    source: Source
    rows: int

    def open(self) -> BatchFunction[BatchResult]:
        """Opens the models."""
        for file in (self.reference, *self.models.values(), *map(Path, self.loading.plugins)):
            check_sees(file, _NOT_SENT)
        stack = contextlib.ExitStack()
        models = stack.enter_context(
            open_models(
                self.models,
                stack.enter_context(RunningReference(self._open_reference)),
                self.inputs,
                self.metrics,
                self.declared,
                self.loading,
                threads=self.threads,
                rows=self.rows,
            )
        )
        if self.head:
            models.look(Batches.of_shard(self.head, self.source).labelled())
        return _Validated(models, stack)

    def _open_reference(self) -> ModelSession:
        # A serialized model needs no reading here, where ONNX Runtime takes it. A file is read by us: ONNX
        # Runtime would read of its external data what the model says, and not what was checked.
        as_it_is = isinstance(self.reference, bytes) and not self.declared.sources
        if as_it_is and runs_at_once(self.threads, self.rows) == 1:
            with contextlib.suppress(ModelError):
                return ModelSession(open_session(self.reference, optimize=True, threads=self.threads))
        read = load_model(self.reference)
        return open_model(read, self.declared.sources, threads=self.threads, rows=self.rows)


@dataclass(frozen=True)
class _Validated:
    """Models that stay open as long as this object lives.

    Attributes:
        models: The models beside the reference.
        stack: Would close them.
    """

    models: OpenModels
    stack: contextlib.ExitStack

    def __call__(
        self, feed: FeedDict, labels: NDArray[Any] | None, first: int, name_of: Callable[[int], str]
    ) -> BatchResult:
        """Runs all models on a batch."""
        return self.models.run(feed, labels, first, name_of)


def _sent(source: ModelSource, loaded: Model | Path) -> bytes | Path:
    """What a worker opens: a serialized model; or the path of an engine, or of a model beyond 2 GiB."""
    if isinstance(loaded, Path):
        return loaded.absolute()
    if isinstance(source, (str, os.PathLike)) and not fits_message(loaded.graph_model):
        return Path(source).absolute()
    serialized: bytes = to_proto(loaded.graph_model).SerializeToString()
    return serialized
