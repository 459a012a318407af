"""Calibration by several processes, on one machine or many, over Ray.

Each worker opens the model once and observes one shard of the data after another. What it returns merges
exactly, so the result is bit for bit that of one process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from calibrators.data.batches import Batches
from calibrators.data.feeds import Array, FeedDict
from calibrators.data.inputs import InputSpec
from calibrators.data.samples import DataFingerprint, Preflight, SampleKeeper
from calibrators.errors import Argument, UnsupportedError
from calibrators.histograms.histogram import Histogram
from calibrators.host.checkpoint import Checkpoint, Counted, Timer
from calibrators.host.cuda_session import device_kind
from calibrators.host.observer import Form, MostRows, Observation, Observer
from calibrators.host.plan import plan_observation
from calibrators.host.session import check_threads
from calibrators.host.work import check_sees
from calibrators.progress import CALIBRATING, progress_bar
from calibrators.ray.cluster import WORKER_THREADS, RayExecutor, import_ray
from calibrators.ray.workers import fan_out


class RayObserver:
    """A model that workers of a Ray cluster observe, with the result of one process."""

    def __init__(
        self,
        model: AbstractContextManager[bytes | Path],
        here: AbstractContextManager[Form],
        inputs: Sequence[InputSpec],
        tensors: Iterable[str],
        threads: int | None,
        executor: RayExecutor,
        device: str,
        most_rows: MostRows,
        *,
        divides: bool,
    ) -> None:
        """Remembers what workers are to do.

        Args:
            model: The FP32 model, entered while it is observed: serialized; or, beyond 2 GiB, a path that all
                machines see.
            here: The same for this process, entered where it is needed.
            inputs: The model's inputs.
            tensors: Names of float tensors of the graph, inputs included.
            threads: Threads, and processors, of each worker; 1 where None.
            executor: Where to run.
            device: Where each worker runs the model: see :func:`calibrators.host.cuda_session.open_device`.
                GPUs count from 0 among those that Ray shows the worker.
            most_rows: How many samples have activations of a size that is quick to handle: see
                :class:`calibrators.host.observer.Observer`.
            divides: Whether larger batches are run in pieces of so many, where this is known beforehand.

        Raises:
            CalibrationDataError: ``threads`` is less than 1.
            UnsupportedError: Ray is not installed, or shows workers no GPU though they are to run on one.
        """
        check_threads(threads)
        import_ray()
        if device_kind(device) != "cpu" and not executor.num_gpus:
            raise UnsupportedError(
                f"Ray shows workers no GPU, so device '{device}' would find none; set {Argument('num_gpus')} "
                "to how many each worker is to have, such as 1"
            )
        self._model, self._inputs, self._tensors = model, tuple(inputs), tuple(dict.fromkeys(tensors))
        self._threads, self._executor, self._device = threads or WORKER_THREADS, executor, device
        self._most_rows, self._divides = most_rows, divides
        self._here, self._here_threads = here, threads

    @property
    def reference(self) -> Callable[[FeedDict], list[Array]] | None:
        """Runs the model on a feed here: see :attr:`calibrators.host.observer.Observer.reference`."""
        return Observer(self._here, self._inputs, self._tensors, self._here_threads, self._device).reference

    def close(self) -> None:
        """Does nothing: workers close the model when they have observed it."""

    def observe(
        self,
        batches: Batches,
        *,
        progress: bool = True,
        checkpoint: Checkpoint[Counted] | None = None,
        keep: int = 0,
        keep_outputs: bool = False,
        alone: bool = False,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> Observation:
        """Has all batches observed.

        This process holds what was merged so far, and one observation more. As observations are merged in the
        order of the data, a checkpoint is that of one process: either continues what the other has begun.

        Args:
            batches: The calibration data.
            progress: Show a progress bar on a terminal; it moves when a shard is done.
            checkpoint: Where to keep progress. Workers read data that was counted before an
                interruption again, to check that it is the same, and do not run it. The caller removes the
                file.
            keep: How many samples to keep; which ones depends on the data alone.
            keep_outputs: Whether to keep the model's outputs for these samples as well: see
                :meth:`calibrators.host.observer.Observer.observe`.
            alone: Whether every sample has to be run by itself.
            meanwhile: Called when the first shard is done: what the caller can do beside the workers.

        Returns:
            What one process would have seen.

        Raises:
            CalibrationDataError: The data does not fit the model, it makes the model produce NaN, or it is
                not the data that the checkpoint has seen.
            ModelError: A worker cannot run the model, or does not see its file.
            TableError: The checkpoint is of another calibration.
            UnsupportedError: The cluster cannot be reached, or no machine of it has room for a worker.
            WorkerError: A worker died again and again.
        """
        rows = self._most_rows if self._divides and isinstance(self._most_rows, int) else None
        if alone:
            rows = 1
        if self._most_rows is not None:
            batches = batches.fitting(self._most_rows)
        with self._model as model:
            inputs = [spec.name for spec in self._inputs]
            merged = _Merged(
                self._start(keep),
                checkpoint,
                lambda: plan_observation(model, inputs, self._tensors).sources,
            )
            work = _ObservationWork(
                model,
                self._inputs,
                self._tensors,
                self._threads,
                self._device,
                merged.skip,
                keep,
                keep_outputs,
                rows,
                min(rows or 1, batches.batch_size or 1),
            )
            with (
                fan_out(work, batches, self._executor, self._threads) as results,
                progress_bar(CALIBRATING, batches.num_samples, enabled=progress) as advance,
            ):
                for number, done in enumerate(results):
                    merged.add(done.result)
                    advance(done.samples)
                    if not number:
                        meanwhile()
            return merged.finish()

    def _start(self, keep: int) -> Observation:
        histograms = {name: Histogram() for name in self._tensors}
        return Observation(histograms, DataFingerprint(), Preflight(self._inputs), kept=SampleKeeper(keep))


class _Merged:
    """What was observed so far: from the first sample on, without a gap.

    A checkpoint holds tensors of the same values once, as one process counts them.

    Args:
        start: An observation of nothing.
        checkpoint: Where to keep progress.
        sources: Gives, for each tensor, the one with the same values that is counted.
    """

    def __init__(
        self,
        start: Observation,
        checkpoint: Checkpoint[Counted] | None,
        sources: Callable[[], Mapping[str, str]],
    ) -> None:
        self._seen, self._checkpoint = start, checkpoint
        self._before: Counted | None = None
        if checkpoint is None:
            return
        self._timer, self._sources = Timer(checkpoint.seconds), sources()
        self._before = checkpoint.load()
        if before := self._before:
            before.check_tensors(self._sources.values())
            found = {name: before.histograms[source] for name, source in self._sources.items()}
            self._seen = replace(start, histograms=found)

    @property
    def skip(self) -> int:
        """How many of the first samples were counted before."""
        return self._before.samples if self._before else 0

    def add(self, part: Observation) -> None:
        """Adds what comes next in the data."""
        seen = self._seen = self._seen.merge(part)
        if seen.samples >= self.skip:
            self._check()
            if self._checkpoint and self._timer.due():
                found = {source: seen.histograms[name] for name, source in self._sources.items()}
                self._checkpoint.save(Counted(seen.samples, seen.data_fingerprint, found))

    def finish(self) -> Observation:
        """The observation of all the data."""
        self._check()
        return self._seen

    def _check(self) -> None:
        """Compares the samples that were counted before with what workers have read of them now."""
        if self._before:
            self._before.check_data(self._seen.skipped.hexdigest())


@dataclass(frozen=True)
class _ObservationWork:
    """Observes one run of batches after another with a model that stays open.

    Attributes:
        model: The serialized FP32 model; or, beyond 2 GiB, its path.
        inputs: The model's inputs.
        tensors: Names of the tensors to observe.
        threads: Threads of each worker.
        device: Where the model runs.
        skip: How many of the data's first samples are compared with a checkpoint and not run.
        keep: How many samples of each run are kept.
        keep_outputs: Whether the model's outputs for these samples are kept as well.
        most_rows: The most samples that are run at once.
        usual_rows: How many of them are divided among the threads: see
            :meth:`calibrators.host.observer.Observer.open`.
    """

    model: bytes | Path
    inputs: Sequence[InputSpec]
    tensors: Sequence[str]
    threads: int
    device: str
    skip: int
    keep: int
    keep_outputs: bool
    most_rows: int | None
    usual_rows: int

    def open(self) -> Callable[[Batches, int], Observation]:
        """Opens the model."""
        check_sees(self.model)
        observer = Observer(
            self.model,
            self.inputs,
            self.tensors,
            self.threads,
            self.device,
            self.most_rows,
        )
        observer.open(self.usual_rows).result()
        return lambda batches, first: observer.observe(
            batches,
            progress=False,
            first=first,
            skip=max(0, self.skip - first),
            keep=self.keep,
            keep_outputs=self.keep_outputs,
        )
