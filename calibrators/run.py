"""Where work on batches is run: in this process, or by workers of a Ray cluster.

Nothing above this module knows of Ray.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from calibrators.data.batches import Batches
from calibrators.data.inputs import InputSpec
from calibrators.errors import UnsupportedError
from calibrators.host.observer import Form, MostRows, Observer
from calibrators.host.session import check_threads
from calibrators.host.work import BatchWork, Result
from calibrators.ray.cluster import WORKER_THREADS, RayExecutor
from calibrators.ray.distributed import RayObserver
from calibrators.ray.workers import results_in_order

#: Where work on data runs.
Executor = Literal["local", "ray"] | RayExecutor


def ray_executor(executor: Executor) -> RayExecutor | None:
    """The executor's settings of Ray; None where work runs in this process.

    Raises:
        UnsupportedError: There is no such executor.
    """
    if isinstance(executor, RayExecutor):
        return executor
    if not isinstance(executor, str) or executor not in ("local", "ray"):
        raise UnsupportedError(f"the executor is {executor!r}; give 'local', 'ray' or a RayExecutor")
    return RayExecutor() if executor == "ray" else None


#: What observes a model, here or by workers.
AnyObserver: TypeAlias = Observer | RayObserver


@dataclass(frozen=True)
class RunOptions:
    """Where and how a model is run. Nothing of this changes the result, but for the last bits.

    Attributes:
        threads: Threads per operator; ONNX Runtime's choice where None. Over Ray, those of each worker; 1
            where None.
        executor: ``local`` for this process, ``ray`` or a :class:`RayExecutor` for workers of a Ray cluster.
        device: ``cpu``, ``cuda``, or ``cuda:1`` for the second GPU.
        progress: Whether a progress bar is shown on a terminal.

    Raises:
        CalibrationDataError: ``threads`` is less than 1.
        UnsupportedError: There is no such executor.
    """

    threads: int | None = None
    executor: Executor = "local"
    device: str = "cpu"
    progress: bool = True

    def __post_init__(self) -> None:
        check_threads(self.threads)
        ray_executor(self.executor)

    @property
    def is_local(self) -> bool:
        """Whether this process runs the work."""
        return ray_executor(self.executor) is None

    @property
    def worker_threads(self) -> int:
        """Threads, and processors, of each worker."""
        return self.threads or WORKER_THREADS

    def observer(
        self,
        here: AbstractContextManager[Form],
        sent: AbstractContextManager[bytes | Path],
        inputs: Sequence[InputSpec],
        tensors: Sequence[str],
        most_rows: MostRows,
        divides: bool,
    ) -> AnyObserver:
        """What observes a model on data.

        Args:
            here: The FP32 model, entered until it is open in this process.
            sent: The same for workers, entered while it is observed: serialized, or a path that all machines
                see.
            inputs: The model's inputs.
            tensors: Names of float tensors of the graph, inputs included.
            most_rows: How many samples have activations of a size that is quick to handle: see
                :class:`calibrators.host.observer.Observer`.
            divides: Whether larger batches are run in pieces of so many.

        Raises:
            UnsupportedError: Something that the device or the executor needs is not installed.
            GpuUnavailableError: There is no such GPU.
        """
        if executor := ray_executor(self.executor):
            return RayObserver(
                sent, here, inputs, tensors, self.threads, executor, self.device, most_rows, divides=divides
            )
        return Observer(here, inputs, tensors, self.threads, self.device, most_rows, divides=divides)

    def results(
        self, work: BatchWork[Result], batches: Batches, *, description: str
    ) -> AbstractContextManager[Iterator[Result]]:
        """Has workers do work on all batches.

        Args:
            work: What to do with each batch.
            batches: The data.
            description: Text of the progress bar.

        Returns:
            The results, batch by batch in the order of the data; an error where one process would raise it.

        Raises:
            TrtInt8Error: A worker raised it, or the workers failed.
        """
        executor = ray_executor(self.executor)
        assert executor is not None
        return results_in_order(
            work,
            batches,
            executor,
            self.worker_threads,
            description=description,
            progress=self.progress,
        )
