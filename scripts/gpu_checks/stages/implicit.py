"""TensorRT's own calibrators and dynamic ranges, all the way to the class of every held-out image."""

from __future__ import annotations

import functools
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from calibrators.tables.table import CalibrationTable
from calibrators.tensorrt import flavor
from calibrators.tensorrt.calibrator import Calibrator
from calibrators.tensorrt.calibrators import calibrator_class
from gpu_checks import limits
from gpu_checks.amax import compare_amax, conventions, write_csv
from gpu_checks.checking import Check
from gpu_checks.records import Figure, Finding
from gpu_checks.stages.host import HostSide, host_side
from gpu_checks.subjects import (
    Subject,
    engine_logits,
    int8_share,
    lost_at_most,
    scores,
    small_options,
    subjects,
)
from trtint8 import BuildResult, build_int8_engine

#: TensorRT's calibrator to this project's corresponding method, and the points of top-1 that it may cost.
CALIBRATORS: Mapping[str, tuple[str, float]] = {
    "EntropyCalibrator2": ("entropy", 0.5),
    "MinMaxCalibrator": ("minmax", 1.0),
    "EntropyCalibrator": ("entropy", 0.5),
    "LegacyCalibrator": ("percentile", 0.5),
}

_CALIBRATED = "Calibrated by TensorRT"
_RANGES = "Dynamic ranges alone"
_AMAX = "TensorRT's amax over the host's"


def run(check: Check) -> None:
    """Runs the stage."""
    ready = [_Implicit(check, subject) for subject in subjects(check, _CALIBRATED)]
    for one in ready:
        for kind in CALIBRATORS:
            one.calibrated(kind)
        # A build takes half a minute: the rest is asked once a network, and most important first.
        one.from_cache(next(iter(CALIBRATORS)))
        one.ranges("manual ranges, entropy", "entropy", manual=True)
        one.ranges("host's table, entropy", "entropy")
    # Which of two methods that differ is better: asked last, since time may be short.
    for one in ready:
        for method in ("minmax", "percentile"):
            one.ranges(f"host's table, {method}", method)


