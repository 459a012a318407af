"""Checkpoints of which one field was changed, with a checksum that is right; and what runs do with them."""

from __future__ import annotations

import base64
import json
import math
import random
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from calibrators.histograms.rules import range_loss
from calibrators.histograms.thresholds import METHODS
from calibrators.host.checkpoint import CALIBRATION, Checkpoint, Counted, Kind
from calibrators.tables.table import CalibrationTable, Provenance
from tests.calibrators.host.checkpoint_files import sealed
from tests.fuzz.hostile import VALUES, change_document
from tests.trtint8.report import samples
from trtint8.sensitivity.effects import ALL, ONLY, EffectMeter
from trtint8.sensitivity.local import LocalMeter
from trtint8.sensitivity.results import SENSITIVITY, Measured, channel_suspects
from trtint8.tuning.candidates import Trial
from trtint8.tuning.journal import JournalFile
from trtint8.tuning.stopwatch import Timing
from trtint8.validation.budget import Score

_CHECKSUM = b"\nsha256:"

IDENTITY = {"model": "abc", "batch_size": None}

#: What takes the place of a number, beside what is near it.
_NUMBERS = (
    0, 1, -1, 2**31, 2**53, 2**62, 2**63, 10**30, 10**400, 0.5, 1e-320, 1e-300, 1e300, math.nan, math.inf,
    -math.inf, True, None, "1", "nan", [],
)  # fmt: skip


def _saved(kind: Kind[Any], progress: object) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "c"
        Checkpoint(path, IDENTITY, kind).save(progress)
        return path.read_bytes()


def calibrations() -> list[bytes]:
    """A checkpoint of a calibration."""
    progress = Counted(500, "1b" * 32, samples.table().histograms)
    return [_saved(CALIBRATION, progress)]


def measurements() -> list[bytes]:
    """Checkpoints of measurements of sensitivity: with labels, and with predicted noise of some samples."""
    random_numbers = np.random.default_rng(4)
    scores = random_numbers.standard_normal((16, 5))
    labels = scores.argmax(axis=1)
    found = []
    for predicted in (False, True):
        layers = () if predicted else (("without", "conv"),)
        meter = EffectMeter(
            [ALL, (ONLY, "conv"), *layers], {"y": 0.5}, classes=True, labelled=True, predicted=predicted
        )
        for variant in meter.variants:
            noisy = scores + 0.3 * random_numbers.standard_normal(scores.shape)
            meter.add(variant, {"y": noisy}, {"y": scores}, labels)
        local = LocalMeter((), 16, {"conv": [9.0, 0.5, 0.25, 8.0, 1.0]}, {"conv": [0.5, 2.0, 0.0]})
        measured = Measured(16, "fingerprint", "another fingerprint", meter, local)
        found.append(_saved(SENSITIVITY, measured))
    return found


