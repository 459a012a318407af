"""What gpu_check is made of: processes, records, comparison of ranges, rates, the network and the page."""

import csv
import dataclasses
import io
import json
import math
import signal
import sys
import tarfile
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from gpu_checks import amax, limits, packing
from gpu_checks.checking import Check, Settings
from gpu_checks.large_networks import ENCODER, FIRST_KINDS, RESNET50, Timed, judged
from gpu_checks.markdown import render
from gpu_checks.process import Outcome, environment, run_limited
from gpu_checks.rates import Contender, take_turns
from gpu_checks.records import Finding, Record, append, finite, read
from gpu_checks.report import Report, StageReport
from gpu_checks.resnet50 import random_images, resnet50
from gpu_checks.stages import placement, twin
from gpu_checks.stages.runtime import parse_trtexec
from gpu_checks.subjects import lost_at_most, scores
from hypothesis import given
from hypothesis import strategies as st

from calibrators.data.opening import open_batches
from calibrators.histograms.histogram import BINS, Histogram
from calibrators.tables.table import CalibrationTable, Provenance
from trtint8 import ShapeRange, calibrate, model_inputs
from trtint8.data import DEMO_MODEL, load_digits_split
from trtint8.models.session import open_graph_model
from trtint8.tuning.stopwatch import SpeedPlan, SpeedTrial

# Processes.


def python(program, tmp_path, seconds=20.0):
    command = [sys.executable, "-X", "faulthandler", "-c", program]
    return run_limited(command, seconds=seconds, log=tmp_path / "log", environment=environment())


@pytest.mark.parametrize(
    ("program", "status", "begins"),
    [
        ("print('fine')", "done", ""),
        ("raise SystemExit(3)", "failed with exit status 3", ""),
        (
            "import ctypes; print('before', flush=True); ctypes.string_at(0)",
            "crashed with SIGSEGV",
            "before\nFatal Python error: Segmentation fault",
        ),
    ],
)
def test_how_a_process_ends(tmp_path, program, status, begins):
    outcome = python(program, tmp_path)
    assert (outcome.status, outcome.done) == (status, status == "done")
    assert outcome.tail.startswith(begins) and (outcome.tail == "" or not outcome.done)
    assert status != "done" or (tmp_path / "log").read_text() == "fine\n"


@pytest.mark.slow
def test_a_process_that_hangs_is_ended_with_its_children_and_tells_where(tmp_path):
    child = tmp_path / "child"
    program = (
        "import signal, subprocess, sys, pathlib\n"
        "sleeper = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\n"
        f"pathlib.Path({str(child)!r}).write_text(str(sleeper.pid))\n"
        "def stuck(): signal.pause()\n"
        "stuck()\n"
    )
    outcome = python(program, tmp_path, seconds=2.0)
    assert outcome.status == "ended after its limit of 2 s"
    assert "in stuck" in outcome.tail
    assert _is_gone(int(child.read_text()))


def _is_gone(pid):
    for _ in range(50):
        # Where nobody collects it, it stays as a zombie.
        state = Path(f"/proc/{pid}/stat")
        if not state.is_file() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.1)
    return False


@pytest.mark.slow
def test_a_process_that_ignores_signals_is_ended(tmp_path):
    program = (
        "import signal\n"
        "import faulthandler; faulthandler.disable()\n"
        "signal.signal(signal.SIGABRT, signal.SIG_IGN)\n"
        "signal.pause()\n"
    )
    assert python(program, tmp_path, seconds=1.0).status == "ended after its limit of 1 s"
    assert signal.getsignal(signal.SIGABRT) == signal.SIG_DFL


# Records.


def test_records_come_back_and_a_torn_line_does_not(tmp_path):
    path = tmp_path / "records.jsonl"
    assert read(path) == []
    first = Record("t", "a", {"x": np.float32(0.5), "n": np.int64(3), "worst": math.inf, "no": None}, True)
    append(path, first)
    append(path, Record("t", "b", note="Füße"))
    with path.open("a") as stream:
        stream.write('{"table": "t", "ca')
    back = read(path)
    assert back[0].figures == {"x": 0.5, "n": 3, "worst": "inf", "no": None}
    assert [record.note for record in back] == ["", "Füße"]


