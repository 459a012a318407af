"""Loads engines and runs them."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from calibrators.cuda import Device, compute_capability, open_device, require_gpu
from calibrators.errors import EngineError, UnsupportedError
from calibrators.tensorrt import flavor as flavors
from calibrators.tensorrt.flavor import Flavor
from calibrators.tensorrt.messages import collected, shared_logger
from trtint8.engine.file import EngineInfo, TensorSpec, read_engine_info, sidecar_path
from trtint8.engine.plan import check_capability, check_version, plan_flavor
from trtint8.engine.profiles import ShapeRange
from trtint8.runtime.arrays import numpy_dtype
from trtint8.runtime.execution import Bindings, ExecutionContext


class Engine:
    """A deserialized engine on one GPU. Made by :meth:`load`; several threads may use it at once.

    Attributes:
        info: What its sidecar says; None where it came without one.
        flavor: The TensorRT that runs it.
        device: The GPU.
        inputs: Its inputs; dynamic dimensions are None.
        outputs: Its outputs.
        profiles: What its optimization profiles accept; empty where all inputs are static.
    """

    def __init__(
        self, flavor: Flavor, runtime: Any, engine: Any, device: Device, info: EngineInfo | None
    ) -> None:
        # In this order, so that the engine also goes before its runtime where nobody closes it.
        self._engine, self._runtime = engine, runtime
        self.flavor, self.device, self.info = flavor, device, info
        self._bindings = _bindings(flavor.module, engine)
        self.inputs, self.outputs = self._bindings.inputs, self._bindings.outputs
        self.profiles = self._bindings.profiles
        self._lock = threading.Lock()
        # Weak, so that a thread that ends takes its context with it.
        self._contexts: weakref.WeakSet[ExecutionContext] = weakref.WeakSet()
        self._own = threading.local()

    @classmethod
    def load(
        cls,
        source: str | os.PathLike[str] | bytes,
        *,
        device: int = 0,
        plugins: Sequence[str | os.PathLike[str]] = (),
    ) -> Engine:
        """Loads an engine onto a GPU.

        Args:
            source: An engine file, whose sidecar is verified where it has one, or the plan itself.
            device: The GPU's index.
            plugins: Shared libraries with the plugins that it uses.

        Returns:
            The engine.

        Raises:
            EngineError: It is missing, truncated, changed, no engine at all, or of another version or GPU.
            UnsupportedError: The TensorRT that it needs is not installed.
            GpuUnavailableError: There is no GPU, or none of that index.
        """
        info, what = None, "the plan"
        if not isinstance(source, bytes):
            what = f"'{os.fspath(source)}'"
            info = read_engine_info(source) if sidecar_path(source).is_file() else None
        plan = source if isinstance(source, bytes) else _read(Path(source))
        flavor = flavors.load(plan_flavor(plan, what))
        if info is not None:
            check_version(info, flavor, what)
        require_gpu(f"running {what}")
        if info is not None:
            check_capability(info, compute_capability(device), what)
        gpu, trt = open_device(device), flavor.module
        with gpu.active(), collected(trt) as log:
            runtime = trt.Runtime(shared_logger(trt))
            if info and info.version_compatible:
                # Such a plan carries the runtime of the version that built it, which is code.
                runtime.engine_host_code_allowed = True
            for library in plugins:
                if runtime.get_plugin_registry().load_library(os.fspath(library)) is None:
                    raise EngineError(f"TensorRT cannot load the plugin library '{os.fspath(library)}'")
            engine = runtime.deserialize_cuda_engine(plan)
            if engine is None:
                raise EngineError(f"{flavor} cannot load {what}: {log.reason()}")
        return cls(flavor, runtime, engine, gpu, info)

    @property
    def raw(self) -> Any:
        """TensorRT's own ``ICudaEngine``."""
        if self._engine is None:
            raise EngineError("the engine is closed; load it again")
        return self._engine

    def new_context(self, *, cuda_graph: bool = False) -> ExecutionContext:
        """An execution context of its own, for a thread or a stream.

        Args:
            cuda_graph: Capture a CUDA graph for the shapes in use, and launch that.

        Returns:
            The context; closed with the engine.

        Raises:
            EngineError: TensorRT cannot make one, mostly for lack of memory.
        """
        trt = self.flavor.module
        # Its messages are not collected: that would wait for a build in another thread, which takes minutes.
        with self._lock, self.device.active():
            context = self.raw.create_execution_context()
            if context is None:
                raise EngineError(
                    f"TensorRT cannot make an execution context: {shared_logger(trt).last_error}"
                )
            made = ExecutionContext(trt, context, self, self._bindings, self.device, cuda_graph=cuda_graph)
            self._contexts.add(made)
        return made

    def infer(self, feeds: Mapping[str, Any], *, on_device: bool = False) -> dict[str, Any]:
        """Runs the engine once, in a context that this thread keeps.

        Args:
            feeds: Input name to array, see :meth:`ExecutionContext.infer`.
            on_device: Return the outputs as :class:`~trtint8.runtime.arrays.DeviceArray`.

        Returns:
            Output name to array; the arrays are the caller's own.

        Raises:
            TrtInt8Error: As :meth:`ExecutionContext.infer`.
        """
        context: ExecutionContext | None = getattr(self._own, "context", None)
        if context is None or self._engine is None:  # a closed engine is refused by new_context
            context = self._own.context = self.new_context()
        return context.infer(feeds, on_device=on_device)

    def forget_graphs(self) -> None:
        """Makes every context capture its CUDA graph anew: a graph may hold what a refit has replaced."""
        with self._lock:
            for context in list(self._contexts):
                context.forget_graph()

    def close(self) -> None:
        """Frees the contexts and the engine, with no inference under way; a second time does nothing."""
        with self._lock:
            for context in list(self._contexts):
                context.close()
            with self.device.active():
                self._engine = self._runtime = None

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close()


def _bindings(trt: Any, engine: Any) -> Bindings:
    inputs: list[TensorSpec] = []
    outputs: list[TensorSpec] = []
    on_host: set[str] = set()
    for index in range(engine.num_io_tensors):
        name = engine.get_tensor_name(index)
        if engine.get_tensor_format(name) != trt.TensorFormat.LINEAR:
            raise UnsupportedError(
                f"tensor '{name}' of the engine has the format {engine.get_tensor_format_desc(name)}, and "
                "only linear ones can be fed; build the engine without io_formats"
            )
        dtype = numpy_dtype(trt, engine.get_tensor_dtype(name), name)
        shape = tuple(dim if dim >= 0 else None for dim in engine.get_tensor_shape(name))
        is_input = engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT
        (inputs if is_input else outputs).append(TensorSpec(name, dtype.name, shape))
        if engine.get_tensor_location(name) == trt.TensorLocation.HOST:
            if not is_input:
                raise UnsupportedError(
                    f"output '{name}' of the engine is written on the host, which is not supported; leave it "
                    "out of the model's outputs"
                )
            on_host.add(name)
    dynamic = [spec.name for spec in inputs if None in spec.shape and spec.name not in on_host]
    profiles = tuple(
        {name: ShapeRange(*map(tuple, engine.get_tensor_profile_shape(name, index))) for name in dynamic}
        for index in range(engine.num_optimization_profiles)
    )
    return Bindings(tuple(inputs), tuple(outputs), frozenset(on_host), profiles if dynamic else ())


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise EngineError(
            f"the engine '{path}' cannot be read ({error.strerror or error}); give the path of an engine file"
        ) from error
