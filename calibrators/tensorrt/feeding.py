"""Brings batches to the GPU: page-locked staging, two buffers per input, one batch ahead.

While TensorRT works on a batch, a thread reads the next one from its source, stages and uploads it. All
batches have one shape, as TensorRT's calibration wants them. Each is checked before TensorRT gets it, and
none is missing.

They have the element types of TensorRT's network, which are not always those of the ONNX model. Before
version 10, TensorRT's parser makes INT64 inputs INT32, and every version makes DOUBLE inputs FLOAT. A
calibrator gives TensorRT nothing but addresses, so bytes of the wrong type would be read as other numbers.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Literal

import numpy as np

from calibrators.checks import warn_user, with_users_line
from calibrators.cuda import Device, Stream, TensorMemory
from calibrators.data.batches import Batches
from calibrators.data.feeds import Array, FeedDict, batch_rows
from calibrators.data.inputs import InputSpec, shape_text
from calibrators.data.samples import DataFingerprint, Preflight
from calibrators.errors import Argument, CalibrationDataError
from calibrators.tensorrt.flavor import numpy_dtype

#: What an input that is INT8 itself can be fed, as float32.
_INT8_RANGE = (-128.0, 127.0)


def network_dtypes(trt: Any, network: Any) -> dict[str, np.dtype[Any]]:
    """Input name to the element type that a network takes; inputs of a type that NumPy lacks are left out.

    Args:
        trt: The TensorRT module.
        network: An ``INetworkDefinition``, parsed, with the types of its inputs set.
    """
    tensors = [network.get_input(index) for index in range(network.num_inputs)]
    dtypes = {tensor.name: numpy_dtype(trt, tensor.dtype) for tensor in tensors}
    return {name: dtype for name, dtype in dtypes.items() if dtype is not None}


def to_network(feed: FeedDict, dtypes: Mapping[str, np.dtype[Any]]) -> FeedDict:
    """Converts a feed to the element types of the network.

    Args:
        feed: Input name to array, in the types of the model.
        dtypes: Input name to the type in the network; inputs that it lacks stay as they are. For INT8 inputs
            TensorRT wants float32 within [-128, 127].

    Returns:
        The feed with C-contiguous arrays.

    Raises:
        CalibrationDataError: A value does not fit into the network's type.
    """
    return {name: _converted(name, array, dtypes.get(name, array.dtype)) for name, array in feed.items()}


def _converted(name: str, array: Array, dtype: np.dtype[Any]) -> Array:
    if dtype == np.int8 and array.dtype != np.int8:
        low, high = _INT8_RANGE
        if array.dtype != np.float32 or array.min() < low or array.max() > high:
            raise CalibrationDataError(
                f"input '{name}' is INT8 in the network, so its calibration data must be float32 within "
                f"[-128, 127], not {array.dtype} from {array.min():g} to {array.max():g}; divide it by "
                "the input's scale"
            )
        return array
    if array.dtype == dtype:
        return array
    with np.errstate(over="ignore", invalid="ignore"):
        converted = array.astype(dtype)
    if dtype.kind in "iu":
        fits = np.array_equal(converted, array)
    else:
        fits = not (np.isfinite(array) & ~np.isfinite(converted)).any()
    if not fits:
        raise CalibrationDataError(
            f"input '{name}' is {dtype} in TensorRT's network, and its {array.dtype} data, from "
            f"{array.min():g} to {array.max():g}, does not fit; give values that {dtype} holds"
        )
    return converted


#: How long a batch is waited for before it is asked whether to go on waiting, in seconds.
_PATIENCE = 0.1

_Pointers = dict[str, int] | None


class Feeder:
    """Uploads feeds of one shape, always one ahead of the one that is in use.

    Attributes:
        batches: How many feeds were returned.
    """

    def __init__(self, feeds: Iterator[FeedDict], device: Device) -> None:
        self.batches = 0
        self._feeds = feeds
        self._device = device
        self._slots = (_Slot(device), _Slot(device))
        self._stream: Stream | None = None
        self._closed = self._abandoned = False
        self._uploading = threading.Lock()
        self._requests: queue.SimpleQueue[tuple[int, Future[_Pointers]] | None] = queue.SimpleQueue()
        # A daemon, so that a source that never gives its next batch does not keep the process from ending.
        work = with_users_line(self._work)
        self._worker = threading.Thread(target=work, name="trtint8-feeder", daemon=True)
        self._worker.start()
        self._staged = self._request(0)

    def next(self, cancelled: Callable[[], bool] = lambda: False) -> _Pointers:
        """The next feed on the GPU; the one before it may be overwritten from now on.

        Args:
            cancelled: Asked while the source is waited for; True ends the waiting.

        Returns:
            Input name to device address, the upload completed; None at the end of the data.

        Raises:
            BaseException: Whatever the source of the feeds raised.
            GpuMemoryError: The GPU has no room for two batches.
            KeyboardInterrupt: The waiting was cancelled.
        """
        try:
            while not concurrent.futures.wait((self._staged,), _PATIENCE).done:
                if cancelled():
                    raise KeyboardInterrupt
        except BaseException:  # Ctrl-C also where nobody asks
            self._abandoned = True
            raise
        pointers = self._staged.result()
        if pointers is not None:
            self.batches += 1
            self._staged = self._request(self.batches % 2)
        return pointers

    def close(self) -> None:
        """Ends the thread and frees the memory; a second time does nothing.

        A source that is giving a batch is waited for, unless waiting for it in :meth:`next` was ended.
        """
        self._closed = True
        self._requests.put(None)
        if not self._abandoned:
            self._worker.join()
        with self._uploading, self._device.active():
            for slot in self._slots:
                slot.free()
            if self._stream is not None:
                self._stream.free()
                self._stream = None

    def _request(self, turn: int) -> Future[_Pointers]:
        staged: Future[_Pointers] = Future()
        self._requests.put((turn, staged))
        return staged

    def _work(self) -> None:
        while (request := self._requests.get()) is not None:
            turn, staged = request
            try:
                staged.set_result(None if self._closed else self._stage(turn))
            except BaseException as error:  # noqa: BLE001 - raised where the batch is asked for
                staged.set_exception(error)

    def _stage(self, turn: int) -> _Pointers:
        feed = next(self._feeds, None)
        if feed is None:
            return None
        with self._uploading, self._device.active():
            if self._closed:
                return None
            self._stream = self._stream or self._device.new_stream()
            pointers = self._slots[turn].upload(feed, self._stream)
            # TensorRT reads on a stream of its own, which does not wait for this one.
            self._stream.synchronize()
        return pointers


class _Slot:
    """One feed's place, in page-locked memory and on the GPU."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._memory: dict[str, TensorMemory] = {}

    def upload(self, feed: FeedDict, stream: Stream) -> dict[str, int]:
        pointers = {}
        for name, array in feed.items():
            memory = self._memory.setdefault(name, TensorMemory(self._device))
            memory.reserve_pinned(array.shape, array.dtype)[...] = array
            pointers[name] = memory.reserve(array.nbytes)
            self._device.upload(pointers[name], memory.address, array.nbytes, stream.handle)
        return pointers

    def free(self) -> None:
        for memory in self._memory.values():
            memory.free()