@given(st.floats())
def test_every_number_fits_into_json(value):
    json.dumps(finite(value), allow_nan=False)
    assert finite(value) == value or not math.isfinite(value)


def check_with(tmp_path, seconds, clock):
    return Check(Settings(None, tmp_path, tmp_path, tmp_path / "r.jsonl", seconds, 1.0), clock)


def test_nothing_is_begun_when_the_time_is_up(tmp_path):
    times = iter([0.0, 10.0, 10.0, 12.0, 86.0])
    check = check_with(tmp_path, 100.0, lambda: next(times))
    check.attempt("t", "in time", lambda: Finding({"x": 1}, True))
    check.attempt("t", "late", lambda: pytest.fail("begun"))
    first, second = read(tmp_path / "r.jsonl")
    assert (first.case, first.seconds, first.passed, first.ran) == ("in time", 2.0, True, True)
    assert (second.note, second.passed, second.ran) == ("not run: the stage's time was up", None, False)


def test_an_exception_is_a_finding(tmp_path):
    check = check_with(tmp_path, 100.0, time.monotonic)
    assert check.attempt("t", "a", lambda: 1 // 0) is None
    (record,) = read(tmp_path / "r.jsonl")
    assert (record.passed, record.note) == (False, "ZeroDivisionError: integer division or modulo by zero")


def test_settings_come_back():
    settings = Settings(None, *map(type(DEMO_MODEL), ("/o", "/s", "/r")), 3.5, 600.0)
    assert Settings.from_json(settings.to_json()) == settings


# Limits.


def test_the_usual_stages_fit_into_a_quarter_of_an_hour():
    usual = [stage for stage in limits.STAGES if stage.usual]
    ends = limits.deadlines(usual, limits.MINUTES, limits.SOAK_SECONDS)
    assert list(ends.values()) == sorted(ends.values())
    assert 800 < max(ends.values()) <= 60 * limits.MINUTES


def test_placement_takes_ten_minutes_of_its_own():
    (stage,) = (stage for stage in limits.STAGES if not stage.usual)
    assert limits.deadlines([stage], limits.MINUTES, limits.SOAK_SECONDS) == {"placement": 600}


def test_a_long_soak_gets_its_time():
    usual = limits.deadlines(limits.STAGES, 14, 10)
    longer = limits.deadlines(limits.STAGES, 14, 600)
    assert longer["runtime"] == usual["runtime"]
    assert longer["faults"] == pytest.approx(usual["faults"] + 590 / limits.SOFT)
    (stage,) = (stage for stage in limits.STAGES if stage.name == "threads")
    assert limits.deadlines([stage], 14, 600)["threads"] * limits.SOFT > 600 + 20


# Ranges.


def test_ranges_are_compared_tensor_by_tensor():
    device = {"a": 1.0, "b": 2.0, "c": 3.03, "d": 1.0, "constant": 7.0}
    host = {"a": 1.0, "b": 1.0, "c": 3.0, "d": 4.0, "e": 1.0, "f": 1.0}
    found = amax.compare_amax(device, host)
    # Ratios 1, 2, 1.01 and 0.25: the last is the farthest, since 1/4 is farther than 2.
    assert (found.tensors, found.only_first, found.only_second) == (4, 1, 2)
    assert found.median == pytest.approx(1.005)
    assert (found.worst, found.worst_tensor) == (0.25, "d")
    assert found.close == 0.5


def test_ranges_of_zero_and_no_common_tensor():
    assert amax.ratio(0.0, 0.0) == 1.0
    found = amax.compare_amax({"a": 1.0, "b": 0.0}, {"a": 0.0, "b": 0.0})
    assert (found.worst, found.worst_tensor) == (math.inf, "a")
    assert amax.compare_amax({"a": 0.0, "b": 9.0}, {"a": 2.0, "b": 1.0}).worst == 0.0
    found = amax.compare_amax({"a": 1.0}, {"b": 1.0})
    assert (found.tensors, found.worst_tensor) == (0, "")
    assert math.isnan(found.median) and math.isnan(found.worst)


@given(st.dictionaries(st.text(max_size=3), st.floats(2**-20, 2**20), min_size=1))
def test_a_table_is_like_itself_and_swapping_inverts(table):
    same = amax.compare_amax(table, table)
    assert (same.median, same.worst, same.close) == (1.0, 1.0, 1.0)
    twice = {name: 2 * value for name, value in table.items()}
    assert amax.compare_amax(twice, table).worst == 2.0
    assert amax.compare_amax(table, twice).worst == 0.5


def test_the_conventions_of_a_bin():
    values = np.random.default_rng(0).standard_normal(200_000).astype(np.float32)
    values[0] = 9.0  # far beyond where entropy ends
    histogram = Histogram()
    histogram.observe(values)
    table = CalibrationTable.from_histograms({"x": histogram}, "entropy", Provenance())
    counts, _ = np.histogram(np.abs(values), BINS, (0, 9.0))
    even = Histogram(counts.astype(np.int64), 9.0 / BINS, 9.0)
    found = amax.conventions(table, {"x": even})
    assert histogram.bin_width == 2**-7
    assert found["edge"]["x"] % 2**-7 == 0
    assert found["centre"]["x"] == found["edge"]["x"] + 2**-8
    bins = found["even bins"]["x"] / (9.0 / BINS)
    assert bins == pytest.approx(round(bins))
    assert found["even bins"]["x"] == pytest.approx(found["edge"]["x"], rel=0.1)
    # The largest magnitude itself comes from no bin.
    largest = amax.conventions(table.with_method("minmax"), {"x": even})
    assert {convention: ranges["x"] for convention, ranges in largest.items()} == dict.fromkeys(largest, 9.0)


@pytest.mark.parametrize("route", ["explicit", "implicit"])
def test_the_twin_of_an_engine(tmp_path, route):
    """What the CPU computes of the marked model, beside itself and beside itself moved by two steps."""
    table = calibrate(DEMO_MODEL, load_digits_split().calibration_images[:50], progress=False)
    by_hand = CalibrationTable(table.amax, overridden=frozenset(table.amax))
    scales, simulation = twin.marked(DEMO_MODEL, by_hand, route, tmp_path / "marked.onnx")
    session = open_graph_model(simulation.graph_model)
    feed = {"images": load_digits_split().heldout_images[:5]}
    here = dict(zip(session.output_names, session.run(feed), strict=True))
    assert set(scales) < set(here)
    last = list(scales)[-1]
    same = twin.judged(scales, here, here)
    assert same.passed and same.figures["tensors"] == len(scales) and same.figures["most steps"] == 0
    moved = twin.judged(scales, here, here | {last: here[last] + 2 * scales[last]})
    assert not moved.passed and moved.figures["first beyond one step"] == last
    assert twin.judged(scales, here, here | {last: here[last] + scales[last]}).passed


def test_even_histograms_are_numpys():
    images = np.random.default_rng(0).standard_normal((20, 1, 8, 8), np.float32)
    batches = open_batches(images, model_inputs(DEMO_MODEL), batch_size=7)
    peak = float(np.abs(images).max())
    found = amax.even_histograms(DEMO_MODEL.read_bytes(), batches, {"images": peak, "logits": 1e6})
    expected, _ = np.histogram(np.abs(images), BINS, (0, peak))
    assert np.abs(found["images"].counts - expected).sum() <= 4  # values on an edge, in float32
    assert found["images"].total == images.size
    assert found["logits"].counts[0] + found["logits"].zeros == 20 * 10


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "a, b"])
def test_ranges_are_kept_as_csv_of_which_a_spreadsheet_computes_no_name(tmp_path, name):
    amax.write_csv(tmp_path / "x.csv", {name: 1.5, "a=b": 2.0}, {"edge": {name: 3.0, "c": 2.0}, "centre": {}})
    with (tmp_path / "x.csv").open(newline="") as stream:
        rows = list(csv.reader(stream))
    assert sorted(rows[1:]) == sorted(
        [
            [name if name == "a, b" else f"'{name}", "1.5", "3.0", ""],
            ["a=b", "2.0", "", ""],
            ["c", "", "2.0", ""],
        ]
    )
    assert rows[0] == ["tensor", "TensorRT", "edge", "centre"]


