"""The network that rules for ranges are tried on, with the float outputs for the same samples and its noise.

The scales of its activations are inputs, so that one session tries any set of ranges.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from threading import Lock
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from calibrators.checks import without_warnings
from calibrators.data.feeds import Array, FeedDict, Floats, OneSample, is_float, joined
from calibrators.data.samples import Outputs
from calibrators.errors import CalibrationDataError
from calibrators.host.cuda_session import Cpu, Gpu, open_device
from calibrators.host.session import available_threads, first_line, in_thread, run_session
from trtint8.models.garbage_collection import pause_garbage_collection
from trtint8.models.outputs.joined import output_parts, split_outputs
from trtint8.models.serialization import light_or_file
from trtint8.quantization.placement import Placement
from trtint8.simulation.networks import Quantizer, quantized_network, scales_as_inputs

#: Runs a network on a feed and gives its outputs.
Reference: TypeAlias = Callable[[FeedDict], list[Array]]


class TrialNetwork:
    """The float network, and the same with rounded weights and with Q/DQ pairs whose scales are inputs.

    The quantized network opens in a thread of its own while the caller goes on, or when it is first run.
    Several threads may run it. A context manager, at whose end no thread of it works any more.

    Args:
        graph_model: From :func:`trtint8.models.model.prepare`; not changed.
        placement: Which tensors are quantized.
        threads: Threads per operator; ONNX Runtime's choice where None.
        device: Where the networks run: see :func:`calibrators.host.cuda_session.open_device`.
        return_memory: Whether each network returns its memory after each run, as is due where one sample
            takes much; it costs small networks time.
        one_at_a_time: Whether the quantized network is not opened before it is run, so that the float network
            can be closed before, as is due where weights take much memory.

    Attributes:
        outputs_compared: Names of what it gives: its outputs, or their parts.
        runs_at_once: How many runs of the quantized network at once take the least time for all.
        one_at_a_time: Whether the quantized network is not opened before it is run.

    Raises:
        UnsupportedError: The device is unknown, or something that it needs is not installed.
    """

    @pause_garbage_collection()
    def __init__(
        self,
        graph_model: ir.Model,
        placement: Placement,
        *,
        threads: int | None,
        device: str,
        return_memory: bool,
        one_at_a_time: bool,
    ) -> None:
        self._graph_model, self._placement = graph_model, placement
        self._names = [value.name or "" for value in graph_model.graph.outputs]
        self._parts = output_parts(graph_model)
        self.outputs_compared = tuple(part.name for part in self._parts)
        opened = open_device(device)
        processors = threads or available_threads()
        self.runs_at_once = 2 if isinstance(opened, Cpu) and processors > 1 and not return_memory else 1
        self.one_at_a_time = one_at_a_time
        self._open_session = partial(_open, device=opened, threads=threads, return_memory=return_memory)
        # Each run brings the thread that it is called in.
        self._shared = threads if self.runs_at_once == 1 else processors - (self.runs_at_once - 1)
        self._pool = ThreadPoolExecutor(2, "trtint8-open")
        self._opening_float: Future[Reference] | None = None
        self._lock = Lock()
        #: What runs the quantized network, and name of each input that is a scale to its tensor.
        self._quantized: tuple[Future[Reference], Mapping[str, str]] | None = None
        if not one_at_a_time:
            self._open_quantized()

    def _open_quantized(self) -> tuple[Future[Reference], Mapping[str, str]]:
        """The quantized network, which opens while the caller goes on."""
        with self._lock:
            if self._quantized is None:
                # The graph is changed here and not in the thread: Python code of two threads would run by
                # turns.
                quantizer = Quantizer.of(self._placement, dict.fromkeys(self._placement.tensors, 1.0))
                graph_model = quantized_network(self._graph_model, quantizer)
                scale_inputs = scales_as_inputs(graph_model)
                opening = partial(self._open_session, graph_model, threads=self._shared)
                self._quantized = self._pool.submit(opening), scale_inputs
            return self._quantized

    def __enter__(self) -> TrialNetwork:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Waits for the threads that open the networks."""
        self._pool.shutdown(cancel_futures=True)

    def open_float(self, reference: Reference | None = None) -> None:
        """Opens the float network while the caller goes on, or takes what runs it.

        Args:
            reference: Runs the float network on a feed, where it is open already.
        """
        if reference is None:
            self._opening_float = self._pool.submit(self._open_session, self._graph_model.clone())
        else:
            self._opening_float = Future()
            self._opening_float.set_result(reference)

    def close_float(self) -> None:
        """Closes the float network; it opens again where it is run again."""
        self._opening_float = None

    def reference(self, feed: FeedDict) -> list[Array]:
        """The outputs of the float network, each of their parts by itself.

        Raises:
            CalibrationDataError: ONNX Runtime fails on the feed.
            ModelError: ONNX Runtime cannot run the network.
        """
        if self._opening_float is None:
            self.open_float()
        assert self._opening_float is not None
        return self._run(self._opening_float.result(), feed)

    def outputs(self, feed: FeedDict, scales: Mapping[str, np.float32]) -> list[Array]:
        """The outputs of the quantized network, each of their parts by itself.

        Args:
            feed: Input name to array.
            scales: The scale of every quantized activation, from :meth:`scales`.

        Raises:
            CalibrationDataError: ONNX Runtime fails on the feed.
            ModelError: ONNX Runtime cannot run the network.
        """
        opening, scale_inputs = self._open_quantized()
        inputs = {name: np.asarray(scales[tensor]) for name, tensor in scale_inputs.items()}
        return self._run(opening.result(), {**feed, **inputs})

    def _run(self, run: Reference, feed: FeedDict) -> list[Array]:
        try:
            outputs = run(feed)
        except Exception as error:
            raise CalibrationDataError(f"the model fails on a sample: {first_line(error)}") from error
        return self.split(outputs)

    def split(self, outputs: Sequence[Array]) -> list[Array]:
        """The outputs of a network, each of their parts by itself.

        Args:
            outputs: One array for each of the model's outputs.
        """
        return list(split_outputs(self._parts, dict(zip(self._names, outputs, strict=True))).values())

    def scales(self, amax: Mapping[str, float]) -> Mapping[str, np.float32]:
        """The scale of every quantized activation.

        Args:
            amax: The range of every quantized activation.
        """
        with without_warnings():  # of tensors that were zero; whoever quantizes the model warns
            return Quantizer.of(self._placement, amax).scales


