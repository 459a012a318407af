"""What `--json` prints is read back as it was."""

import dataclasses
import json
import math

import pytest

from calibrators import records
from calibrators.errors import TableError
from tests.trtint8.report.samples import ACCURACY, TUNING_LOG, bench_report, printed_tuning
from trtint8.cli.output import print_json
from trtint8.report.files import parse
from trtint8.runtime.bench import Benchmarks
from trtint8.validation.accuracy import Judgement, Measure
from trtint8.validation.fidelity import Fidelity


def printed(value, capsys):
    print_json(value)
    return json.loads(capsys.readouterr().out)


PSNR = Measure("psnr", 26.15, 27.25, title="PSNR of 'hr' against the labels", unit="dB")


@pytest.mark.parametrize(
    "change",
    [
        {"also": {"FP16": ACCURACY}},
        {
            "measures": (PSNR, Measure("pixels", 0.75, title="same", unit="%", perfect=1.0)),
            "chosen": "by shapes",
        },
        {"judgement": Judgement("sqnr: at least 30 dB", False, 29.0, None, None, False, ("it is missed",))},
        {"outputs": (Fidelity("y", math.inf, 1.0, 0.0), Fidelity("y", -math.inf, 0.0, 2.0))},
        {"outputs": (Fidelity("y", 31.5, 0.9, 2.0, 0.75), Fidelity("y", math.nan, math.nan, math.nan))},
        {"measures": (dataclasses.replace(PSNR, value=math.nan),)},
    ],
)
def test_an_accuracy_comes_back_as_it_was(change, capsys):
    accuracy = dataclasses.replace(ACCURACY, **change)
    found = parse("accuracy", printed(accuracy, capsys), "a.json")
    assert repr(dataclasses.asdict(found)) == repr(dataclasses.asdict(accuracy))


@pytest.mark.parametrize(
    ("value", "reference", "shown"),
    [
        (26.5, math.inf, (26.5, "inf")),
        (math.inf, math.inf, ("inf", "inf")),
        (math.inf, None, ("inf", None)),
        (-math.inf, 27.0, ("-inf", 27.0)),
    ],
)
def test_infinite_metrics_come_back(value, reference, shown, capsys):
    accuracy = dataclasses.replace(ACCURACY, measures=(Measure("psnr", value, reference, unit="dB"),))
    document = printed(accuracy, capsys)
    assert (document["measures"][0]["value"], document["measures"][0]["reference"]) == shown
    assert parse("accuracy", document, "a.json").measures == accuracy.measures


def test_bench_round_trip(capsys):
    report = bench_report("a.engine", 4000, 0.5)
    document = {"gpu": "GPU 1", "inputs": "random", "reports": [dataclasses.asdict(report)]}
    assert parse("bench", printed(document, capsys), "b.json") == Benchmarks("GPU 1", "random", (report,))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"samples": 0}, "Expected `int` >= 1 - at `$.samples`"),
        ({"top1": {"count": -1, "total": 400}}, "Expected `int` >= 0 - at `$.top1.count`"),
        ({"outputs": [{"name": "y"}]}, "Object missing required field `sqnr_db` - at `$.outputs[0]`"),
        (
            {"measures": [{"name": "top1", "value": "high", "reference": None, "comparisons": []}]},
            "Expected `float | object`, got `str` - at `$.measures[0].value`",
        ),
        ({"also": {"FP16": {}}}, "Object missing required field `judged` - at `$.also[...]`"),
    ],
)
def test_wrong_fields_of_an_accuracy_are_named(change, problem, capsys):
    document = {**printed(ACCURACY, capsys), **change}
    with pytest.raises(TableError) as caught:
        parse("accuracy", document, "a.json")
    assert str(caught.value) == (
        f"'a.json' is no output of 'trtint8 validate --json' ({problem}); validate again"
    )


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"batch_size": 0}, "Expected `int` >= 1 - at `$.reports[0].batch_size`"),
        ({"seconds": math.nan}, "Expected `float` > 0.0 - at `$.reports[0].seconds`"),
        ({"seconds": math.inf}, "Expected `float` <= 1.7976931348623157e+308 - at `$.reports[0].seconds`"),
        ({"cuda_graph": 1}, "Expected `bool`, got `int` - at `$.reports[0].cuda_graph`"),
        ({"phases": {"latency": {"min": 1.0}}}, "Object missing required field `max` - at "),
        ({"phases": {}}, "the phases lack `latency` - at `$.reports[0]`"),
    ],
)
def test_wrong_fields_of_a_benchmark_are_named(change, problem, capsys):
    report = {**dataclasses.asdict(bench_report("a.engine", 4000, 0.5)), **change}
    with pytest.raises(TableError) as caught:
        parse("bench", {"gpu": "GPU 1", "inputs": "random", "reports": [report]}, "b.json")
    assert str(caught.value).startswith(f"'b.json' is no output of 'trtint8 bench --json' ({problem}")
    assert str(caught.value).endswith("; measure again")


def test_what_is_something_else_is_refused():
    with pytest.raises(TableError, match=r"'a\.json'.*--json"):
        parse("accuracy", {"judged": "x", "measures": []}, "a.json")
    with pytest.raises(TableError, match=r"'b\.json'.*--json"):
        parse("bench", {"gpu": "x", "reports": [{}], "inputs": "y"}, "b.json")


def test_a_tuning_log_round_trip():
    log = parse("tuning", json.loads(records.render(TUNING_LOG)), "t.json")
    assert log.trials[:4] == TUNING_LOG.trials[:4] and math.isnan(log.trials[4].score.value)
    assert (log.metric, log.unit) == ("top1", "%")
    with pytest.raises(TableError, match=r"'t\.json'"):
        parse("tuning", {"command": "", "float_cost": 0.0, "keep_float": [], "remedies": []}, "t.json")


def test_a_printed_tuning_is_its_log_and_its_accuracy(capsys):
    document = printed(printed_tuning(), capsys)
    accuracy, log = parse("tuned", document, "t.json")
    assert accuracy == ACCURACY
    assert dataclasses.replace(log, trials=()) == dataclasses.replace(TUNING_LOG, trials=())
    assert log.trials[:-1] == TUNING_LOG.trials[:-1]
    assert math.isnan(TUNING_LOG.trials[-1].score.value) and log.trials[-1].score.value is None
    for field, wrong in (("accuracy", {}), ("files", {}), ("files", 1), ("float_cost", -1)):
        with pytest.raises(TableError, match=r"'t\.json'.*--json"):
            parse("tuned", {**document, field: wrong}, "t.json")