# Accuracy and times.


def test_scores():
    logits = np.eye(4, dtype=np.float32)
    reference = logits[[0, 1, 2, 2]]
    found = scores(logits, np.array([0, 1, 2, 0]), reference)
    assert found == {"top-1 %": 75.0, "against FP32, points": 0.0, "same class as FP32 %": 75.0}
    assert lost_at_most({"against FP32, points": -0.5}, 0.5)
    assert not lost_at_most({"against FP32, points": -0.51}, 0.5)


def test_rates_take_turns_and_count_what_is_waited_for():
    now, order = [0.0], []

    def takes(name, seconds):
        def call():
            order.append(name)
            now[0] += seconds

        return call

    contenders = {
        "quick": Contender(takes("quick", 0.01)),
        "queued": Contender(takes("queued", 0.0), takes("wait", 0.5)),
    }
    rates = take_turns(contenders, seconds=1.0, rounds=3, clock=lambda: now[0])
    assert rates["quick"] == pytest.approx(100)
    # Three calls at 0.5 s for all: six in a second.
    assert rates["queued"] == pytest.approx(6 / 0.5)
    measured = [name for name, before in zip(order, [None, *order[:-1]], strict=True) if name != before]
    assert measured[-9:] == ["quick", "queued", "wait"] * 3


