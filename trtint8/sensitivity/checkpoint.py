"""The sums of an unfinished measurement, and how they stand in a checkpoint."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from calibrators.host.checkpoint import Checkpoint
from calibrators.tables.table import CalibrationTable
from trtint8.models.model import Model
from trtint8.sensitivity.effects import EffectMeter
from trtint8.sensitivity.local import LocalMeter

#: Seconds between two writes.
_SECONDS = 5.0


@dataclass(frozen=True)
class Measured:
    """What a measurement has summed up.

    Attributes:
        samples: How many samples were measured: the first ones of the data.
        data: Fingerprint of these samples.
        effects: What each variant costs.
        local: Errors at every layer.
    """

    samples: int
    data: str
    effects: EffectMeter
    local: LocalMeter


class MeasuredFormat:
    """JSON."""

    def encode(self, identity: Mapping[str, object], progress: Measured) -> bytes:
        """The content of a file."""
        state = {
            "samples": progress.samples,
            "data": progress.data,
            "meter": progress.effects.state(),
            "local": progress.local.state(),
        }
        return json.dumps({"identity": dict(identity), "state": state}).encode()

    def decode(self, content: bytes) -> tuple[Mapping[str, object], Measured]:
        """Identity and progress of a file."""
        document = json.loads(content)
        state = document["state"]
        return document["identity"], Measured(
            int(state["samples"]),
            str(state["data"]),
            EffectMeter.from_state(state["meter"]),
            LocalMeter.from_state(state["local"]),
        )


def measurement_checkpoint(
    path: str | os.PathLike[str],
    prepared: Model,
    table: CalibrationTable,
    keep_float: Sequence[str],
    batch_size: int | None,
) -> Checkpoint[Measured]:
    """Where a measurement keeps its sums, and what these depend on besides the data.

    Args:
        path: The file. Where there is one already, it is continued.
        prepared: The model.
        table: The ranges.
        keep_float: Names of nodes, or patterns, that stay in float in every variant.
        batch_size: Samples per batch; None where the data decides it.
    """
    identity = {
        "model": prepared.fingerprint,
        "table": table.fingerprint,
        "keep_float": list(keep_float),
        "batch_size": batch_size,
    }
    return Checkpoint(Path(path), identity, MeasuredFormat(), resume=True, seconds=_SECONDS)