class CalibrationPass:
    """Batches of one shape, checked and counted while they are iterated.

    Args:
        batches: The data.
        inputs: What the model takes.
        last_batch: What becomes of a last batch that is not full.
        num_batches: How many batches the data must give; more are not read. None takes all.

    Attributes:
        shapes: The shape of every input in a batch, from the first one.
        started: Whether its batches are iterated.

    Raises:
        CalibrationDataError: There is no batch, or the first one does not fit the model.
    """

    def __init__(
        self,
        batches: Batches,
        inputs: Sequence[InputSpec],
        *,
        last_batch: LastBatch,
        num_batches: int | None,
    ) -> None:
        self._batches, self._num_batches = batches, num_batches
        self._preflight, self._fingerprint = Preflight(inputs, batches.name_of), DataFingerprint()
        self._seen = self._fed = 0
        self.started = False
        feeds = self._checked(last_batch)
        first = next(feeds, None)
        if first is None:
            raise CalibrationDataError(
                f"the data gives no full batch; give more samples, a smaller {Argument('batch_size')}, or "
                "last_batch='pad'"
            )
        self.shapes = {name: array.shape for name, array in first.items()}
        self._feeds = itertools.chain([first], feeds)

    @property
    def fingerprint(self) -> str:
        """Identifies the samples that were iterated so far."""
        return self._fingerprint.hexdigest()

    @property
    def samples(self) -> int:
        """How many samples were iterated so far, repeated ones included."""
        return self._fingerprint.samples

    @property
    def batch_size(self) -> int:
        """Samples per batch; 1 where no input has a batch axis."""
        return next((shape[0] for shape in self.shapes.values() if shape), 1)

    def __iter__(self) -> Iterator[FeedDict]:
        self.started = True
        return self._feeds

    def finish(self) -> list[str]:
        """Judges the data once all of it was iterated.

        Returns:
            What is suspicious about the data, one sentence per finding.

        Raises:
            CalibrationDataError: There was less of it than promised.
        """
        if self._num_batches is not None and self._fed < self._num_batches:
            raise CalibrationDataError(
                f"the data ended after {self._fed} of {self._num_batches} batches; give more samples or a "
                "smaller num_batches"
            )
        promised = self._batches.num_samples
        if self._num_batches is None and promised is not None and self._seen < promised:
            raise CalibrationDataError(
                f"the data gave {self._seen} of the {promised} samples that it promised; check its source"
            )
        return self._preflight.finish()

    def _checked(self, last_batch: LastBatch) -> Iterator[FeedDict]:
        for feed in uniform(self._counted(), last_batch):
            self._preflight.observe(feed)
            self._fingerprint.observe(feed)
            self._fed += 1
            yield feed
            if self._fed == self._num_batches:
                return

    def _counted(self) -> Iterator[FeedDict]:
        for feed in self._batches:
            self._seen += batch_rows(feed) or 1
            yield feed


