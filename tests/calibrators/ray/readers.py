"""Sources that workers unpickle: a module of few imports, which every worker's process loads."""

import contextlib
import os
import signal
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from calibrators.data.batches import Around, facts
from calibrators.errors import CalibrationDataError


def around(batches, kind, *args):
    """The same data, read by a source around its own."""
    return replace(batches, source=kind(batches.source, *args, **facts(batches.source)))


@dataclass(frozen=True, eq=False)
class Dying(Around):
    """Kills its process in the middle of a shard, once for each file of a folder."""

    folder: Path
    batch: int
    read_before: list[object] = field(default_factory=list)

    def read(self, batch):
        self.read_before.append(None)
        for file in self.folder.iterdir() if len(self.read_before) > self.batch else ():
            with contextlib.suppress(FileNotFoundError):  # another worker has died for it
                file.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        return super().read(batch)


class DeadOnArrival(Around):
    """Ends the process that unpickles it."""

    def __reduce__(self):
        return os._exit, (1,)


class TellingGpus(Around):
    """Fails with the GPUs that its process sees."""

    def read(self, batch):
        raise CalibrationDataError(f"sees GPU {os.environ['CUDA_VISIBLE_DEVICES']!r}")


def halved(batch):
    return {"images": batch["data"] / np.float32(2)}
