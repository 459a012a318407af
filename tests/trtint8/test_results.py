"""What public results have in common: JSON, and one unit for shares."""

import contextlib
import dataclasses
import io
import json
import math
import re
import types
import typing
from pathlib import Path

import pytest

import trtint8
from calibrators.records import Result, as_json
from tests.trtint8.report.samples import (
    ACCURACY,
    SENSITIVITY,
    TUNING_LOG,
    audit,
    bench_report,
    engine_info,
    printed_tuning,
    table,
)
from trtint8.cli.output import print_json
from trtint8.data import DEMO_MODEL
from trtint8.models.model import load_float_model, prepare
from trtint8.quantization.placement import place
from trtint8.quantization.quantize import QuantizeOptions, quantized_model
from trtint8.quantization.targets import TARGETS
from trtint8.runtime.bench import Benchmarks
from trtint8.tuning.candidates import Candidate
from trtint8.validation.accuracy import Judgement
from trtint8.validation.budget import Score
from trtint8.validation.significance import Share

#: Results of public calls, beside those that hold a model.
RESULTS = {
    "accuracy": ACCURACY,
    "sensitivity": SENSITIVITY,
    "audit": audit(table()),
    "benchmarks": Benchmarks("a GPU", "random", (bench_report("INT8", 100, 1.0),)),
    "engine": engine_info(table()),
    "table": table(),
    "judgement": Judgement("top1: a drop", True, 99.0, 0.5, 0.25, False, (), True),
}

#: Names that say per cent of a share and do not end so; what says it beside them is ``is_share``.
OLDER = {("Judgement", "value"), ("Judgement", "drop"), ("Score", "value"), ("Score", "drop")}


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_gives_what_json_prints(name):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        print_json(RESULTS[name], warnings=False)
    found = RESULTS[name].to_json()
    assert found and json.loads(printed.getvalue()) == json.loads(json.dumps(found, allow_nan=False))


def test_results_of_calls_have_json():
    names = (
        "Accuracy Audit BenchReport Benchmarks BuildResult CalibrationTable EngineInfo Finding Mended "
        "Migrated MissingRange QuantizedFiles RunComparison Sensitivity SetRanges Tuned"
    )
    for name in names.split():
        assert issubclass(getattr(trtint8, name), Result), name


PACKAGES = ("trtint8", "calibrators")


def parts(kind, seen):
    """A type and the data classes that its fields are made of."""
    if typing.get_origin(kind) is not None:
        for argument in typing.get_args(kind):
            parts(argument, seen)
    elif dataclasses.is_dataclass(kind) and kind not in seen and kind.__module__.startswith(PACKAGES):
        seen[kind] = typing.get_type_hints(kind)
        for hint in seen[kind].values():
            parts(hint, seen)
    return seen


def public_types():
    seen = {}
    for name in trtint8.__all__:
        with contextlib.suppress(NameError):  # what only type checkers import is no part of a result
            parts(getattr(trtint8, name), seen)
    return {kind: hints for kind, hints in seen.items() if kind.__doc__}


def attributes(kind):
    """What the docstring of a class says of each attribute, and the docstrings of its properties."""
    found = {}
    for base in reversed(kind.__mro__):
        section = re.search(r"Attributes:\n(.*?)(\n\n|\Z)", base.__doc__ or "", re.DOTALL)
        entries = re.findall(
            r"^        (\w+): (.*(?:\n {12}.*)*)", section[1] if section else "", re.MULTILINE
        )
        found |= {name: " ".join(text.split()) for name, text in entries}
        properties = {name: value for name, value in vars(base).items() if isinstance(value, property)}
        found |= {name: " ".join((value.__doc__ or "").split()) for name, value in properties.items()}
    return found


def test_what_is_in_per_cent_has_a_name_that_says_so():
    named = set()
    for kind in public_types():
        for name, text in attributes(kind).items():
            percent = re.search(r"\b(per ?cent|percentage|in points)\b", text.split(". Of a share")[0])
            limit = name in ("max_drop", "minimum")  # which are typed in the unit that tables show
            if percent and not limit and not (name == "unit" or name == "is_share" or kind is Share):
                assert name.endswith("_percent"), f"{kind.__name__}.{name}: {text}"
            if name.endswith("_percent"):
                named.add((kind.__name__, name.removesuffix("_percent")))
    assert named == OLDER | {("Judgement", "step")}


def number(kind):
    arguments = typing.get_args(kind) or (kind,)
    if typing.get_origin(kind) in (typing.Annotated, typing.Union, types.UnionType):
        return any(number(one) for one in arguments)
    return kind is float


