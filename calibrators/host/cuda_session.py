"""Running a model on a GPU with ONNX Runtime's CUDA provider, its outputs left there.

This is the edge: what only a machine with a GPU can show. What is done with the outputs is in
:mod:`calibrators.histograms.counting`, and runs anywhere. A calibration asks here whether it runs and counts
on the CPU or on a GPU.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from calibrators.data.feeds import Array, NamedArrays
from calibrators.errors import Argument, GpuMemoryError, GpuUnavailableError, UnsupportedError
from calibrators.histograms.counting import DeviceHistograms, OnDevice, ParallelHistograms, histogram_of
from calibrators.histograms.histogram import Histogram
from calibrators.host.session import as_array, first_line, open_session, run_in_place
from calibrators.host.weights import LightModel

_PROVIDER = "CUDAExecutionProvider"

#: What ONNX Runtime, cuBLAS, cuDNN, CuPy and PyTorch say when the GPU's memory is full.
_FULL = ("out of memory", "failed to allocate memory", "alloc_failed")


@dataclass(frozen=True)
class _Library:
    """A library that can count on a GPU.

    Attributes:
        name: The module.
        gpus: Returns how many GPUs the library can use.
        array_of_one: Returns an array on a GPU that holds a 1.
        entered: Makes the library use the GPU with an index, for the duration of a block.
    """

    name: str
    gpus: Callable[[Any], int]
    array_of_one: Callable[[Any], Any]
    entered: Callable[[Any, int], AbstractContextManager[Any]]


#: The one that is quicker to load comes first.
_LIBRARIES = (
    _Library(
        "cupy",
        lambda cupy: cupy.cuda.runtime.getDeviceCount(),
        lambda cupy: cupy.ones(1),
        lambda cupy, index: cupy.cuda.Device(index),
    ),
    _Library(
        "torch",
        lambda torch: torch.cuda.device_count(),
        lambda torch: torch.ones(1, device="cuda"),
        lambda torch, index: torch.cuda.device(index),
    ),
)


@dataclass(frozen=True)
class Gpu:
    """A GPU that runs the model and keeps the activations; from :func:`open_gpu`.

    Attributes:
        index: The GPU's index, among those that this process can use.
        library: The module that counts there: ``cupy`` or ``torch``.
        entered: Makes the library use this GPU, for the duration of a block.
    """

    #: ONNX Runtime's names of the device where outputs stay, and of the device of all other outputs.
    there: ClassVar[str] = "cuda"
    elsewhere: ClassVar[str] = "cpu"

    index: int
    library: Any
    entered: Callable[[], AbstractContextManager[Any]]

    def open_session(self, model: LightModel | bytes | Path, **options: Any) -> Any:
        """Opens a model on the GPU.

        Args:
            model: The model, serialized or not, or its path.
            **options: Keywords of :func:`calibrators.host.session.open_session`.

        Raises:
            ModelError: ONNX Runtime refuses the model.
            UnsupportedError: It would run the model on the CPU, as its CUDA provider did not load.
            GpuMemoryError: The model does not fit.
        """
        settings = {
            # The first is the default; where one is named, ONNX Runtime 1.26 and later warn at every session.
            **({"device_id": str(self.index)} if self.index else {}),
            # Otherwise outputs may be copied while they are computed (ONNX Runtime's issue 4829).
            "do_copy_in_default_stream": "1",
            # From Ampere on products would have 10 bits of fraction: the ranges are to be those of FP32.
            "use_tf32": "0",
            # The search takes what is fastest at the moment, and so results change from run to run (19822).
            "cudnn_conv_algo_search": "HEURISTIC",
        }
        # Finds CUDA and cuDNN where pip has put them. What it misses it prints where results go.
        with contextlib.redirect_stdout(sys.stderr):
            importlib.import_module("onnxruntime").preload_dlls()
        with self._active():
            providers = [(_PROVIDER, settings), "CPUExecutionProvider"]
            session = open_session(model, providers=providers, **options)
        if _PROVIDER not in session.get_providers():
            raise UnsupportedError(
                "ONNX Runtime has a CUDA provider, but could not load it: it has said above what "
                'is missing; run pip install "onnxruntime-gpu[cuda,cudnn]", or use device cpu'
            )
        return session

    def run(self, session: Any, names: Sequence[str], feed: NamedArrays) -> list[OnDevice | Array]:
        """Runs a model and leaves its outputs on the GPU.

        Args:
            session: From :meth:`open_session`.
            names: The outputs that are wanted.
            feed: Input name to array on the host.

        Returns:
            Their values: float32 ones on the GPU, where that is where they are; others on the host. The
            memory goes back to ONNX Runtime when they are gone.

        Raises:
            GpuMemoryError: They do not fit.
        """
        if not names:
            return []
        with self._active():
            binding = session.io_binding()
            for name, array in feed.items():
                binding.bind_cpu_input(name, array)  # is copied once, to where the model wants it
            for name in names:
                binding.bind_output(name, self.there, self.index)
            # A run waits for its kernels before it returns (onnxruntime_run_options_config_keys.h, "disable_
            # synchronize_execution_providers"), but leaves copies of inputs, and outputs that others are to
            # read, to its caller (InferenceSession::Run).
            binding.synchronize_inputs()
            session.run_with_iobinding(binding)
            binding.synchronize_outputs()
            return [self._left_there(value) for value in binding.get_outputs()]

    def histograms(
        self, start: Mapping[str, Histogram], threads: int, rectified: Mapping[str, str]
    ) -> DeviceHistograms:
        """Histograms that count on the GPU what is there.

        Args:
            start: Tensor name to what was counted before.
            threads: How many count the rest on the host.
            rectified: None: the outputs of Relu are counted by themselves here.
        """
        assert not rectified, "signs are told apart on the host only"
        return DeviceHistograms(start, threads, self._count)

    def _count(self, values: Any, bins: int) -> Histogram:
        with self._active():
            return histogram_of(self.library, values, bins)

    def _left_there(self, value: Any) -> OnDevice | Array:
        if value.device_name() == self.elsewhere or value.data_type() != "tensor(float)":
            return as_array(value)
        return OnDevice(self.library.from_dlpack(_exporter(value)))

    @contextlib.contextmanager
    def _active(self) -> Iterator[None]:
        """The library uses this GPU; says plainly when its memory is full."""
        try:
            with self.entered():
                yield
        except Exception as error:
            if not any(sign in str(error).lower() for sign in _FULL):
                raise
            raise GpuMemoryError(
                f"the memory of GPU {self.index} is full: {first_line(error)}; use a smaller "
                f"{Argument('batch_size')}, or end what else runs there"
            ) from error


def open_gpu(index: int) -> Gpu:
    """Finds a GPU, ONNX Runtime's provider for it and a library that counts there.

    Args:
        index: The GPU's index, among those that this process can use.

    Raises:
        UnsupportedError: ONNX Runtime has no CUDA provider, or no library is there.
        GpuUnavailableError: There is no GPU with that index.
    """
    import onnxruntime as ort

    if _PROVIDER not in ort.get_available_providers():
        raise UnsupportedError(
            f"the ONNX Runtime that is installed ({ort.__version__}) has no CUDA provider; run pip uninstall "
            'onnxruntime, then pip install "onnxruntime-gpu[cuda,cudnn]": only one of the two can be there'
        )
    if not hasattr(_exporter(ort.OrtValue.ortvalue_from_numpy(np.zeros(1, np.float32))), "__dlpack__"):
        raise UnsupportedError(
            f"ONNX Runtime {ort.__version__} hands no tensors on the GPU to others; install onnxruntime-gpu "
            "1.23 or newer"
        )
    library, module = _library(index, str(getattr(ort, "cuda_version", None) or "12"))
    if index >= (count := library.gpus(module)):
        raise GpuUnavailableError(
            f"there is no GPU with index {index}; {library.name} sees {count}, from 0 on"
        )
    return Gpu(index, module, lambda: library.entered(module, index))


def _library(index: int, cuda_version: str) -> tuple[_Library, Any]:
    """The first library that computes on a GPU, and its module; ``cuda_version`` is ONNX Runtime's."""
    problems = []
    for library in _LIBRARIES:
        try:
            module = importlib.import_module(library.name)
            if not (count := library.gpus(module)):
                problems.append(f"{library.name} sees no GPU")
                continue
            with library.entered(module, min(index, count - 1)):
                # Fails where CuPy finds no CUDA to compile with, and where PyTorch is not made for the GPU.
                library.array_of_one(module).sum().item()
            return library, module
        except Exception as error:  # noqa: BLE001 where one library fails, the other may work
            problems.append(f"{library.name}: {first_line(error)}")
    raise UnsupportedError(
        f"nothing counts on a GPU here ({'; '.join(problems)}); that takes an NVIDIA GPU with its driver, "
        f'and CuPy (pip install "cupy-cuda{cuda_version.partition(".")[0]}x[ctk]") or PyTorch with CUDA'
    )