#: What becomes of a last batch that is not full.
LastBatch = Literal["drop", "pad", "refuse"]


def uniform(feeds: Iterable[FeedDict], last_batch: LastBatch = "drop") -> Iterator[FeedDict]:
    """Passes feeds on that have the shapes of the first, and deals with a smaller one at the end.

    Args:
        feeds: Input name to array.
        last_batch: ``drop`` leaves its samples out; ``pad`` repeats them until it is full, so that they
            count more than once; ``refuse`` fails.

    Yields:
        The feeds, contiguous and in order.

    Raises:
        CalibrationDataError: A feed has other shapes than the first, or the last one is smaller and that
            is refused.

    Warns:
        UserWarning: Samples were left out or repeated.
    """
    wanted: FeedDict | None = None
    short: FeedDict | None = None
    for index, feed in enumerate(feeds):
        feed = type(feed)((name, np.require(array, requirements="C")) for name, array in feed.items())
        wanted = wanted or feed
        if short is not None:
            raise _other_shapes(index - 1, short, wanted)
        if _shapes(feed) == _shapes(wanted):
            yield feed
        elif _is_smaller(feed, wanted):
            short = feed
        else:
            raise _other_shapes(index, feed, wanted)
    if wanted is not None and short is not None:
        yield from _last(short, wanted, last_batch)


def _last(short: FeedDict, wanted: FeedDict, last_batch: LastBatch) -> Iterator[FeedDict]:
    rows, full = batch_rows(short), batch_rows(wanted)
    if last_batch == "refuse":
        raise CalibrationDataError(
            f"the last batch has {rows} of {full} samples; choose last_batch='drop' or 'pad', or "
            f"give a multiple of {full} samples"
        )
    samples = "sample" if rows == 1 else f"{rows} samples"
    what = (
        f"left out the last {samples}, too few to fill a batch of {full} (last_batch='pad' would repeat them)"
        if last_batch == "drop"
        else f"repeated the last {samples} to fill a batch of {full}: what is repeated counts more than once"
    )
    warn_user(what, note=last_batch == "drop")
    if last_batch == "pad":
        # np.resize repeats the whole rows, because they lie one after another.
        yield {name: np.resize(array, wanted[name].shape) for name, array in short.items()}


def _shapes(feed: FeedDict) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in feed.items()}


def _is_smaller(feed: FeedDict, wanted: FeedDict) -> bool:
    rows, full = batch_rows(feed), batch_rows(wanted)
    if rows is None or full is None or rows > full or feed.keys() != wanted.keys():
        return False
    return all(array.shape[1:] == wanted[name].shape[1:] for name, array in feed.items())


def _other_shapes(index: int, feed: FeedDict, wanted: FeedDict) -> CalibrationDataError:
    return CalibrationDataError(
        f"batch {index} has {_listed(feed)} but the first one {_listed(wanted)}; TensorRT calibrates with "
        "one shape per input, so bring all samples to one shape, and give batches of one size"
    )


def _listed(feed: FeedDict) -> str:
    return ", ".join(f"'{name}' {shape_text(array.shape)}" for name, array in feed.items())