def _open(graph_model: ir.Model, *, device: Cpu | Gpu, threads: int | None, return_memory: bool) -> Reference:
    """Opens a network, which is used up, and gives what runs it."""
    options = {"optimize": True, "threads": threads, "one_of_many": return_memory}
    with light_or_file(graph_model, used_up=True) as source:
        return partial(run_session, device.open_session(source, **options))


class References:
    """Runs the float network on samples, several at once where it takes batches, and each once.

    Several threads may ask for batches.

    Args:
        run: Runs the float network on a feed.
        samples: One feed per sample, at least one.
        rows: The most samples that are run at once.
        first: So many samples are run first, to see what the outputs are.
        separate: Whether all outputs are known to have samples along axis 0, each computed by itself; it is
            tried where that is not known.
        known: The outputs for each sample, where they are known, each of one row; None for those that are
            not. Empty where they have to be run to see what they are like.

    Raises:
        CalibrationDataError: The network fails on a sample.
    """

    def __init__(
        self,
        run: Reference,
        samples: Sequence[FeedDict],
        rows: int,
        *,
        first: int,
        separate: bool,
        known: Sequence[Outputs | None] = (),
    ) -> None:
        self._run, self._samples = run, samples
        self._ahead: Future[None] | None = None
        self._lock = Lock()
        first = min(len(samples), rows, first) if self._alike else 1
        if known:
            #: How many samples are run at once.
            self.rows = rows if self._alike else 1
            #: The outputs for each sample, as far as they are known.
            self._known = list(known)
            self.run_until(first)
        else:
            together = self._together(first, separate)
            found = together or [run(samples[0])]
            self.rows = rows if together else 1
            self._known = [*found, *[None] * (len(samples) - len(found))]

    @property
    def elements(self) -> int:
        """How many elements the floating-point outputs have for one sample."""
        return sum(output.size for output in self._outputs(0, 1)[0] if is_float(output.dtype))

    def run_ahead(self, stop: int) -> None:
        """Runs the samples before one while the caller goes on."""
        self._ahead = in_thread(self.run_until, stop)

    def batch(self, start: int, stop: int) -> tuple[FeedDict, list[Array]]:
        """Some samples as one feed, and the outputs of the float network for them.

        Args:
            start: The number of the first sample.
            stop: The number after that of the last one.

        Raises:
            CalibrationDataError: The network fails on a sample.
        """
        with self._lock:
            if self._ahead:
                self._ahead.result()
                self._ahead = None
            self.run_until(stop)
        feed, known = joined(self._samples[start:stop]), self._outputs(start, stop)
        outputs = [np.concatenate(rows) for rows in zip(*known, strict=True)] if len(known) > 1 else known[0]
        return feed, outputs

    def run_until(self, stop: int) -> None:
        """Runs the samples before one, as far as their outputs are not known."""
        missing = [number for number in range(stop) if self._known[number] is None]
        for first in range(0, len(missing), self.rows):
            numbers = missing[first : first + self.rows]
            outputs = self._run(joined([self._samples[number] for number in numbers]))
            rows = _rows(outputs, len(numbers)) if len(numbers) > 1 else [outputs]
            for number, row in zip(numbers, rows, strict=True):
                self._known[number] = row

    def _outputs(self, start: int, stop: int) -> list[Outputs]:
        """The outputs for some samples, which are known."""
        return [outputs for outputs in self._known[start:stop] if outputs is not None]

    @cached_property
    def _alike(self) -> bool:
        """Whether all samples may be joined as far as their shapes tell, which differ in axis 0 at most."""
        if any(isinstance(feed, OneSample) for feed in self._samples):
            return False
        return len({tuple((name, a.shape[1:]) for name, a in feed.items()) for feed in self._samples}) == 1

    def _together(self, count: int, separate: bool) -> list[Outputs] | None:
        """The outputs for the first samples, run at once; None where that gives no row per sample."""
        if count < 2:
            return None
        try:
            outputs = self._run(joined(self._samples[:count]))
        except (CalibrationDataError, ValueError):  # a batch of one only, or inputs without axes
            return None
        if any(not output.ndim or len(output) != count for output in outputs):
            return None
        if not separate and any(len(output) != 1 for output in self._run(self._samples[0])):
            return None
        return _rows(outputs, count)


