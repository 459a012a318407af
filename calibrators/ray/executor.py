"""Where work on data runs: in this process, or by workers of a Ray cluster."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from calibrators.checks import is_number, positive_integer
from calibrators.errors import Argument, CalibrationDataError, UnsupportedError

#: Threads per worker, where the user does not say.
WORKER_THREADS = 1


@dataclass(frozen=True)
class RayExecutor:
    """Where work runs, and how it is shared out. Nothing of this changes its result.

    Attributes:
        address: The address of a Ray cluster, as ``ray.init`` takes it. None takes the connection that this
            program has, else the cluster that Ray finds (``RAY_ADDRESS``), else starts one on this machine.
        workers: How many processes run the model; as many as the cluster has processors for where None.
        num_gpus: GPUs that Ray reserves for each worker; may be a fraction of one. The model itself
            runs on the CPU unless another device is asked for.
        shard_batches: Batches per shard, which a worker gets at once; chosen by the number of workers where
            None.
    """

    address: str | None = None
    workers: int | None = None
    num_gpus: float = 0
    shard_batches: int | None = None

    def __post_init__(self) -> None:
        for name in ("workers", "shard_batches"):
            if (value := getattr(self, name)) is not None:
                positive_integer(name, value)
        if not _is_number_of_gpus(self.num_gpus):
            raise CalibrationDataError(
                f"{Argument('num_gpus')} is {self.num_gpus!r}; give a number from 0 to 1, or a whole one "
                "above"
            )


def _is_number_of_gpus(value: float) -> bool:
    return is_number(value) and 0 <= value < math.inf and (value <= 1 or value == int(value))


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