@dataclass
class _Implicit:
    check: Check
    subject: Subject
    _side: HostSide = field(init=False, repr=False)
    _tables: dict[str, CalibrationTable] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self._side = host_side(self.check, self.subject)

    def calibrated(self, kind: str) -> None:
        """INT8 with a calibration on the device, and its ranges beside the host's."""
        name = f"{self.subject.name} {kind}"
        first: list[Calibrator] = []
        self.check.attempt(_CALIBRATED, f"{name}, INT8", lambda: self._first(kind, first))
        if not first or first[0].table is None:
            return
        table = self._tables[kind] = first[0].table
        for convention, host in self._host_tables(kind).items():
            self.check.attempt(_AMAX, f"{name}, {convention}", functools.partial(_compared, table.amax, host))
        path = self.check.folder("amax") / f"{self.subject.name}-{kind}.csv"
        write_csv(path, table.amax, self._host_tables(kind))

    def from_cache(self, kind: str) -> None:
        """INT8 and FP16 with the cache of a calibration that was made before."""
        case = f"{self.subject.name} {kind}, INT8+FP16 from the cache"
        if kind not in self._tables:
            self.check.skip(_CALIBRATED, case, "there is no cache")
            return
        self.check.attempt(_CALIBRATED, case, lambda: self._again(kind, self._tables[kind]))

    def ranges(self, case: str, method: str, *, manual: bool = False) -> None:
        """INT8 and FP16 with ranges that the CPU found, as a table or as if given by hand."""
        table = self._side.table.with_method(method)

        def work() -> Finding:
            if manual:
                result = self._build(None, fp16=True, dynamic_ranges=dict(table.amax))
            else:
                result = self._build(table, fp16=True)
            figures = self._judged(result)
            return Finding(figures, lost_at_most(figures, 1.0 if method == "minmax" else 0.5))

        self.check.attempt(_RANGES, f"{self.subject.name}, {case}", work)

    def _first(self, kind: str, made: list[Calibrator]) -> Finding:
        for stale in self._cache(kind), Path(f"{self._cache(kind)}.json"):
            stale.unlink(missing_ok=True)
        calibrator = self._calibrator(kind)
        result = self._build(calibrator, fp16=False)
        made.append(calibrator)
        read, wanted = calibrator.read, self.subject.calibration_batches
        figures = {"batches read": read, **self._judged(result)}
        # Once, or again from the beginning to the end where TensorRT wants a second look.
        whole = read > 0 and read % wanted == 0
        passed = whole and lost_at_most(figures, CALIBRATORS[kind][1])
        return Finding(figures, passed, "" if whole else f"there are {wanted} batches")

    def _again(self, kind: str, table: CalibrationTable) -> Finding:
        calibrator = self._calibrator(kind)
        result = self._build(calibrator, fp16=True)
        figures = {"batches read": calibrator.read, **self._judged(result)}
        same = calibrator.table is not None and calibrator.table.amax == table.amax
        passed = calibrator.read == 0 and same and lost_at_most(figures, CALIBRATORS[kind][1])
        return Finding(figures, passed, "" if same else "the ranges are not those of the cache")

    def _calibrator(self, kind: str) -> Any:
        subject = self.subject
        return counting(calibrator_class(kind, flavor.load("tensorrt")))(
            subject.calibration,
            subject.inputs,
            batch_size=limits.CALIBRATION_BATCH,
            preprocessing=subject.preprocessing,
            cache=self._cache(kind),
            progress=False,
        )

    def _cache(self, kind: str) -> Path:
        return self.check.folder("caches") / f"{self.subject.name}-{kind}.cache"

    def _build(self, calibration: Any, *, fp16: bool, **more: Any) -> BuildResult:
        return build_implicit(self.check, self.subject, calibration, fp16=fp16, **more)

    def _judged(self, result: BuildResult) -> dict[str, Figure]:
        figures = scores(engine_logits(result.engine, self.subject), self.subject.labels, self._side.logits)
        return {**figures, **int8_share(result), "build s": result.seconds}

    def _host_tables(self, kind: str) -> dict[str, dict[str, float]]:
        return conventions(self._side.table.with_method(CALIBRATORS[kind][0]), self._side.even)


def counting(calibrator: type[Calibrator]) -> type[Calibrator]:
    """A calibrator that counts, over all passes, the batches that TensorRT is handed: its ``read``."""

    class Counting(calibrator):  # type: ignore[misc, valid-type]
        read = 0

        def get_batch(self, names: list[str]) -> list[int] | None:
            pointers: list[int] | None = super().get_batch(names)
            self.read += pointers is not None
            return pointers

    return Counting


def build_implicit(
    check: Check, subject: Subject, calibration: Any, *, fp16: bool, **more: Any
) -> BuildResult:
    """An implicit engine in the scratch folder, over the one before.

    Args:
        check: The stage.
        subject: The network.
        calibration: A calibrator, a table, or None where ``dynamic_ranges`` are given.
        fp16: Whether what is not in INT8 may run in FP16.
        more: For :func:`trtint8.build_int8_engine`.
    """
    folder = check.settings.scratch / "implicit"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about data that looks odd: it is what it is
        return build_int8_engine(
            subject.model,
            calibration,
            folder / "model.engine",
            target="tensorrt",
            route="implicit",
            profiles=subject.profiles,
            options=small_options(check, fp16=fp16),
            progress=False,
            **more,
        )


def _compared(device: Mapping[str, float], host: Mapping[str, float]) -> Finding:
    found = compare_amax(device, host)
    return Finding(
        {
            "tensors": found.tensors,
            "median": found.median,
            "worst": found.worst,
            "worst tensor": found.worst_tensor,
            "within 2 %": f"{100 * found.close:.0f} %",
            "only TensorRT": found.only_first,
            "only host": found.only_second,
        },
    )
