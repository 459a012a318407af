"""The quantized network with the scales of its activations as inputs: one session tries any set of ranges."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Lock
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators.data.feeds import FeedDict
from calibrators.errors import CalibrationDataError
from calibrators.host.cuda_session import Gpu
from calibrators.host.devices import Cpu, open_device
from calibrators.host.onnx_session import first_line, run_silently
from calibrators.host.threads import available_threads
from trtint8.models.garbage_collection import pause_garbage_collection
from trtint8.models.outputs.parts import output_parts, split_outputs
from trtint8.models.serialization import light_or_file
from trtint8.quantization.placement import Placement
from trtint8.simulation.layers import Quantizer
from trtint8.simulation.networks import quantized_network, scales_as_inputs

#: Runs a network on a feed and gives its outputs.
Reference: TypeAlias = Callable[[FeedDict], list[NDArray[Any]]]


class TrialNetwork:
    """The float network, and the same with rounded weights and with Q/DQ pairs whose scales are inputs.

    The quantized network opens in a thread of its own while the caller goes on, or when it is first run.
    Several threads may run it. A context manager, at whose end no thread of it works any more.

    Args:
        graph_model: From :func:`trtint8.models.model.prepare`; not changed.
        placement: Which tensors are quantized.
        threads: Threads per operator; ONNX Runtime's choice where None.
        device: Where the networks run: see :func:`calibrators.host.devices.open_device`.
        return_memory: Whether each network returns its memory after each run, as is due where one sample
            takes much; it costs small networks time.
        one_at_a_time: Whether the quantized network is not opened before it is run, so that the float network
            can be closed before, as is due where weights take much memory.

    Attributes:
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

    def reference(self, feed: FeedDict) -> list[NDArray[Any]]:
        """The outputs of the float network, each of their parts by itself.

        Raises:
            CalibrationDataError: ONNX Runtime fails on the feed.
            ModelError: ONNX Runtime cannot run the network.
        """
        if self._opening_float is None:
            self.open_float()
        assert self._opening_float is not None
        return self._run(self._opening_float.result(), feed)

    def outputs(self, feed: FeedDict, scales: Mapping[str, np.float32]) -> list[NDArray[Any]]:
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

    def _run(self, run: Reference, feed: FeedDict) -> list[NDArray[Any]]:
        try:
            outputs = run(feed)
        except Exception as error:
            raise CalibrationDataError(f"the model fails on a sample: {first_line(error)}") from error
        return self.split(outputs)

    def split(self, outputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of tensors that were zero; whoever quantizes the model warns
            return Quantizer.of(self._placement, amax).scales


def _open(graph_model: ir.Model, *, device: Cpu | Gpu, threads: int | None, return_memory: bool) -> Reference:
    """Opens a network, which is used up, and gives what runs it."""
    options = {"optimize": True, "threads": threads, "one_of_many": return_memory}
    with light_or_file(graph_model, used_up=True) as source:
        return partial(run_silently, device.open_session(source, **options))