def test_goals():
    assert judged(0.981, 0.98) == Finding({"ratio": 0.981, "goal": 0.98}, True)
    assert judged(0.979, 0.98).passed is False
    assert judged(5.0, None).passed is None


def test_what_trtexec_prints():
    assert parse_trtexec("[I] Throughput: 2345.67 qps\n[I] Latency: min = 0.4 ms") == 2345.67
    assert parse_trtexec("&&&& FAILED") is None


# The network.


@pytest.mark.slow
def test_the_network_is_of_resnet50s_size():
    data = resnet50()
    model = onnx.load_from_string(data)
    onnx.checker.check_model(model, full_check=True)
    kinds = [node.op_type for node in model.graph.node]
    assert (kinds.count("Conv"), kinds.count("Add"), kinds.count("Gemm")) == (53, 16, 1)
    parameters = sum(math.prod(tensor.dims) for tensor in model.graph.initializer)
    # torchvision's 25,557,032 less a scale and a shift, plus a bias, for each of 26,560 channels.
    assert parameters == 25_557_032 - 26_560
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {"images": random_images(2)})
    assert logits.shape == (2, 1000)
    assert np.isfinite(logits).all()
    assert 0.01 < logits.std() < 100
    # The image matters.
    assert not np.allclose(logits[0], logits[1], rtol=1e-2)


# The page.

# Placement by timed engines.

FOUND = SpeedPlan(
    "H100",
    ("a", "b"),
    0.8e-3,
    1e-3,
    0.9e-3,
    (
        SpeedTrial("all layers in FP16", 1e-3, True, 5, 0.99e-3, 1.01e-3),
        SpeedTrial("all layers in INT8", 0.9e-3, True, 0, 0.89e-3, 0.91e-3),
        SpeedTrial("each layer where it is faster by itself", 0.8e-3, True, 2, 0.79e-3, 0.82e-3),
    ),
    True,
    "measured here",
)


def test_what_a_search_for_placement_found_is_a_row():
    again = dataclasses.replace(FOUND, seconds=0.85e-3, fp16_seconds=1.02e-3)
    finding = placement.judged_placement(FOUND, again, 5)
    assert finding.figures == {
        "FP16": pytest.approx(1.0),
        "INT8": pytest.approx(0.9),
        "tuned": pytest.approx(0.8),
        "tuned, least": pytest.approx(0.79),
        "tuned, most": pytest.approx(0.82),
        "FP16, again": pytest.approx(1.02),
        "tuned, again": pytest.approx(0.85),
        "FP16 over tuned": pytest.approx(1.2),
        "layers in FP16": "2 of 5",
        "engines": 3,
    }
    assert (finding.passed, finding.note) == (True, "")


