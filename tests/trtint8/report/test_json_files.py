"""What `--json` prints is read back as it was."""

import dataclasses
import json
import math

import pytest

from calibrators.errors import TableError
from tests.trtint8.report.samples import ACCURACY, bench_report
from trtint8.cli.output import print_json
from trtint8.report.json_files import Benchmark, parse_accuracy, parse_benchmark
from trtint8.validation.fidelity import Fidelity


def printed(value, capsys):
    print_json(value)
    return json.loads(capsys.readouterr().out)


def test_accuracy_round_trip(capsys):
    both = dataclasses.replace(ACCURACY, also={"FP16": ACCURACY})
    assert parse_accuracy(printed(both, capsys), "a.json") == both


@pytest.mark.parametrize(
    ("fidelity", "level"),
    [
        (Fidelity("y", math.inf, 1.0, 0.0), math.inf),
        (Fidelity("y", -math.inf, 0.0, 2.0), -math.inf),
        (Fidelity("y", 31.5, 0.9, 2.0, 0.75), 31.5),
    ],
)
def test_infinite_levels_come_back(fidelity, level, capsys):
    accuracy = dataclasses.replace(ACCURACY, outputs=(fidelity,))
    found = parse_accuracy(printed(accuracy, capsys), "a.json").outputs[0]
    assert found == fidelity and found.sqnr_db == level


def test_nan_comes_back(capsys):
    accuracy = dataclasses.replace(ACCURACY, outputs=(Fidelity("y", math.nan, math.nan, math.nan),))
    found = parse_accuracy(printed(accuracy, capsys), "a.json").outputs[0]
    assert math.isnan(found.sqnr_db) and math.isnan(found.cosine) and math.isnan(found.max_error)


def test_bench_round_trip(capsys):
    report = bench_report("a.engine", 4000, 0.5)
    document = {"gpu": "GPU 1", "inputs": "random", "reports": [dataclasses.asdict(report)]}
    assert parse_benchmark(printed(document, capsys), "b.json") == Benchmark("GPU 1", "random", (report,))


def test_what_is_something_else_is_refused():
    with pytest.raises(TableError, match=r"'a\.json' is no output of 'trtint8 validate --json'"):
        parse_accuracy({"judged": "x", "measures": []}, "a.json")
    with pytest.raises(TableError, match=r"'b\.json' is no output of 'trtint8 bench --json'"):
        parse_benchmark({"gpu": "x", "reports": [{}], "inputs": "y"}, "b.json")