def _rows(outputs: Sequence[Array], count: int) -> list[Outputs]:
    """The outputs for each sample of a batch."""
    return [[output[row : row + 1] for output in outputs] for row in range(count)]


#: The level of outputs without an error, in decibels: float32 resolves about 140 dB.
_LOWEST_DB = -140.0

#: Elements that are compared at once: as float64, the logits of a language model would take gigabytes.
_BLOCK = 1 << 18


@dataclass(frozen=True)
class Noise:
    """The noise of a quantized network's outputs on some samples.

    Attributes:
        signal: The sum of the squares of each floating-point output for each sample, float64 of shape
            (outputs, samples); not a number where there is nothing to compare.
        noise: The sum of the squares of its errors, of the same shape.
    """

    signal: Floats
    noise: Floats

    @classmethod
    def of(cls, wanted: Sequence[Array], got: Sequence[Array], samples: int) -> Noise:
        """Compares outputs. One that is not finite or has another shape has as much noise as signal.

        Args:
            wanted: The float network's outputs.
            got: The quantized network's outputs, of the same number.
            samples: How many samples lie along axis 0 of every output; 1 takes each output as a whole.
        """
        pairs = zip(wanted, got, strict=True)
        found = np.array([_powers_or_nothing(a, b, samples) for a, b in pairs]).reshape(-1, 2, samples)
        return cls(found[:, 0], found[:, 1])

    @classmethod
    def joined(cls, parts: Iterable[Noise]) -> Noise:
        """The noise on the samples of all parts, in order."""
        signals, noises = zip(*((part.signal, part.noise) for part in parts), strict=True)
        return cls(np.concatenate(signals, axis=1), np.concatenate(noises, axis=1))

    def of_output(self, index: int) -> Noise:
        """The noise of one output.

        Args:
            index: Which one.
        """
        which = slice(index, index + 1)
        return Noise(self.signal[which], self.noise[which])

    @property
    def levels(self) -> Floats:
        """The level of the noise below the signal for each sample: minus the SQNR, in decibels.

        float64, shape (samples,): the mean over the outputs that have a signal, each not less than -140 dB;
        -140 dB where there is none.
        """
        return _mean_over_outputs(self.signal, self.noise)

    @property
    def typical_levels(self) -> list[float]:
        """The level of the noise of each output for a typical sample, in decibels: see :func:`mean_level`.

        Not a number where an output has no signal in any sample.
        """
        known = (row[~np.isnan(row)] for row in _levels(self.signal, self.noise))
        return [mean_level(row) if len(row) else math.nan for row in known]

    @property
    def worst_level(self) -> float:
        """The level of the noise for a typical sample, of the output where it is highest, in decibels."""
        return max((one for one in self.typical_levels if not math.isnan(one)), default=_LOWEST_DB)

    @classmethod
    def of_changing(cls, noises: Mapping[str, Noise]) -> dict[str, Noise]:
        """The noise of several networks without the outputs that are exact in all of them, on every sample.

        Args:
            noises: Name to the noise of each, with the same outputs.
        """
        changing = np.any([(one.noise > 0).any(axis=1) for one in noises.values()], axis=0)[:, None]
        return {name: cls(np.where(changing, one.signal, np.nan), one.noise) for name, one in noises.items()}

    @property
    def pooled_level(self) -> float:
        """The level of the noise of all samples together, in decibels: the largest errors count most."""
        signal, noise = (np.nansum(powers, axis=1, keepdims=True) for powers in (self.signal, self.noise))
        return float(_mean_over_outputs(signal, noise)[0])


