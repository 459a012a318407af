"""The command line: the stages one after another, each in a process of its own, and then the report."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from calibrators.cuda import gpu_problem
from gpu_checks import limits, machine
from gpu_checks.checking import Settings
from gpu_checks.limits import Stage
from gpu_checks.markdown import render
from gpu_checks.packing import pack
from gpu_checks.process import Outcome, environment, run_limited
from gpu_checks.records import read
from gpu_checks.report import Report, StageReport, read_stages


def main(arguments: Sequence[str], stages: Sequence[Stage] = limits.STAGES) -> int:
    """Runs the checks.

    Args:
        arguments: The arguments of the command line.
        stages: All stages that exist.

    Returns:
        0 where all that ran is as promised, 1 where something is not, 2 where nothing could be run.
    """
    options = _parser(stages).parse_args(arguments)
    problem = _problem(options, stages)
    if problem:
        print(f"gpu_check: {problem}", file=sys.stderr)
        return 2
    chosen = [stage for stage in stages if stage.name in options.stage]
    out: Path = options.out.resolve()
    (out / "stages").mkdir(parents=True, exist_ok=True)
    found = machine.describe()
    report = Report(found, _command(options, stages), {}, ())
    report = dataclasses.replace(report, limits=limits.described(options.minutes, options.soak))
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gpu_check-") as scratch:
        for stage, end in zip(
            chosen, limits.deadlines(chosen, options.minutes, options.soak).values(), strict=True
        ):
            seconds = end - (time.monotonic() - started)
            print(f"{stage.name}: {stage.title} (at most {seconds:.0f} s)", flush=True)
            outcome = _run_stage(stage, options, out, Path(scratch), seconds)
            print(f"{stage.name}: {outcome.status}, {outcome.seconds:.0f} s", flush=True)
            done = StageReport(stage.name, stage.title, outcome, found, tuple(read(_records(out, stage))))
            done.save(out)
            # After every stage: whatever ends this process, what was found stays.
            report = dataclasses.replace(report, stages=read_stages(out, stages))
            (out / "gpu_check.json").write_text(json.dumps(report.to_dict(), indent=1, allow_nan=False))
            (out / "gpu_check.md").write_text(render(report))
            if options.pack is not None:
                pack(out, options.pack)
    print(f"written: {out / 'gpu_check.json'} and {out / 'gpu_check.md'}")
    good = all(stage.good for stage in report.stages if stage.name in options.stage)
    return 0 if good else 1


def _command(options: argparse.Namespace, stages: Sequence[Stage]) -> str:
    """How to do the same elsewhere: without this machine's paths."""
    words = ["scripts/gpu_check", *(["--data FOLDER"] if options.data else []), "--out DIR"]
    if options.stage != [stage.name for stage in stages if stage.usual]:
        words.append(f"--stage {','.join(options.stage)}")
    for option, usual in (("minutes", limits.MINUTES), ("soak", limits.SOAK_SECONDS)):
        value = getattr(options, option)
        words += [f"--{option} {value:g}"] if value != usual else []
    return " ".join(words)


def _parser(stages: Sequence[Stage]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpu_check",
        description="Runs on a GPU what only a GPU can show, and writes gpu_check.json and gpu_check.md.",
        epilog="stages: " + "; ".join(f"{stage.name}: {stage.title}" for stage in stages),
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="FOLDER",
        help="resnet20.onnx, resnet56.onnx, calibration.npz and heldout.npz; without it only the demo model",
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="what is kept; runs add up there"
    )
    parser.add_argument(
        "--pack",
        type=Path,
        metavar="FOLDER",
        help="also write the report, and all else as an archive in a few parts of 15 MiB, there",
    )
    parser.add_argument(
        "--stage",
        type=lambda text: text.split(","),
        default=[stage.name for stage in stages if stage.usual],
        metavar="NAME,...",
        help=f"only these stages; {', '.join(stage.name for stage in stages if not stage.usual)} only so",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=limits.MINUTES,
        metavar="M",
        help=f"for all stages; default {limits.MINUTES:g}",
    )
    parser.add_argument(
        "--soak",
        type=float,
        default=limits.SOAK_SECONDS,
        metavar="S",
        help=f"seconds of soak; default {limits.SOAK_SECONDS:g}",
    )
    return parser


def _problem(options: argparse.Namespace, stages: Sequence[Stage]) -> str | None:
    """Why nothing can be run, in a sentence."""
    names = [stage.name for stage in stages]
    unknown = [name for name in options.stage if name not in names]
    if unknown:
        return f"there is no stage '{unknown[0]}'; choose among {', '.join(names)}"
    for option in ("minutes", "soak"):
        value = getattr(options, option)
        if not 0 < value < math.inf:
            return f"--{option} is {value:g}; give a positive number"
    if options.data is not None and not options.data.is_dir():
        return (
            f"there is no folder '{options.data}'; give --data a folder with resnet20.onnx, or leave it out"
        )
    if options.out.exists() and not options.out.is_dir():
        return f"'{options.out}' is no folder; give --out another name"
    no_gpu = gpu_problem()
    if no_gpu and any(stage.needs_gpu for stage in stages if stage.name in options.stage):
        return f"the checks need an NVIDIA GPU, but {no_gpu}; run them on a machine that has one"
    return None


def _run_stage(
    stage: Stage, options: argparse.Namespace, out: Path, scratch: Path, seconds: float
) -> Outcome:
    records = _records(out, stage)
    records.unlink(missing_ok=True)
    work = scratch / stage.name
    work.mkdir()
    data = options.data.resolve() if options.data else None
    settings = Settings(data, out, work, records, seconds, options.soak)
    command = [
        sys.executable,
        "-X",
        "faulthandler",
        "-m",
        "gpu_checks.child",
        stage.module,
        settings.to_json(),
    ]
    log = out / "stages" / f"{stage.name}.log"
    return run_limited(command, seconds=seconds, log=log, environment=environment())


def _records(out: Path, stage: Stage) -> Path:
    return out / "stages" / f"{stage.name}.jsonl"