@pytest.mark.parametrize(
    ("changes", "passed"),
    [
        ({"seconds": 1.015e-3}, True),
        ({"seconds": 1.03e-3}, False),
        ({"trials": FOUND.trials * 5}, False),
        ({"complete": False}, True),
    ],
)
def test_a_placement_is_not_slower_than_fp16(changes, passed):
    found = dataclasses.replace(FOUND, **changes)
    finding = placement.judged_placement(found, found, 5)
    assert finding.passed is passed and bool(finding.note) is not found.complete


def test_cases_of_placement_share_the_time(tmp_path, monkeypatch):
    check, asked = check_with(tmp_path, 600.0, time.monotonic), []

    def searched(_check, network, batch, minutes):
        asked.append((network.name, batch, minutes))
        if batch == 1:
            raise RuntimeError("no kernel")
        return Finding({})

    monkeypatch.setattr(placement, "_searched", searched)
    placement.run(check)
    assert [one[:2] for one in asked] == [("resnet50", 64), ("encoder", 64), ("resnet50", 1), ("encoder", 1)]
    assert all(minutes > 0 for _, _, minutes in asked)
    assert [record.passed for record in read(check.settings.records)] == [None, None, False, False]


MACHINE = {
    "date": "2026-01-02 03:04 UTC",
    "device": "NVIDIA X (compute capability 9.0)",
    "driver": "release 1.2",
}
STAGES = (
    StageReport(
        "implicit",
        "Implicit INT8",
        Outcome("done", 61.4),
        MACHINE,
        (
            Record("Accuracy", "demo | MinMax", {"top-1 %": 99.4975, "in INT8": "4 of 5"}, True, "", 3.0),
            Record("Accuracy", "demo Legacy", {"top-1 %": 12.0}, False, "BuildError: no\nkernel", 2.0),
            Record("Accuracy", "resnet20", note="not run: no --data was given", ran=False),
            Record("Ranges", "demo", {"worst": "inf", "n": 23, "close": True}),
        ),
    ),
    StageReport("faults", "Faults", Outcome("crashed with SIGSEGV", 2.0, "a\n```\nb"), MACHINE, ()),
)


def test_the_page():
    page = render(Report(MACHINE, "scripts/gpu_check --out x", {"builds": "level 1"}, STAGES))
    for line in (
        "- device: NVIDIA X (compute capability 9.0)",
        "- command: `scripts/gpu_check --out x`",
        "- limit: builds: level 1",
        "| implicit | done | 61 | 2026-01-02 03:04 UTC | 1 | 1 | 1 |",
        "| faults | crashed with SIGSEGV | 2 | 2026-01-02 03:04 UTC | 0 | 0 | 0 |",
        "1 checks are as promised, 1 were not run.",
        "- implicit, Accuracy, demo Legacy: BuildError: no kernel",
        "- faults: crashed with SIGSEGV",
        "|  | top-1 % | in INT8 |  | note |",
        "| demo \\| MinMax | 99.5 | 4 of 5 | pass |  |",
        "| demo Legacy | 12 |  | **FAIL** | BuildError: no kernel |",
        "| resnet20 |  |  |  | not run: no --data was given |",
        "|  | worst | n | close |",
        "| demo | inf | 23 | yes |",
        "The stage crashed with SIGSEGV; the last lines that it printed:",
    ):
        assert line in page.splitlines(), line
    assert page.count("```") == 2
    assert "different devices" not in page


def test_the_page_tells_of_two_devices():
    other = StageReport("faults", "Faults", Outcome("done", 1.0), {**MACHINE, "device": "NVIDIA Y"}, ())
    page = render(Report(MACHINE, "x", {}, (STAGES[0], other)))
    assert "**the stages ran on different devices**: NVIDIA X (compute capability 9.0); NVIDIA Y" in page


# Packing.


