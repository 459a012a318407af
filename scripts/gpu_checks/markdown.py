"""The report as a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpu_checks.records import Figure, Record
from gpu_checks.report import Report, StageReport

_VERDICTS = {True: "pass", False: "**FAIL**", None: ""}


def render(report: Report) -> str:
    """The whole page, in Markdown."""
    parts = ["# What a GPU showed", _facts(report), _overview(report.stages), _failures(report.stages)]
    for stage in report.stages:
        parts += [f"## {stage.title}", *_tables(stage.records), _end(stage)]
    return "\n\n".join(filter(None, parts)) + "\n"


def _facts(report: Report) -> str:
    facts = {**report.machine, "command": f"`{report.command}`"}
    facts |= {f"limit: {name}": text for name, text in report.limits.items()}
    lines = [f"- {name}: {text}" for name, text in facts.items()]
    devices = {stage.machine["device"] for stage in report.stages}
    if len(devices) > 1:
        lines.append(f"- **the stages ran on different devices**: {'; '.join(sorted(devices))}")
    return "\n".join(lines)


def _overview(stages: Sequence[StageReport]) -> str:
    rows = []
    for stage in stages:
        failed = sum(record.passed is False for record in stage.records)
        skipped = sum(not record.ran for record in stage.records)
        passed = sum(record.passed is True for record in stage.records)
        date, seconds = stage.machine["date"], f"{stage.outcome.seconds:.0f}"
        rows.append((stage.name, stage.outcome.status, seconds, date, passed, failed, skipped))
    return _table(("stage", "ended", "s", "date", "pass", "fail", "not run"), rows)


def _failures(stages: Sequence[StageReport]) -> str:
    lines = [
        f"- {stage.name}, {record.table}, {record.case}: {_line(record.note) or 'beyond what is promised'}"
        for stage in stages
        for record in stage.records
        if record.passed is False
    ]
    lines += [f"- {stage.name}: {stage.outcome.status}" for stage in stages if not stage.outcome.done]
    records = [record for stage in stages for record in stage.records]
    passed, skipped = sum(r.passed is True for r in records), sum(not r.ran for r in records)
    counted = f"{passed} checks are as promised, {skipped} were not run."
    return "\n".join([counted, "", "Not as promised:", "", *lines]) if lines else counted


def _tables(records: Iterable[Record]) -> list[str]:
    by_title: dict[str, list[Record]] = {}
    for record in records:
        by_title.setdefault(record.table, []).append(record)
    return [f"### {title}\n\n{_records(rows)}" for title, rows in by_title.items()]


def _records(records: Sequence[Record]) -> str:
    columns = list(dict.fromkeys(name for record in records for name in record.figures))
    optional = {
        "": [_VERDICTS[record.passed] for record in records],
        "note": [record.note for record in records],
    }
    shown = {title: cells for title, cells in optional.items() if any(cells)}
    rows = [
        (record.case, *(_cell(record.figures.get(name)) for name in columns), *extra)
        for record, extra in zip(
            records, zip(*shown.values(), strict=True) if shown else [()] * len(records), strict=True
        )
    ]
    return _table(("", *columns, *shown), rows)


def _end(stage: StageReport) -> str:
    if stage.outcome.done:
        return ""
    tail = stage.outcome.tail.replace("```", "'''")
    return f"The stage {stage.outcome.status}; the last lines that it printed:\n\n```\n{tail}\n```"


def _line(text: str) -> str:
    return " ".join(text.split())


def _cell(value: Figure) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 100 else f"{value:.1f}"
    return str(value)


def _table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    def line(cells: Iterable[object]) -> str:
        # A bar would end the cell, a line the table.
        return "| " + " | ".join(_line(str(cell)).replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([line(titles), "|" + "---|" * len(titles), *map(line, rows)])
