"""Calibration in this process: runs the FP32 model and streams its activations into histograms.

A batch is run and counted while the caller's thread reads and checks the batch that comes next. Where every
sample is computed by itself, each thread runs and counts a part of the batch, because threads that share a
run wait for each other at every operator. Elsewhere all threads run the batch, and then count it. Counting
does not overlap with the next batch's run: on the same cores that gains nothing, and its activations would
have to be kept.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar

from calibrators.data.batches import Batches
from calibrators.data.feeds import Array, FeedDict, NameOf, batch_rows, part_of, pieces
from calibrators.data.inputs import InputSpec, has_fixed_batch
from calibrators.data.samples import (
    DataFingerprint,
    Outputs,
    Preflight,
    SampleKeeper,
    SampleSizes,
    numbered,
)
from calibrators.errors import CalibrationDataError, TrtInt8Error
from calibrators.histograms.counting import ParallelHistograms
from calibrators.histograms.histogram import Histogram
from calibrators.host.checkpoint import Checkpoint, Counted, Timer
from calibrators.host.cuda_session import Cpu, device_kind, open_device
from calibrators.host.plan import BYTES_PER_PART, ObservationPlan, plan_observation
from calibrators.host.session import (
    available_threads,
    check_threads,
    first_line,
    in_thread,
    run_session,
    runs_at_once,
    threads_of_session,
)
from calibrators.host.weights import LightModel
from calibrators.progress import CALIBRATING, progress_bar

#: The most samples of a batch that are run at once, or what tells them from the batch; None for all.
MostRows: TypeAlias = int | Callable[[FeedDict], int] | None

#: What a model may be opened from.
Form: TypeAlias = LightModel | bytes | Path

_Share = TypeVar("_Share")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Observation:
    """What a pass over the calibration data, or over a part of it, showed.

    Attributes:
        histograms: Tensor name to the histogram of its magnitudes, for every tensor that was asked for.
        fingerprint: Identifies the samples whatever their order and batch size.
        preflight: What the samples' values are like.
        skipped: Identifies the first samples, where they were only checked and not run.
        kept: Some of the samples.
    """

    histograms: dict[str, Histogram]
    fingerprint: DataFingerprint
    preflight: Preflight
    skipped: DataFingerprint = field(default_factory=DataFingerprint)
    kept: SampleKeeper = field(default_factory=SampleKeeper)

    @property
    def samples(self) -> int:
        """How many samples were fed."""
        return self.fingerprint.samples

    @property
    def data_fingerprint(self) -> str:
        """The samples' fingerprint as text."""
        return self.fingerprint.hexdigest()

    @property
    def input_sizes(self) -> dict[str, SampleSizes]:
        """Input name to the sizes of its samples, for inputs that leave some open besides the batch."""
        return self.preflight.sizes

    def warnings(self, name_of: NameOf = numbered) -> list[str]:
        """What looks odd about the data as a whole, one sentence each.

        Args:
            name_of: Gives what a sample is called in messages, by its number in the order of observation.

        Raises:
            CalibrationDataError: There was no sample at all.
        """
        return self.preflight.finish(name_of)

    def merge(self, other: Observation) -> Observation:
        """What observing both parts of the data in one pass would have shown, exactly.

        Args:
            other: The observation of the same tensors of the same model, on other samples.
        """
        return Observation(
            {name: found.merge(other.histograms[name]) for name, found in self.histograms.items()},
            self.fingerprint.merge(other.fingerprint),
            self.preflight.merge(other.preflight),
            self.skipped.merge(other.skipped),
            self.kept.merge(other.kept),
        )