def searches() -> list[bytes]:
    """A checkpoint of a search."""
    trials = (
        Trial("as calibrated", Score(None, math.inf, math.inf), True, 0, 0.0, 0.5, 3.0),
        Trial("bias correction", Score(0.25, 20.0, 79.75), False, 2, 0.25, 0.5),
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "c"
        journal = JournalFile(path).open(IDENTITY)
        for trial in trials:
            journal.add(trial)
        journal.start_from(("fc",))
        journal.add_shares({"fc": 0.75, "conv": 0.25})
        journal.add_timing("key", Timing(0.001, 0.0009, 0.0011, {"conv": 0.0005}))
        journal.add_timing("other key", None)
        return [path.read_bytes()]


def change_field(chance: random.Random, data: bytes, replacement: object) -> bytes:
    """A checkpoint with one field changed, or one exchanged, and its checksum made right again."""
    document = json.loads(data.rpartition(_CHECKSUM)[0])
    histograms = document["progress"].get("histograms")
    if histograms and chance.randrange(3) == 0:
        _change_counts(chance, chance.choice(list(histograms.values()))["histogram"])
    elif chance.randrange(4) == 0:
        document = change_document(chance, document, replacement)
    else:
        _change(chance, document)
    return sealed(document)


def _change_counts(chance: random.Random, stored: dict[str, Any]) -> None:
    counts = np.frombuffer(zlib.decompress(base64.b64decode(stored["counts"])), "<i8")
    packed = zlib.compress(_changed_counts(chance, counts).tobytes())
    stored["counts"] = base64.b64encode(packed[: chance.choice((None, None, None, -1, 5))]).decode()


def _changed_counts(chance: random.Random, counts: Any) -> Any:
    kind = chance.randrange(6)
    if kind == 0:
        return chance.choice(
            (-counts, counts[:100], counts[:1024], counts * 0.5, counts * 0, np.zeros(1 << 22, np.int64))
        )
    if kind == 1:
        return np.roll(counts, chance.choice((1, -1, 1000)))
    if not counts.size:
        return np.ones((1, 256), counts.dtype)
    flat = counts.astype(np.int64).reshape(-1)
    places = np.flatnonzero(flat) if kind < 4 and flat.any() else np.arange(len(flat))
    place = chance.choice(places.tolist())
    flat[place] = chance.choice((0, 1, -1, 2**31, 2**62, -(2**63), flat[place] + 1))
    return flat.reshape(counts.shape).astype(counts.dtype)


def _change(chance: random.Random, document: Any) -> None:
    """Exchanges one value of a document, at any depth."""
    holder, key = chance.choice(list(_places(document)))
    value = holder[key]
    if isinstance(value, (int, float)) and chance.randrange(3):
        holder[key] = chance.choice(
            (-value, value / 2, value * 2, value + 1, math.nextafter(value, math.inf))
        )
    elif isinstance(value, list) and value and chance.randrange(2):
        holder[key] = chance.choice((value[:-1], value + value[:1], value * 2, value[::-1]))
    elif isinstance(holder, dict) and chance.randrange(8) == 0:
        del holder[key]
    else:
        holder[key] = chance.choice((*_NUMBERS, *VALUES))


def _places(document: Any) -> Iterator[tuple[Any, Any]]:
    """Every place of a value: what holds it, and its key or index."""
    entries = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in entries:
        yield document, key
        if isinstance(value, (dict, list)):
            yield from _places(value)


def continue_calibration(path: Path) -> None:
    """Counts on from a checkpoint, and makes a table of it that is read back."""
    found = Checkpoint(path, IDENTITY, CALIBRATION, resume=True).load()
    assert found is not None
    values = np.array([0, 1e-30, 0.5, 1e30, np.inf], np.float32)
    for histogram in found.histograms.values():
        more = histogram.copy()
        more.observe(values)
        assert more == histogram.merge(_observed(values))
        assert more.total == histogram.total + 4
        for method in METHODS.values():
            assert 0 <= method(histogram) <= histogram.amax
            assert 0 <= method(more) <= 1e31 or histogram.amax > 1e30
        range_loss(histogram, histogram.amax)
    for method in METHODS:
        table = CalibrationTable.from_histograms(found.histograms, method, Provenance())
        assert CalibrationTable.load(table.save(path.with_name("t.json"))).amax == table.amax


def _observed(values: Any) -> Any:
    histogram = type(next(iter(samples.table().histograms.values())))()
    histogram.observe(values)
    return histogram


def continue_measurement(path: Path) -> None:
    """Makes figures of the sums in a checkpoint."""
    found = Checkpoint(path, IDENTITY, SENSITIVITY, resume=True).load()
    assert found is not None
    meter, local = found.effects, found.local
    found.check_layers(["conv"], [ALL, (ONLY, "conv"), *([] if meter.predicted else [("without", "conv")])])
    meter.merge(meter.fresh())
    for effect in meter.effects(meter.variants):
        assert abs(effect.cosine) < 1.001
        assert effect.agreement is None or effect.agreement.value <= 1
    if meter.predicted:
        meter.remaining_effects(["conv"])
    meter.reference_top1()
    meter.shown([(ONLY, "conv")])
    local.levels("conv")
    if (channels := local.channels("conv")) is not None:
        channel_suspects("x", channels)


def continue_search(path: Path) -> None:
    """Goes through the trials of a checkpoint again."""
    journal = JournalFile(path, resume=True).open(IDENTITY)
    while (trial := journal.next) is not None:
        assert trial.seconds >= 0 and 0 <= trial.float_cost <= 1.001 and trial.keep_float >= 0
        journal.add(trial)
    assert all(0 <= share <= 1 for share in journal.shares.values())
    assert all(timing is None or timing.seconds > 0 for timing in journal.timings.values())
