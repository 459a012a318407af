"""How work on data is run."""

from __future__ import annotations

from dataclasses import dataclass

from calibrators.host.threads import check_threads
from calibrators.ray.executor import Executor, RayExecutor, ray_executor


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
    def ray(self) -> RayExecutor | None:
        """The Ray cluster; None where this process runs the work."""
        return ray_executor(self.executor)