def _exporter(value: Any) -> Any:
    """The object that has DLPack's methods: a newer wrapper itself, or what an older one wraps (1.21 on)."""
    return value if hasattr(value, "__dlpack__") else value._ortvalue


_NAME = re.compile(r"(cpu)|cuda(?::(\d{1,4}))?")


@dataclass(frozen=True)
class Cpu:
    """The CPU; :class:`calibrators.host.cuda_session.Gpu` has the same three methods."""

    def open_session(self, model: LightModel | bytes | Path, **options: Any) -> Any:
        """See :func:`calibrators.host.session.open_session`."""
        return open_session(model, **options)

    def run(self, session: Any, names: Sequence[str], feed: NamedArrays) -> list[Array]:
        """See :func:`calibrators.host.session.run_in_place`."""
        return run_in_place(session, names, feed)

    def histograms(
        self, start: Mapping[str, Histogram], threads: int, rectified: Mapping[str, str]
    ) -> ParallelHistograms:
        """See :class:`calibrators.histograms.counting.ParallelHistograms`."""
        return ParallelHistograms(start, threads, rectified)


def device_kind(device: str) -> str:
    """What kind of device it is: results of two kinds differ in their last bits.

    Args:
        device: ``cpu``, ``cuda``, or ``cuda:1`` for the second GPU.

    Returns:
        ``cpu`` or ``cuda``.

    Raises:
        UnsupportedError: There is no such kind of device.
    """
    return "cpu" if _index(device) is None else "cuda"


def open_device(device: str) -> Cpu | Gpu:
    """Finds a device and what is needed to count there.

    Args:
        device: ``cpu``, ``cuda``, or ``cuda:1`` for the second GPU.

    Raises:
        UnsupportedError: There is no such kind of device, or something that it needs is not installed.
        GpuUnavailableError: There is no GPU with that index.
    """
    index = _index(device)
    return Cpu() if index is None else open_gpu(index)


def _index(device: str) -> int | None:
    """A GPU's index; None for the CPU."""
    match = _NAME.fullmatch(str(device))
    if not match:
        raise UnsupportedError(f"the device is '{device}'; give cpu, cuda, or cuda:1 for the second GPU")
    return None if match[1] else int(match[2] or 0)