class Observer:
    """A model that is to be observed, on one set of data or on several one after another.

    How many samples are run at once it decides when it sees the first batch. Then it opens in a thread of its
    own, while that batch is checked and the next one is read.
    """

    def __init__(
        self,
        model: Form | AbstractContextManager[Form],
        inputs: Sequence[InputSpec],
        tensors: Iterable[str],
        threads: int | None = None,
        device: str = "cpu",
        most_rows: MostRows = None,
        *,
        divides: bool = True,
    ) -> None:
        """Plans the observation, and opens nothing yet.

        Args:
            model: The FP32 model, or a block in which it is there, which ends when the model is open; its
                message, where it has one, is changed.
            inputs: The model's inputs.
            tensors: Names of float tensors of the graph, inputs included.
            threads: How many threads run the model and count; all that this process may use where None.
            device: Where the model runs and its activations are counted: ``cpu``, ``cuda``, or ``cuda:1`` for
                the second GPU.
            most_rows: How many samples have activations of a size that is quick to handle: new memory takes
                time. Data that nobody has divided is divided into batches of so many. None takes it as it is.
            divides: Whether larger batches are run in pieces of so many, which are divided among the threads
                where there are enough; for models that compute every sample by itself.

        Raises:
            CalibrationDataError: ``threads`` is less than 1.
            UnsupportedError: The device is unknown, or something that it needs is not installed.
            GpuUnavailableError: There is no such GPU.
        """
        check_threads(threads)
        self._device = open_device(device)
        self._until_open = contextlib.ExitStack()
        if not isinstance(model, LightModel | bytes | Path):
            model = self._until_open.enter_context(model)
        self._data_folder = model.parent if isinstance(model, Path) else None
        self._plan = plan_observation(
            model,
            [spec.name for spec in inputs],
            tensors,
            # What a part carries to the next would have to be copied to the host and back.
            bytes_per_part=BYTES_PER_PART if device_kind(device) == "cpu" else math.inf,
            # On a GPU values are counted where they are, without their signs.
            rectify=isinstance(self._device, Cpu),
        )
        self._inputs, self._threads = tuple(inputs), threads or available_threads()
        self._most_rows, self._divides = most_rows, divides
        self._opening: Future[list[Any]] | None = None
        self._at_once = 1

    def open(self, rows: int = 1) -> Future[list[Any]]:
        """Opens the model, with all that is to be observed among its outputs, if it is not open yet.

        Args:
            rows: How many samples will usually be run together, as far as that is known.

        Returns:
            The sessions, one for each part of the model.

        Raises:
            ModelError: ONNX Runtime cannot run the model, which is a path.
            GpuMemoryError: The model, which is a path, does not fit.
        """
        if self._opening is not None:
            return self._opening
        plan = self._plan
        divided = isinstance(self._device, Cpu) and self._most_rows is not None and self._divides
        self._at_once = runs_at_once(self._threads, rows) if divided and len(plan.parts) == 1 else 1
        self._opening = in_thread(self._open_sessions, plan)
        if self._data_folder is not None:  # there may be no such file when the caller has gone on
            self._opening.result()
        # Without the models, but with the weights, which sessions use where they are.
        parts = tuple(dataclasses.replace(part, model=b"") for part in plan.parts)
        self._plan = dataclasses.replace(plan, parts=parts)
        self._until_open.close()
        return self._opening

    def _open_sessions(self, plan: ObservationPlan) -> list[Any]:
        """Opens a session for each part."""
        return [
            self._device.open_session(
                part.model,
                optimize=True,
                threads=threads_of_session(self._threads, self._at_once),
                data_folder=self._data_folder,
                weights=part.weights,
                one_of_many=len(plan.parts) > 1,
                keep_layout=len(plan.parts) > 1,
            )
            for part in plan.parts
        ]

    @property
    def reference(self) -> Callable[[FeedDict], list[Array]] | None:
        """Runs the model on a feed and gives its outputs alone; None where it is run part by part.

        The function raises what ONNX Runtime raises.
        """
        if not self._plan.outputs:
            return None
        (session,) = self.open().result()
        return functools.partial(run_session, session, names=self._plan.outputs)

    def close(self) -> None:
        """Closes the model; nothing can be observed any longer."""
        self._until_open.close()
        if self._opening is not None and self._opening.exception() is None:
            self._opening.result().clear()

    def observe(
        self,
        batches: Batches,
        *,
        progress: bool = True,
        checkpoint: Checkpoint[Counted] | None = None,
        first: int = 0,
        skip: int = 0,
        keep: int = 0,
        keep_outputs: bool = False,
        alone: bool = False,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> Observation:
        """Runs the model on every batch and counts the magnitudes of the tensors.

        Activations are counted batch by batch and dropped, so memory does not grow with the data. The
        result does not depend on batch size, order or threads, as far as ONNX Runtime's own outputs do not:
        on the CPU they are bit-identical across batch sizes with its graph optimizations on, which is why
        they are; on a GPU, and of a model that is run part by part, their last bits may change with the
        batch size.

        Args:
            batches: The calibration data, or a part of it.
            progress: Show a progress bar on a terminal.
            checkpoint: Where to keep progress. Data that was counted before an interruption is read again,
                to check that it is the same, and not run again. The caller removes the file.
            first: How many samples of the data come before this part, for messages.
            skip: How many of the first samples to check and not to run, where no checkpoint says that.
            keep: How many samples to keep; which ones depends on the data alone.
            keep_outputs: Whether to keep the model's outputs for these samples as well; for models that
                compute every sample by itself. They are kept where they are small, on the CPU, and where the
                model is not run part by part: elsewhere their last bits may change with the batch size.
            alone: Whether every sample has to be run by itself.
            meanwhile: Called while the second batch is run, if there is one: what the caller can do beside.

        Returns:
            The histograms and what identifies the data. There may be no samples at all: asking for its
            ``warnings`` refuses that.

        Raises:
            CalibrationDataError: The data does not fit the model, it makes the model produce NaN, or it is
                not the data that the checkpoint has seen.
            ModelError: ONNX Runtime cannot run the model.
            GpuMemoryError: The model does not fit.
            TableError: The checkpoint is of another calibration.
        """
        plan = self._plan
        observed = plan.observed
        before = checkpoint.load() if checkpoint else None
        if before:
            before.check_tensors(observed)
        start = before.histograms if before else {name: Histogram() for name in observed}
        most_rows = 1 if alone else self._most_rows if self._divides else None
        if self._most_rows is not None:
            batches = batches.fitting(self._most_rows)
        name_of, samples = batches.name_of, batches.num_samples
        with contextlib.ExitStack() as opened:
            counted = opened.enter_context(self._device.histograms(start, self._threads, plan.rectified))
            advance = opened.enter_context(progress_bar(CALIBRATING, samples, enabled=progress))
            one_pass = _Pass(
                lambda number, names, feed: self._device.run(self.open().result()[number], names, feed),
                plan,
                counted,
                Preflight(self._inputs, functools.partial(_named_from, name_of, first)),
                SampleKeeper(keep, whole_batches=has_fixed_batch(self._inputs)),
                advance,
                checkpoint,
                before,
                skip,
                most_rows,
                plan.outputs if keep_outputs and isinstance(self._device, Cpu) else (),
            )
            for number, feed in enumerate(batches):
                if one_pass.workers is None:
                    self.open(min(_rows_at_once(most_rows, feed) or 1, batch_rows(feed) or 1))
                    one_pass.workers = opened.enter_context(_Workers(1 if alone else self._at_once))
                one_pass.take(feed)
                if number == 1:
                    meanwhile()
            one_pass.finish()
            histograms = counted.merged()
        # Copied, because tensors that hold the same values were counted once.
        found = {name: histograms[source].copy() for name, source in plan.sources.items()}
        return Observation(found, one_pass.fingerprint, one_pass.preflight, one_pass.skipped, one_pass.kept)


#: Counts tensors, given as names and values.
_Observe: TypeAlias = Callable[[Iterable[tuple[str, Array]]], None]

#: A part of a batch, and which of its rows are kept, with their digests.
_Part: TypeAlias = tuple[FeedDict, Mapping[int, int]]


@dataclass(frozen=True)
class _UpTo:
    """The data up to and with a batch."""

    rows: int
    samples: int
    data: str


class _Workers:
    """Threads that run and count parts of a batch."""

    def __init__(self, at_once: int) -> None:
        self.at_once = at_once
        self._pool = ThreadPoolExecutor(at_once, "trtint8-run")
        #: Numbers of workers that run nothing, by which each counts for itself.
        self._idle: SimpleQueue[int] = SimpleQueue()
        for number in range(at_once):
            self._idle.put(number)

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, *_error: object) -> None:
        self._pool.shutdown()

    def submit(self, run: Callable[[int, _Share], _Result], share: _Share) -> Future[_Result]:
        """Runs a share of a batch, with the number of the worker that does."""
        return self._pool.submit(self._run, run, share)

    def _run(self, run: Callable[[int, _Share], _Result], share: _Share) -> _Result:
        number = self._idle.get()
        try:
            return run(number, share)
        finally:
            self._idle.put(number)