def _mean_over_outputs(signal: Floats, noise: Floats) -> Floats:
    """The mean level over the outputs that have a signal, in decibels."""
    levels = _levels(signal, noise)
    known = ~np.isnan(levels)
    sums = np.where(known, levels, 0.0).sum(axis=0)
    return np.where(known.any(axis=0), sums / np.maximum(known.sum(axis=0), 1), _LOWEST_DB)


def _levels(signal: Floats, noise: Floats) -> Floats:
    """The level of each output and sample, in decibels; not a number where there is no signal."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(signal > 0, np.maximum(10 * np.log10(noise / signal), _LOWEST_DB), np.nan)


def _powers_or_nothing(wanted: Array, got: Array, samples: int) -> Floats:
    """The powers of one output's signal and noise, shape (2, samples); not a number without a signal."""
    if not np.issubdtype(wanted.dtype, np.floating):
        return np.full((2, samples), np.nan)
    exact = wanted.reshape(samples, -1)
    if wanted.shape != got.shape:
        signal, _ = _powers(exact, exact)
        signal = np.where((signal > 0) & np.isfinite(signal), signal, 1.0)
        return np.stack([signal, signal])
    signal, noise = _powers(exact, got.reshape(samples, -1))
    noise = np.where(np.isfinite(noise), noise, signal)
    known = (signal > 0) & np.isfinite(signal)
    return np.where(known, [signal, noise], np.nan)


def _powers(wanted: Array, got: Array) -> tuple[Floats, Floats]:
    """The sums of the squares of signal and error in each row."""
    rows, elements = wanted.shape
    signal, noise = np.zeros((2, rows))
    width = max(1, _BLOCK // rows)
    for start in range(0, elements, width):
        exact, other = (array[:, start : start + width].astype(np.float64) for array in (wanted, got))
        error = exact - other
        signal += np.einsum("ij,ij->i", exact, exact)
        noise += np.einsum("ij,ij->i", error, error)
    return signal, noise


#: The exponent of the mean of noise powers over samples. With 1, the one sample that is unlike all others
#: would decide; the mean of the decibels, 0, would accept that some samples are ruined for others that become
#: still better.
_EXPONENT = 1 / 3


def _powers_of(levels: Sequence[float] | Floats) -> Floats:
    return np.asarray(10 ** (np.asarray(levels, np.float64) * (_EXPONENT / 10)))


def mean_level(levels: Sequence[float] | Floats) -> float:
    """The mean of noise levels: the power mean of the noise powers with the exponent 1/3.

    Args:
        levels: In decibels, at least one.

    Returns:
        The mean in decibels.
    """
    return 10 / _EXPONENT * math.log10(math.fsum(_powers_of(levels)) / len(levels))


#: So many standard errors are certain: less than one chance in forty for eight samples or more.
CERTAIN = 2.4


def difference(levels: Sequence[float], others: Sequence[float]) -> tuple[float, float]:
    """By how much noise exceeds other noise on the same samples.

    Args:
        levels: Noise levels in decibels, one per sample.
        others: Those of something else on the same samples.

    Returns:
        The difference of the two means (:func:`mean_level`), and its standard error from the paired
        differences, both in decibels. The error is infinite where there is one sample only.
    """
    mean = mean_level(levels) - mean_level(others)
    own, other = _powers_of(levels), _powers_of(others)
    if len(own) < 2:
        return mean, math.inf
    error = float((own - other).std(ddof=1)) / math.sqrt(len(own)) / float((own + other).mean() / 2)
    return mean, 10 / _EXPONENT / math.log(10) * error
