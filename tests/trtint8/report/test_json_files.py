"""What `--json` prints is read back as it was."""

import dataclasses
import json
import math

import pytest

from calibrators import records
from calibrators.errors import TableError
from tests.trtint8.report.samples import ACCURACY, TUNING_LOG, bench_report, printed_tuning
from trtint8.cli.output import print_json
from trtint8.report.files import parse_accuracy, parse_benchmark, parse_printed_tuning, parse_tuning_log
from trtint8.runtime.bench import Benchmarks
from trtint8.validation.accuracy import Judgement, Measure
from trtint8.validation.fidelity import Fidelity


def printed(value, capsys):
    print_json(value)
    return json.loads(capsys.readouterr().out)


def test_accuracy_round_trip(capsys):
    both = dataclasses.replace(ACCURACY, also={"FP16": ACCURACY})
    assert parse_accuracy(printed(both, capsys), "a.json") == both


def test_metrics_of_other_tasks_round_trip(capsys):
    measures = (
        Measure("psnr", 26.15, 27.25, title="PSNR of 'hr' against the labels", unit="dB"),
        Measure("pixels", 0.75, title="positions of 'y' with FP32's class", unit="%", perfect=1.0),
    )
    accuracy = dataclasses.replace(ACCURACY, measures=measures, chosen="chosen by the shapes")
    document = printed(accuracy, capsys)
    assert parse_accuracy(document, "a.json") == accuracy
    assert (document["measures"][0]["unit"], document["chosen"]) == ("dB", "chosen by the shapes")


def test_what_was_said_of_a_budget_comes_back(capsys):
    judgement = Judgement("sqnr: at least 30 dB", False, 29.0, None, None, False, ("it is missed",))
    accuracy = dataclasses.replace(ACCURACY, judgement=judgement)
    assert parse_accuracy(printed(accuracy, capsys), "a.json") == accuracy


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


@pytest.mark.parametrize(
    ("measure", "value", "reference"),
    [
        (Measure("psnr", 26.5, math.inf, unit="dB"), 26.5, "inf"),
        (Measure("psnr", math.inf, math.inf, unit="dB"), "inf", "inf"),
        (Measure("psnr", math.inf, unit="dB"), "inf", None),
        (Measure("psnr", -math.inf, 27.0, unit="dB"), "-inf", 27.0),
        (Measure("own", math.inf, 1.0), "inf", 1.0),
    ],
)
def test_infinite_metrics_come_back(measure, value, reference, capsys):
    accuracy = dataclasses.replace(ACCURACY, measures=(measure,))
    document = printed(accuracy, capsys)
    assert (document["measures"][0]["value"], document["measures"][0]["reference"]) == (value, reference)
    assert parse_accuracy(document, "a.json").measures == (measure,)


def test_a_metric_that_is_not_a_number_comes_back(capsys):
    accuracy = dataclasses.replace(ACCURACY, measures=(Measure("psnr", math.nan, 27.0, unit="dB"),))
    found = parse_accuracy(printed(accuracy, capsys), "a.json").measures[0]
    assert math.isnan(found.value) and found.reference == 27.0


def test_nan_comes_back(capsys):
    accuracy = dataclasses.replace(ACCURACY, outputs=(Fidelity("y", math.nan, math.nan, math.nan),))
    found = parse_accuracy(printed(accuracy, capsys), "a.json").outputs[0]
    assert math.isnan(found.sqnr_db) and math.isnan(found.cosine) and math.isnan(found.max_error)


def test_bench_round_trip(capsys):
    report = bench_report("a.engine", 4000, 0.5)
    document = {"gpu": "GPU 1", "inputs": "random", "reports": [dataclasses.asdict(report)]}
    assert parse_benchmark(printed(document, capsys), "b.json") == Benchmarks("GPU 1", "random", (report,))


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
        parse_accuracy(document, "a.json")
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
        parse_benchmark({"gpu": "GPU 1", "inputs": "random", "reports": [report]}, "b.json")
    assert str(caught.value).startswith(f"'b.json' is no output of 'trtint8 bench --json' ({problem}")
    assert str(caught.value).endswith("; measure again")


def test_what_is_something_else_is_refused():
    with pytest.raises(TableError, match=r"'a\.json'.*--json"):
        parse_accuracy({"judged": "x", "measures": []}, "a.json")
    with pytest.raises(TableError, match=r"'b\.json'.*--json"):
        parse_benchmark({"gpu": "x", "reports": [{}], "inputs": "y"}, "b.json")


def test_a_tuning_log_round_trip():
    log = parse_tuning_log(json.loads(records.render(TUNING_LOG)), "t.json")
    assert log.trials[:4] == TUNING_LOG.trials[:4] and math.isnan(log.trials[4].score.value)
    assert (log.metric, log.unit) == ("top1", "%")
    with pytest.raises(TableError, match=r"'t\.json'"):
        parse_tuning_log({"command": "", "float_cost": 0.0, "keep_float": [], "remedies": []}, "t.json")


def test_a_printed_tuning_is_its_log_and_its_accuracy(capsys):
    document = printed(printed_tuning(), capsys)
    found = parse_printed_tuning(document, "t.json")
    assert found.accuracy == ACCURACY
    assert dataclasses.replace(found.log, trials=()) == dataclasses.replace(TUNING_LOG, trials=())
    assert found.log.trials[:-1] == TUNING_LOG.trials[:-1]
    assert math.isnan(TUNING_LOG.trials[-1].score.value) and found.log.trials[-1].score.value is None
    for field, wrong in (("accuracy", {}), ("files", {}), ("files", 1), ("float_cost", -1)):
        with pytest.raises(TableError, match=r"'t\.json'.*--json"):
            parse_printed_tuning({**document, field: wrong}, "t.json")