class _Pass:
    """One pass: the next batch is read by the caller while the workers run and count the ones before.

    Attributes:
        fingerprint: Identifies the samples that were taken.
        skipped: Identifies those of them that were only checked.
        preflight: What their values are like.
        kept: Some of them.
        workers: What runs them; there is one before the first is taken.
    """

    def __init__(
        self,
        run: Callable[[int, Sequence[str], FeedDict], Iterable[Any]],
        plan: ObservationPlan,
        counted: ParallelHistograms,
        preflight: Preflight,
        kept: SampleKeeper,
        advance: Callable[[int], None],
        checkpoint: Checkpoint[Counted] | None,
        before: Counted | None,
        skip: int,
        most_rows: MostRows,
        outputs: Sequence[str],
    ) -> None:
        self.fingerprint, self.skipped = DataFingerprint(), DataFingerprint()
        self.preflight, self.kept = preflight, kept
        self.workers: _Workers | None = None
        self._run_part, self._plan, self._counted = run, plan, counted
        self._advance, self._checkpoint, self._before = advance, checkpoint, before
        self._most_rows = most_rows
        self._outputs = outputs
        self._running: tuple[list[Future[dict[int, Outputs]]], _UpTo] | None = None
        self._timer = Timer(checkpoint.seconds) if checkpoint else None
        #: How many samples are still to be checked and not run.
        self._to_skip = before.samples if before else skip
        if not self._to_skip:
            self._end_skipping()

    def take(self, feed: FeedDict) -> None:
        """Checks a batch, and begins to run and count what of it was not counted before."""
        if self._to_skip:
            rows = batch_rows(feed)
            rest = None
            if rows is not None and rows > self._to_skip:
                feed, rest = part_of(feed, 0, self._to_skip), part_of(feed, self._to_skip, None)
            counted, _ = self._check_and_count(feed)
            self._advance(counted)
            self._to_skip = max(0, self._to_skip - counted)
            if not self._to_skip:
                self._end_skipping()
            if rest is None:
                return
            feed = rest
        rows_here, kept = self._check_and_count(feed)
        done = _UpTo(rows_here, self.fingerprint.samples, self._data())
        if self._running and self._is_due():
            self._finish(*self._running)
            self._save(self._running[1])  # while nothing is counted
            self._running = None
        begun = self._begin(feed, kept if self._outputs else {}), done
        # A worker that has run its part of a batch goes on with the next one.
        if self._running:
            self._finish(*self._running)
        self._running = begun

    def finish(self) -> None:
        """Waits until all is counted."""
        if self._to_skip:  # the data has ended before
            self._end_skipping()
        if self._running:
            self._finish(*self._running)
            if self._is_due():
                self._save(self._running[1])

    def _end_skipping(self) -> None:
        """Compares the samples that were counted before with what was read of them now."""
        if self._before:
            self._before.check_data(self.fingerprint.hexdigest())
        self.skipped = self.fingerprint.copy()

    def _check_and_count(self, feed: FeedDict) -> tuple[int, dict[int, int]]:
        """Checks a feed and adds it to the fingerprint.

        Returns:
            How many samples it holds; and for those that are kept, their row to their digest.
        """
        self.preflight.observe(feed)
        digests = self.fingerprint.observe(feed)
        return len(digests), self.kept.observe(feed, digests)

    def _data(self) -> str:
        return self.fingerprint.hexdigest() if self._checkpoint else ""

    def _begin(self, feed: FeedDict, kept: Mapping[int, int]) -> list[Future[dict[int, Outputs]]]:
        """Begins to run and count a feed, in as many threads as there are workers."""
        assert self.workers is not None
        most = _rows_at_once(self._most_rows, feed)
        at_once = min(self.workers.at_once, most or 1)
        parts: list[_Part] = []
        start = 0
        for piece in pieces(feed, most, at_once):
            stop = start + (batch_rows(piece) or 0)
            wanted = {row - start: digest for row, digest in kept.items() if start <= row < stop}
            parts.append((piece, wanted))
            start = stop
        # As many for each worker, so that none waits for another.
        shares = (parts[number::at_once] for number in range(min(at_once, len(parts))))
        counted = self._counted  # in all threads, where one runs
        observe = (
            counted.observe_in_thread
            if self.workers.at_once > 1
            else lambda _, tensors: counted.observe(tensors)
        )
        return [self.workers.submit(functools.partial(self._run, observe), share) for share in shares]

    def _run(
        self,
        observe: Callable[[int, Iterable[tuple[str, Array]]], None],
        number: int,
        parts: Iterable[_Part],
    ) -> dict[int, Outputs]:
        """Runs and counts parts of a feed one after another; returns digests of samples to the outputs."""
        found: dict[int, Outputs] = {}
        for piece, wanted in parts:
            found.update(self._run_piece(piece, wanted, functools.partial(observe, number)))
        return found

    def _run_piece(self, feed: FeedDict, kept: Mapping[int, int], observe: _Observe) -> dict[int, Outputs]:
        """Does that for a part that is run at once."""
        plan, outputs = self._plan, self._outputs if kept else ()
        tensors = dict(feed)
        for number, part in enumerate(plan.parts):
            # There are outputs to return only where there is one part.
            names = tuple(dict.fromkeys((*part.computed, *part.carried, *outputs)))
            run = functools.partial(self._run_part, number)
            arrays = _run(run, names, {name: tensors[name] for name in part.reads}, feed)
            found = dict(zip(names, arrays, strict=True))
            observe((name, found[name]) for name in part.computed)
            # The activations of a part are dropped before the next one, except those that are read again.
            later = plan.read_later(number)
            tensors = {name: array for name, array in {**tensors, **found}.items() if name in later}
        observe((name, feed[name]) for name in plan.fed)
        # Copied here, because memory of ONNX Runtime's that is in use when the next piece is run splits what
        # that could use.
        return {
            digest: [found[name][row : row + 1].copy() for name in outputs] for row, digest in kept.items()
        }

    def _finish(self, running: Iterable[Future[dict[int, Outputs]]], done: _UpTo) -> None:
        """Waits until a batch is counted."""
        for part in running:
            self.kept.add_outputs(part.result())
        self._advance(done.rows)
        if (name := self._counted.first_with_nan()) is not None:
            raise CalibrationDataError(
                f"tensor '{name}' held NaN during calibration; the model overflows or its inputs are not "
                "preprocessed as it expects"
            )

    def _is_due(self) -> bool:
        """Whether the checkpoint is to be written."""
        return self._timer is not None and self._timer.due()

    def _save(self, done: _UpTo) -> None:
        assert self._checkpoint is not None
        self._checkpoint.save(Counted(done.samples, done.data, self._counted.merged()))


def _named_from(name_of: NameOf, first: int, sample: int) -> str:
    """What a sample is called, by its number in a part of the data before which there are some."""
    return name_of(first + sample)


def _rows_at_once(most_rows: MostRows, feed: FeedDict) -> int | None:
    """How many samples of a feed are run together, at most."""
    return most_rows(feed) if callable(most_rows) else most_rows


def _run(
    run: Callable[[Sequence[str], FeedDict], Iterable[Any]],
    names: Sequence[str],
    tensors: FeedDict,
    feed: FeedDict,
) -> Iterable[Any]:
    """Runs a part of the model on tensors that were computed from a feed."""
    try:
        return run(names, tensors)
    except TrtInt8Error:  # it is a sentence already
        raise
    except Exception as error:
        shapes = ", ".join(f"'{name}' {array.shape}" for name, array in feed.items())
        raise CalibrationDataError(
            f"the model fails on a batch with {shapes}: {first_line(error)}; check the shapes and values of "
            "the data"
        ) from error