@pytest.fixture
def results(tmp_path):
    folder = tmp_path / "results"
    for name, size in {"gpu_check.md": 10, "stages/a.log": 1000, "engines/x.engine": 9000}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(np.random.default_rng(size).bytes(size))
    return folder


def unpacked(parts):
    data = b"".join(part.read_bytes() for part in parts if part.name.startswith("results"))
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return {name: archive.extractfile(name).read() for name in archive.getnames()}


def test_everything_but_engines_is_packed_into_parts(results, tmp_path, monkeypatch):
    monkeypatch.setattr(packing, "PART_BYTES", 300)
    files = packing.pack(results, tmp_path / "to")
    first, *parts = (path.name for path in files)
    assert first == "gpu_check.md"
    assert parts == [f"results.tar.xz.{number:02}" for number in range(len(parts))]
    assert 3 <= len(parts) <= packing.MOST_PARTS
    assert unpacked(files) == {
        name: (results / name).read_bytes() for name in ("gpu_check.md", "stages/a.log")
    }
    # A smaller archive leaves no part of the larger one.
    (results / "stages/a.log").write_text("short")
    again = packing.pack(results, tmp_path / "to")
    assert sorted(path.name for path in (tmp_path / "to").iterdir()) == sorted(path.name for path in again)


def test_what_is_too_much_is_left_out_and_named(results, tmp_path, monkeypatch):
    monkeypatch.setattr(packing, "PART_BYTES", 100)
    files = packing.pack(results, tmp_path / "to")
    assert (tmp_path / "to" / "left_out.txt").read_text() == "stages/a.log\n"
    assert list(unpacked(files)) == ["gpu_check.md"]


# Engines that are built once.


def test_an_engine_is_built_once_for_all_stages(tmp_path, monkeypatch):
    built = []

    def build(_self, kind, path):
        built.append(kind)
        path.write_bytes(b"plan")
        return Finding({})

    monkeypatch.setattr(Timed, "_int8", build)
    monkeypatch.setattr(Timed, "_floating", build)
    monkeypatch.setattr(Timed, "_key", lambda _self, kind: f"{kind} of today")
    check = check_with(tmp_path, 100.0, time.monotonic)
    for _ in range(2):
        found = [Timed(check, RESNET50).engine(kind).name for kind in FIRST_KINDS]
        assert found == ["resnet50-implicit.engine", "resnet50-fp16.engine"]
    assert built == list(FIRST_KINDS)
    again = [record.figures for record in read(tmp_path / "r.jsonl")][2:]
    assert again == [{"build s": "from an earlier stage or run"}] * 2
    # Of another TensorRT or GPU it is another engine; a build that failed leaves nothing to be used.
    monkeypatch.setattr(Timed, "_key", lambda _self, kind: f"{kind} of tomorrow")
    monkeypatch.setattr(Timed, "_int8", lambda *_arguments: 1 / 0)
    for _ in range(2):
        assert Timed(check, RESNET50).engine(FIRST_KINDS[0]) is None


def test_int8_beside_fp16(tmp_path):
    check = check_with(tmp_path, 100.0, time.monotonic)
    fp16, int8 = FIRST_KINDS[1], FIRST_KINDS[0]
    rates = {(fp16, 64): 100.0, (int8, 64): 115.0, (fp16, 1): 10.0, (int8, 1): 20.0}
    Timed(check, RESNET50, _rates=rates).int8_against_fp16((64, 1, 8), int8)
    found = read(tmp_path / "r.jsonl")
    assert [(record.figures, record.passed, record.ran) for record in found] == [
        ({"ratio": 1.15, "goal": 1.2}, False, True),
        ({"ratio": 2.0, "goal": None}, None, True),
        ({}, None, False),
    ]


def test_the_shapes_of_large_networks():
    assert RESNET50.profiles == [
        {"images": ShapeRange((1, 3, 224, 224), (64, 3, 224, 224), (256, 3, 224, 224))}
    ]
    assert ENCODER.profiles == [{"embeddings": ShapeRange((1, 128, 768), (64, 128, 768), (64, 128, 768))}]
