"""Loads engines and runs them.

The kernels that TensorRT for RTX compiles when it loads an engine, kept in a file between runs.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, overload

from calibrators import records
from calibrators.checks import FilePath, check_path, several, warn_user
from calibrators.cuda import Device, compute_capability, open_device, require_gpu
from calibrators.cuda.dlpack import Dlpack
from calibrators.errors import Argument, EngineError, UnsupportedError
from calibrators.files import check_writable, is_file, write_atomically
from calibrators.tensorrt import flavor as flavors
from calibrators.tensorrt.flavor import Flavor
from calibrators.tensorrt.messages import collected, shared_logger
from calibrators.tensorrt.plugins import load_plugin_library, register_own_plugins
from trtint8.engine.file import EngineInfo, read_engine_info, read_plan, sidecar_path
from trtint8.engine.plan import (
    allow_code_of_plans,
    check_capability,
    check_plan_version,
    check_version,
    plan_flavor,
    without_metadata,
)
from trtint8.runtime.arrays import CudaArray, DeviceArray, Feeds, HostArray, Outputs, StreamLike
from trtint8.runtime.bindings import read_bindings
from trtint8.runtime.bound_call import BoundCall
from trtint8.runtime.context import FIRST_RUNS
from trtint8.runtime.execution import ExecutionContext, InferenceFuture


class Engine:
    """A deserialized engine on one GPU, made by :meth:`load`. Several threads may use it at once.

    Attributes:
        info: The engine's sidecar; None where it has none.
        flavor: The TensorRT that runs the engine.
        device: The GPU.
        inputs: The engine's inputs; dynamic dimensions are None.
        outputs: The engine's outputs; dynamic dimensions are None.
        profiles: Input name to accepted shapes, for every optimization profile; empty where all inputs are
            static.

    Examples:
        >>> with trtint8.Engine.load("model.engine") as engine:
        ...     outputs = engine.infer({"images": np.zeros((1, 1, 8, 8), np.float32)})
        >>> outputs["logits"].shape
        (1, 10)
    """

    def __init__(
        self,
        flavor: Flavor,
        runtime: Any,
        engine: Any,
        device: Device,
        info: EngineInfo | None,
        cache: RuntimeCache | None = None,
    ) -> None:
        # Assigned in this order, so that the engine is deleted before its runtime even where nobody closes
        # it.
        self._engine, self._runtime = engine, runtime
        self.flavor, self.device, self.info, self._cache = flavor, device, info, cache
        self._bindings = read_bindings(flavor.module, engine)
        self.inputs, self.outputs = self._bindings.inputs, self._bindings.outputs
        self.profiles = self._bindings.profiles
        self._lock = threading.Lock()
        # Weak references, so that a thread's context is freed when the thread ends.
        self._contexts: weakref.WeakSet[ExecutionContext] = weakref.WeakSet()
        self._thread = threading.local()

    @classmethod
    def load(
        cls,
        source: FilePath | bytes,
        *,
        device: int = 0,
        plugins: Sequence[FilePath] = (),
        dla_core: int | None = None,
        runtime_cache: FilePath | None = None,
        allow_host_code: bool = False,
    ) -> Engine:
        """Loads an engine onto a GPU.

        Args:
            source: The path of an engine file, whose sidecar is verified where it has one, or the plan
                itself. Metadata before the plan, as Ultralytics writes it, is skipped.
            device: Index of the GPU.
            plugins: Paths of shared libraries with the plugins that the engine uses.
            dla_core: The DLA core that runs an engine that was built for the DLA; None lets TensorRT choose.
            runtime_cache: File of the kernels that TensorRT for RTX compiles for an engine: read now, and
                written when the engine is closed.
            allow_host_code: Whether code that the engine contains may run on this machine. A
                version-compatible engine contains the runtime that it needs; allow it for engines that you
                trust.

        Returns:
            The engine.

        Raises:
            EngineError: The file is missing, truncated, changed or not an engine; the engine was built by
                another version or for another GPU; it contains code and ``allow_host_code`` is false; or a
                plugin library cannot be loaded.
            UnsupportedError: The TensorRT that the engine needs is not installed, has no runtime cache or
                does not take such a plugin library, or the machine has no such DLA core.
            GpuUnavailableError: There is no GPU, or none of that index.
        """
        info, name = None, "the plan"
        if not isinstance(source, bytes):
            check_path("the engine", source, EngineError)
            name = f"'{os.fspath(source)}'"
            info = read_engine_info(source) if is_file(sidecar_path(source)) else None
        plan = without_metadata(source if isinstance(source, bytes) else read_plan(source))
        flavor = flavors.load(plan_flavor(plan, name))
        if info is None:
            # A version-compatible plan says nothing of that where it has no sidecar.
            if not allow_host_code:
                check_plan_version(plan, flavor, name)
        else:
            check_version(info, flavor, name)
            if info.version_compatible and not allow_host_code:
                raise EngineError(
                    f"{name} is version-compatible, so it contains code that would run on this machine; if "
                    f"you trust it, load it with {Argument('allow_host_code', 'True')}"
                )
        require_gpu(f"running {name}")
        if info is not None:
            check_capability(info, compute_capability(device), name)
        gpu, trt = open_device(device), flavor.module
        with gpu.active(), collected(trt) as log:
            register_own_plugins(trt)
            runtime = trt.Runtime(shared_logger(trt))
            if allow_host_code:
                # Only the caller can know whether to trust an engine: a sidecar comes with it.
                allow_code_of_plans(runtime, flavor)
            if dla_core is not None:
                cores = runtime.num_DLA_cores
                if not 0 <= dla_core < cores:
                    raise UnsupportedError(
                        f"there is no DLA core {dla_core}; this machine has {cores}, numbered from 0; leave "
                        f"{Argument('dla_core')} out"
                    )
                runtime.DLA_core = dla_core
            for library in several(plugins):
                load_plugin_library(library, runtime, flavor, EngineError)
            engine = runtime.deserialize_cuda_engine(plan)
            if engine is None:
                raise EngineError(f"{flavor} cannot load {name}: {log.reason()}")
            cache = RuntimeCache.attach(engine, runtime_cache, flavor) if runtime_cache is not None else None
        return cls(flavor, runtime, engine, gpu, info, cache)

    @property
    def raw(self) -> Any:
        """TensorRT's own ``ICudaEngine``.

        Raises:
            EngineError: The engine is closed.
        """
        if self._engine is None:
            raise EngineError("the engine is closed; load it again")
        return self._engine

    def new_context(self, *, cuda_graph: bool = False) -> ExecutionContext:
        """Creates another execution context, for a thread or a stream.

        Args:
            cuda_graph: Whether to capture a CUDA graph for the shapes in use, and launch that.

        Returns:
            The context, which is closed with the engine.

        Raises:
            EngineError: TensorRT cannot create a context, mostly for lack of memory.
        """
        trt = self.flavor.module
        with self._lock:
            created = ExecutionContext(
                trt, self._new_raw_context, self, self._bindings, self.device, cuda_graph=cuda_graph
            )
            self._contexts.add(created)
        return created

    @overload
    def bind(
        self,
        feeds: Feeds,
        *,
        outputs: None = None,
        stream: StreamLike | None = None,
        on_device: Literal[False] = False,
        cuda_graph: bool = False,
    ) -> BoundCall[HostArray]: ...

    @overload
    def bind(
        self,
        feeds: Feeds,
        *,
        outputs: None = None,
        stream: StreamLike | None = None,
        on_device: Literal[True],
        cuda_graph: bool = False,
    ) -> BoundCall[DeviceArray]: ...

    @overload
    def bind(
        self,
        feeds: Feeds,
        *,
        outputs: Outputs,
        stream: StreamLike | None = None,
        on_device: bool = False,
        cuda_graph: bool = False,
    ) -> BoundCall[HostArray | DeviceArray | CudaArray | Dlpack]: ...

    def bind(
        self,
        feeds: Feeds,
        *,
        outputs: Outputs | None = None,
        stream: StreamLike | None = None,
        on_device: bool = False,
        cuda_graph: bool = False,
    ) -> BoundCall[Any]:
        """Prepares inferences with fixed shapes and addresses, which take the least time in Python.

        Args:
            feeds: Input name to an array. An array on the host is an example of the arrays of later calls. An
                array on the GPU is read by all calls.
            outputs: Output name to the array on the GPU that every call writes to.
            stream: The caller's stream, see :meth:`ExecutionContext.infer`. For calls without a stream see
                :class:`~trtint8.runtime.bound_call.BoundCall`.
            on_device: Whether the other outputs stay on the GPU.
            cuda_graph: Whether to launch a CUDA graph.

        Returns:
            The call. It has a context of its own, which is closed with the engine.

        Raises:
            CalibrationDataError: The feed or an output does not fit.
            UnsupportedError: The size of an output is known only after the inference.
            EngineError: TensorRT cannot create a context, mostly for lack of memory.

        Examples:
            >>> images = np.zeros((1, 1, 8, 8), np.float32)
            >>> call = engine.bind({"images": images})
            >>> call({"images": images})["logits"].shape
            (1, 10)
        """
        context = self.new_context(cuda_graph=cuda_graph)
        return BoundCall(context, feeds, outputs=outputs, stream=stream, on_device=on_device)

    @overload
    def infer(
        self,
        feeds: Feeds,
        *,
        outputs: Outputs | None = None,
        stream: StreamLike | None = None,
        on_device: Literal[False] = False,
    ) -> dict[str, HostArray]: ...

    @overload
    def infer(
        self,
        feeds: Feeds,
        *,
        outputs: Outputs | None = None,
        stream: StreamLike | None = None,
        on_device: Literal[True],
    ) -> dict[str, DeviceArray]: ...

    def infer(
        self,
        feeds: Feeds,
        *,
        outputs: Outputs | None = None,
        stream: StreamLike | None = None,
        on_device: bool = False,
    ) -> dict[str, HostArray] | dict[str, DeviceArray]:
        """Runs the engine once, in a context that this thread keeps for its later calls.

        Args:
            feeds: Input name to array of the input's shape and dtype, see :meth:`ExecutionContext.infer`.
            outputs: Output name to an array that it is written to.
            stream: The caller's stream, see :meth:`ExecutionContext.infer`.
            on_device: Whether to return the other outputs as
                :class:`~trtint8.runtime.arrays.DeviceArray`.

        Returns:
            Output name to a new array, for outputs that are not in ``outputs``.

        Raises:
            TrtInt8Error: The feed does not fit, or TensorRT fails; see :meth:`ExecutionContext.infer`.
        """
        context: ExecutionContext | None = getattr(self._thread, "context", None)
        if context is None or self._engine is None:  # a closed engine is refused by new_context
            context = self._thread.context = self.new_context()
        if on_device:
            return context.infer(feeds, outputs=outputs, stream=stream, on_device=True)
        return context.infer(feeds, outputs=outputs, stream=stream)

    def infer_async(self, feeds: Feeds, *, stream: StreamLike | None = None) -> InferenceFuture:
        """Queues an inference and returns without waiting for it.

        Two contexts of this thread take turns, so that one inference can be prepared while another runs; the
        third call waits for the first.

        Args:
            feeds: Input name to array of the input's shape and dtype, see :meth:`ExecutionContext.infer`.
            stream: The caller's stream, after whose work the inference begins.

        Returns:
            The future outputs, on the host.

        Raises:
            TrtInt8Error: The feed does not fit, or TensorRT fails; see :meth:`ExecutionContext.infer`.

        Examples:
            >>> future = engine.infer_async({"images": np.zeros((1, 1, 8, 8), np.float32)})
            >>> future.result()["logits"].shape
            (1, 10)
        """
        turns: deque[ExecutionContext] = self._thread.__dict__.setdefault("turns", deque())
        if len(turns) < _IN_FLIGHT or self._engine is None:
            turns.append(self.new_context())
        turns.rotate(1)
        return turns[0].infer_async(feeds, stream=stream)

    def _new_raw_context(self) -> Any:
        """Makes one of TensorRT's contexts.

        Raises:
            EngineError: The engine is closed, or TensorRT cannot.
        """
        with self.device.active(), collected(self.flavor.module) as log, FIRST_RUNS:
            if self._cache is None:
                context = self.raw.create_execution_context()
            else:
                context = self.raw.create_execution_context(self._cache.config)
        if context is None:
            raise EngineError(f"TensorRT cannot make an execution context: {log.reason()}")
        return context

    def forget_graphs(self) -> None:
        """Makes every context capture its CUDA graph again, because a graph may hold replaced weights."""
        with self._lock:
            for context in list(self._contexts):
                context.forget_graph()

    def close(self) -> None:
        """Frees the contexts and the engine. No inference may be running; a second call does nothing."""
        with self._lock:
            for context in list(self._contexts):
                context.close()
            with self.device.active():
                cache, self._cache = self._cache, None
                if cache is not None:
                    cache.save()
                self._engine = self._runtime = None

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


#: How many inferences of one thread ``infer_async`` keeps in flight.
_IN_FLIGHT = 2


#: The largest file that is read, in bytes.
_MOST_BYTES = 1 << 30


class RuntimeCache:
    """Gives an engine's contexts the kernels of earlier runs, and keeps those that were compiled since.

    Args:
        config: The ``IRuntimeConfig`` for all contexts of the engine.
        cache: The ``IRuntimeCache`` in it.
        path: The file.
    """

    def __init__(self, config: Any, cache: Any, path: Path) -> None:
        self.config, self._cache, self._path = config, cache, path
        self._kept: bytes | None = None

    @classmethod
    def attach(cls, raw: Any, path: FilePath, flavor: Flavor) -> RuntimeCache:
        """Makes the runtime configuration of an engine; its GPU's context must be current.

        Args:
            raw: The ``ICudaEngine``.
            path: The file, which need not exist.
            flavor: The TensorRT that runs the engine.

        Returns:
            The cache, filled from the file.

        Raises:
            UnsupportedError: This TensorRT has no runtime cache.
            EngineError: The file cannot be read, or TensorRT refuses the configuration.
            OutputError: The file cannot be written.

        Warns:
            UserWarning: The file is of another TensorRT, GPU or driver, and is made anew.
        """
        flavor.require("runtime_cache")
        config = raw.create_runtime_config()
        cache = config.create_runtime_cache()
        made = cls(config, cache, check_writable(path))
        made.load()
        if not config.set_runtime_cache(cache):
            raise EngineError(f"{flavor} refuses the runtime cache '{os.fspath(path)}'; leave it out")
        return made

    def load(self) -> None:
        """Fills the cache from the file, where there is one that fits; see :meth:`attach`."""
        with records.reading(f"the runtime cache '{self._path}'", EngineError):
            try:
                data = records.read_bytes(self._path, _MOST_BYTES)
            except FileNotFoundError:
                return
        if self._cache.deserialize(data):
            self._kept = data
        else:
            warn_user(
                f"the runtime cache '{self._path}' is of another TensorRT, GPU or driver; it is made anew",
                note=True,
            )

    def save(self) -> None:
        """Writes the cache where it holds anything new.

        Raises:
            OutputError: The file cannot be written.
        """
        data = bytes(self._cache.serialize())
        if data != self._kept:
            write_atomically(self._path, data)
            self._kept = data
