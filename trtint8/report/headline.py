"""The most important figures: what accuracy says in short, and the sizes of files."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from trtint8.engine.file import NOT_LISTED
from trtint8.report.files import ReportFiles
from trtint8.validation.accuracy import REFERENCE, VALIDATED, accuracy_rows, verdicts
from trtint8.validation.fidelity import Fidelity, least_faithful


@dataclass(frozen=True)
class Headline:
    """The most important figures of a report that its files do not say themselves.

    Attributes:
        files: The files to report on, with their contents.
        model_bytes: Size of the FP32 model in bytes, with its weights in other files; None where it is not
            known.
        qdq_bytes: Size of the Q/DQ model in bytes, with its weights in other files; None where there is none.
    """

    files: ReportFiles
    model_bytes: int | None = None
    qdq_bytes: int | None = None

    @property
    def engine_bytes(self) -> int | None:
        """Size of the engine file in bytes; None where there is none."""
        return self.files.paths["engine"].stat().st_size if "engine" in self.files.paths else None

    @property
    def why_not_counted(self) -> str:
        """Why it is not known how many layers run in INT8, in one sentence."""
        if self.files.engine is None:
            return "There is no engine yet."
        if self.files.engine.layers is not None:
            return "TensorRT tells nothing of parts that it compiled as a whole."
        return f"{NOT_LISTED[0].upper()}{NOT_LISTED[1:]}."

    @cached_property
    def lowest(self) -> Fidelity | None:
        """The output, or part of one, with the lowest SQNR; None where it is not known."""
        return least_faithful(self.files.accuracy.outputs) if self.files.accuracy else None

    @cached_property
    def first_row(self) -> tuple[str, str, str] | None:
        """The first metric of a network that is no classifier; None where it is one, or has no metric.

        Its title, the value for FP32 (empty where it compares with FP32) and the value for INT8.
        """
        accuracy = self.files.accuracy
        if not accuracy or not accuracy.measures or accuracy.top1 or accuracy.agreement:
            return None
        title, reference, value, *_ = self.rows[0]
        return title, reference, value

    @cached_property
    def verdicts(self) -> tuple[str, ...]:
        """One sentence per comparison, the one on top-1 first where there is one."""
        return tuple(verdicts(self.files.accuracy, VALIDATED)) if self.files.accuracy else ()

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the models in :attr:`rows`."""
        return (REFERENCE, VALIDATED, *(self.files.accuracy.also if self.files.accuracy else ()))

    @cached_property
    def rows(self) -> tuple[tuple[str, ...], ...]:
        """One row per metric, as texts: the metric's name and one value per model."""
        return tuple(accuracy_rows(self.files.accuracy)) if self.files.accuracy else ()