def shares(value):
    """The name and the value of every share in a result, however deep it is."""
    if isinstance(value, (tuple, list)):
        for one in value:
            yield from shares(one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from shares(one)
    elif dataclasses.is_dataclass(value):
        said = attributes(type(value))
        for name, kind in typing.get_type_hints(type(value)).items():
            found = getattr(value, name)
            if (
                name != "difference"
                and number(kind)
                and re.search(r"\b[Ss]hare\b|\[0, 1\]|part of the noise", said.get(name, ""))
            ):
                yield f"{type(value).__name__}.{name}", found
            yield from shares(found)


def test_shares_are_fractions():
    judged = Score(0.5, 30.0, 99.5, True)
    found = [
        (name, value)
        for result in (*RESULTS.values(), TUNING_LOG, judged, Share(9, 10))
        for name, value in shares(result)
        if name.split(".")[1] not in ("value", "drop", "step") and value is not None
    ]
    assert {"LayerSensitivity.noise_share", "Trial.float_cost", "TuningLog.float_cost"} <= {
        n for n, _ in found
    }
    assert [one for one in found if not 0 <= one[1] <= 1] == []


def values_named(value, end):
    """All values in a JSON document whose key has an ending."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in items:
        if isinstance(key, str) and key.endswith(end):
            yield one
        yield from values_named(one, end)


def test_json_has_per_cents_and_shares_by_their_names():
    printed = [result.to_json() for result in RESULTS.values()] + [as_json(printed_tuning())]
    percents = [value for value in values_named(printed, "_percent") if value is not None]
    assert 99.0 in percents and 79.5 in percents
    fractions = [*values_named(printed, "_share"), *values_named(printed, "float_cost")]
    fractions = [value for value in fractions if not isinstance(value, bool)]
    assert len(fractions) > 3 and all(0 <= value <= 1 for value in fractions)
    assert all(0 <= one["value"] <= 1 for one in values_named(printed, "agreement") if one)


def test_a_score_of_no_share_has_no_per_cents():
    assert Score(0.5, 30.0, 29.5).to_json()["value_percent"] is None
    assert Score(0.5, 30.0, 29.5, True).to_json()["drop_percent"] == 0.5


def test_a_share_is_a_text():
    assert str(Share(99, 100)) == "99.00 % (94.6-99.8)" and f"{Share(1, 2)}".startswith("50.00 % (")


def test_json_has_no_infinite_numbers():
    share = as_json({"a": math.inf, "b": (math.nan, Path("x")), 3: Share(1, 4)})
    assert (share["a"], share["b"], share["3"]["value"]) == (None, [None, "x"], 0.25)


@pytest.fixture(scope="module")
def digits():
    return prepare(load_float_model(DEMO_MODEL))


def test_the_causes_of_a_placement_are_data(digits):
    first, *_, last = place(digits.graph_model).decisions
    kept = place(digits.graph_model, [first.node], TARGETS["dla"]).decisions
    causes = {decision.node: (decision.quantized, decision.cause) for decision in kept}
    assert causes[first.node] == (False, "keep_float") and causes["/block1/conv1/Conv"] == (True, "weights")
    assert as_json(kept)[0]["cause"] == "keep_float" and last.cause == "weights"


@pytest.mark.filterwarnings("ignore:2 nodes of")  # that may overflow, whose ranges are not known
def test_the_causes_of_fp32_amid_fp16_and_of_float_layers_are_data(digits):
    first = digits.graph_model.graph[0].name
    options = QuantizeOptions((first,), (), TARGETS["tensorrt-11"], float16=True, float32_io=True)
    ranges = dict.fromkeys(place(digits.graph_model).tensors, 1e6)
    made = quantized_model(digits, trtint8.CalibrationTable(ranges), options)
    assert made.placement.float_causes[first] == "keep_float"
    assert [name for name, _ in made.placement.float_nodes] == list(made.placement.float_causes)
    assert made.float32.keys() == made.float32_causes.keys() and "overflow" in made.float32_causes.values()


def test_short_texts_name_few_layers(digits):
    names = [decision.node for decision in place(digits.graph_model).decisions]
    placement = repr(place(digits.graph_model, names[:7]))
    assert "in float '/stem/conv/Conv', " in placement and placement.endswith(" and 3 more>")
    candidate = repr(Candidate(digits, trtint8.CalibrationTable({}), tuple(names), ("bias correction",)))
    assert "and 9 more in float" in candidate and "bias correction" in candidate
    assert all(len(text) < 200 and "\n" not in text for text in (placement, candidate))
