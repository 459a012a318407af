"""The JSON that verbs print with ``--json``: its schema, made from the types of results, and a page about it.

A verb prints one of the library's own data classes, or an object that a class here describes.
"""

from __future__ import annotations

import dataclasses
import json
import re
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import griffe

from calibrators.histograms.rules import RangeLoss
from calibrators.tables.choice import FloatLayers, RangeChoice
from calibrators.tables.table import Provenance
from docs.extensions.places import Place
from trtint8.auditing.results import Audit
from trtint8.engine.file import EngineInfo
from trtint8.equalization.equalize import EqualizedForm
from trtint8.interop.lint import Finding
from trtint8.interop.migrate import Proposal
from trtint8.quantization.placement import Decision
from trtint8.report.comparison import RunComparison
from trtint8.runtime.bench import BenchReport
from trtint8.sensitivity.results import Sensitivity
from trtint8.tuning.candidates import Trial
from trtint8.tuning.remedies.held_out import Compensation
from trtint8.tuning.stopwatch import Expectation, SpeedPlan
from trtint8.tuning.tune import Written
from trtint8.validation.accuracy import Accuracy, Measure, Verdict

#: The line of a page that the tables take the place of.
PLACE = "<!-- the JSON of the verbs -->"


@dataclass(frozen=True, kw_only=True)
class Printed:
    """What verbs print.

    Attributes:
        warnings: What was warned of, of which none makes the verb fail. One that begins with "note: "
            makes no figure doubtful.
    """

    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Calibrated(Printed):
    """A calibration.

    Attributes:
        table: The file that was written.
        method: How the ranges were chosen.
        tensors: Number of tensors with a range.
        samples: Number of samples that the model was run on.
        left_out: Name to operator of the nodes that were not run: plugins of TensorRT, operators that nobody
            knows, and all that follows them.
        float_layers: The layers that stay in float because that gains accuracy; null with ``--spend 0``.
        chosen: Which rule ``auto`` took, and why, in words; only where the method is ``auto``.
    """

    table: str
    method: str
    tensors: int
    samples: int | None
    left_out: Mapping[str, str]
    float_layers: FloatLayers | None
    chosen: str = ""


@dataclass(frozen=True)
class TensorState:
    """How one tensor is quantized.

    Attributes:
        state: The state of its config.
        dominator: The tensor whose scale it has.
    """

    state: str
    dominator: str | None


@dataclass(frozen=True)
class TensorConfig:
    """The config of a tensor that is quantized. Up to ``dominator`` the fields are those of PPQ.

    Attributes:
        bit_width: The number of bits of its integers.
        per_channel: Whether every channel has a scale.
        quant_flag: True.
        sym: Whether the value zero is the integer 0.
        scale: The scale, or those of all channels.
        zero_point: The integers of the value zero, as many.
        tensor_min: The smallest values that integers represent, as many.
        tensor_max: The largest ones.
        q_min: The smallest integer.
        q_max: The largest integer.
        hash: A number of the tensor.
        dominator: That of the tensor whose scale it has; its own where it has one of its own.
        state: How far its quantization has come.
        axis: The axis of the channels; null for one scale.
        power_of_two: Whether scales are powers of two.
        rounding: How values are rounded.
        inverse: Whether values are multiplied by 1 / scale.
        observer: How the range was found.
    """

    bit_width: int
    per_channel: bool
    quant_flag: bool
    sym: bool
    scale: float | tuple[float, ...]
    zero_point: int | tuple[int, ...]
    tensor_min: float | tuple[float, ...]
    tensor_max: float | tuple[float, ...]
    q_min: int
    q_max: int
    hash: int
    dominator: int
    state: str
    axis: int | None
    power_of_two: bool
    rounding: str
    inverse: bool
    observer: str | None


@dataclass(frozen=True)
class Equalization:
    """What ``--equalize`` did.

    Attributes:
        forms: What was equalized, in the order of the graph.
        unchanged: What could be equalized and would not become better.
        skipped: Node whose output channels keep their values, to the reason.
        float_model: The float model that was written.
        table: The table that was written.
    """

    forms: tuple[EqualizedForm, ...]
    unchanged: tuple[str, ...]
    skipped: Mapping[str, str]
    float_model: str
    table: str


@dataclass(frozen=True)
class Quantized(Printed):
    """A quantized model.

    Attributes:
        model: The file that was written.
        target: What it was quantized for.
        nodes_in_int8: Number of nodes with products that run in INT8.
        nodes_that_multiply: Number of all nodes with products.
        decisions: One entry per node that could run in INT8.
        left_out: Name to operator of the nodes that no calibration sees: plugins of TensorRT, operators that
            nobody knows, and all that follows them.
        shared_scales: Groups of tensors with one scale.
        tensors: How every tensor is quantized, by name.
        act_quant_info: Activation to amax, as PPQ writes it for TensorRT; null without ``--configs``.
        quant_info: Tensor to its whole config, as PPQ writes it for its own backend; null without
            ``--configs``.
        float32: Node that stays in FP32 amid FP16, to the reason; null without ``--float16``.
        float32_causes: The same nodes to the causes for programs; null without ``--float16``.
        equalization: What was equalized; null without ``--equalize``.
        rounding: How biases were corrected and weights rounded; null without ``--round``.
        float_layers: The layers that stay in float because that gains accuracy; null where the table says
            nothing of them.
    """

    model: str
    target: str
    nodes_in_int8: int
    nodes_that_multiply: int
    decisions: tuple[Decision, ...]
    left_out: Mapping[str, str]
    shared_scales: tuple[tuple[str, ...], ...]
    tensors: Mapping[str, TensorState]
    act_quant_info: Mapping[str, float] | None
    quant_info: Mapping[str, TensorConfig] | None
    float32: Mapping[str, str] | None
    float32_causes: Mapping[str, str] | None
    equalization: Equalization | None
    rounding: Compensation | None
    float_layers: FloatLayers | None


@dataclass(frozen=True, repr=False)
class Built(EngineInfo):
    """An engine.

    Attributes:
        expected: The time of the engine compared with FP16: measured if this machine has the GPU, estimated
            if one compute capability was given, else null.
    """

    expected: Expectation | None = None


@dataclass(frozen=True)
class MigratedModel(Printed):
    """A migration.

    Attributes:
        model: The file that was written.
        missing: Tensors that the cache lacks.
        unused: Tensors of the cache that the graph lacks.
        proposals: The ranges that were filled in.
        widened: Tensor whose scale became larger, because it shares one, to the factor.
        weighted_layers: Number of all nodes with products.
        float_nodes: Those of them that stay in float, to the reasons.
        in_int8: Number of layers that TensorRT for RTX runs in INT8; null with ``--no-proof``.
    """

    model: str
    missing: tuple[str, ...]
    unused: tuple[str, ...]
    proposals: tuple[Proposal, ...]
    widened: Mapping[str, float]
    weighted_layers: int
    float_nodes: Mapping[str, str]
    in_int8: int | None


@dataclass(frozen=True)
class Deployed(Printed):
    """A folder that runs an engine elsewhere.

    Attributes:
        to: What runs it.
        files: The files that were written.
    """

    to: str
    files: tuple[str, ...]


@dataclass(frozen=True)
class Linted(Printed):
    """The findings on a model.

    Attributes:
        findings: The rules that are violated, in the order of the graph.
        quantized_nodes: Nodes in INT8 after mending; null without ``--fix``.
        restored: Relu and Clip nodes that were part of a QuantizeLinear; null without ``--fix``.
        filled: Tensor that had no range, to the amax that it got; null without ``--fix``.
    """

    findings: tuple[Finding, ...]
    quantized_nodes: tuple[str, ...] | None
    restored: tuple[str, ...] | None
    filled: Mapping[str, float] | None


@dataclass(frozen=True)
class TunedModel(Printed):
    """The result of tuning.

    Attributes:
        goal: What the result had to keep, in words.
        metric: The metric's name.
        unit: The unit of the metric: ``%``, ``dB``, or empty for its own.
        fits: Whether it does, on the samples that it was tuned on.
        verdict: What the samples that judge say of it; ``missed`` where it does not fit.
        complete: Whether everything was tried; false where the time was over.
        accuracy: The comparison with FP32 on samples that the search did not use.
        trials: What was tried, in order.
        chosen: The index of the result in ``trials``.
        keep_float: Nodes that stay in float.
        modules: Names of these nodes to the modules of PyTorch that they come from, where these are known.
        remedies: How weights were changed.
        float_cost: The share of the arithmetic that stays in float, in [0, 1].
        speed: The estimated times, and what was tried for them; null without ``--speed``.
        files: The files that were written.
    """

    goal: str
    metric: str
    unit: str
    fits: bool
    verdict: Verdict
    complete: bool
    accuracy: Accuracy
    trials: tuple[Trial, ...]
    chosen: int
    keep_float: tuple[str, ...]
    modules: Mapping[str, str]
    remedies: tuple[str, ...]
    float_cost: float
    speed: SpeedPlan | None
    files: Written


@dataclass(frozen=True)
class Measurements(Printed):
    """A benchmark.

    Attributes:
        gpu: Name of the GPU.
        inputs: The data that engines were fed with, or ``random``.
        reports: One entry per engine.
    """

    gpu: str
    inputs: str
    reports: tuple[BenchReport, ...]


@dataclass(frozen=True)
class ShownTable(Printed):
    """A calibration table.

    Attributes:
        method: How the ranges were chosen.
        choice: What ``auto`` tried; null for other methods.
        float_layers: The layers that stay in float because that gains accuracy; null where none were looked
            for.
        losses: Tensor whose range loses more than it should, to what it loses.
        provenance: What the table was made from.
        cache: What a TensorRT calibration cache says of itself; null for other formats.
        amax: Tensor to range.
    """

    method: str
    choice: RangeChoice | None
    float_layers: FloatLayers | None
    losses: Mapping[str, RangeLoss]
    provenance: Provenance
    cache: Mapping[str, str] | None
    amax: Mapping[str, float]


@dataclass(frozen=True)
class RangeDifference:
    """One tensor's range in two tables.

    Attributes:
        tensor: The tensor.
        first: Its range in the first table; null where it has none.
        second: Its range in the second table; null where it has none.
        ratio: The larger over the smaller one; null where one is missing or zero.
    """

    tensor: str
    first: float | None
    second: float | None
    ratio: float


@dataclass(frozen=True)
class OutputSummary:
    """One output of a run.

    Attributes:
        shape: Its shape, samples first.
        dtype: NumPy's name of its type.
        min: The least value; only where there are values.
        max: The largest value; only where there are values.
    """

    shape: tuple[int, ...]
    dtype: str
    min: float = 0.0
    max: float = 0.0


@dataclass(frozen=True)
class Run(Printed):
    """A run of an engine.

    Attributes:
        written: The file that was written.
        outputs: Output to what it holds.
    """

    written: str
    outputs: Mapping[str, OutputSummary]


#: Verb to the type of what it prints.
OUTPUTS: dict[str, Any] = {
    "doctor": Mapping[str, str | list[str] | Mapping[str, bool]],
    "calibrate": Calibrated,
    "quantize": Quantized,
    "migrate": MigratedModel,
    "deploy": Deployed,
    "lint": Linted,
    "build": Built,
    "validate": Accuracy,
    "sensitivity": Sensitivity,
    "tune": TunedModel,
    "run": Run,
    "bench": Measurements,
    "audit": Audit,
    "compare": RunComparison,
    "table show": ShownTable,
    "table diff": tuple[RangeDifference, ...],
}

#: Types of verbs that are fields of other types as well.
_USED_WITHIN = {"Accuracy"}

_PLAIN = {str: "string", bool: "boolean", int: "integer", type(None): "null"}


def schema() -> dict[str, Any]:
    """The JSON schema of all verbs: one definition per verb, and those of the types that they have."""
    definitions: dict[str, Any] = {}
    verbs = {verb: _schema_of(kind, definitions) for verb, kind in OUTPUTS.items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What trtint8 prints with --json",
        "$defs": {**definitions, **{f"verb {verb}": found for verb, found in verbs.items()}},
    }


def _schema_of(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema of a type as :func:`calibrators.records.as_json` gives it."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _schema_of(arguments[0], definitions)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_schema_of(argument, definitions) for argument in arguments]}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (tuple, list, frozenset):
        return {"type": "array", "items": _schema_of(arguments[0], definitions)}
    if origin is not None:  # a mapping
        return {"type": "object", "additionalProperties": _schema_of(arguments[1], definitions)}
    if kind in _PLAIN:
        return {"type": _PLAIN[kind]}
    if kind is float:
        return {"type": ["number", "null"]}  # null where it is not finite
    if kind in (Path, Fraction) or issubclass(kind, Enum):
        return {"type": "string"}
    assert dataclasses.is_dataclass(kind), kind
    if kind.__name__ not in definitions:
        definitions[kind.__name__] = {}  # a type may have itself as a field
        definitions[kind.__name__] = _object_schema(kind, definitions)
    return {"$ref": f"#/$defs/{kind.__name__}"}


def _object_schema(kind: type, definitions: dict[str, Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(kind, include_extras=True)
    described = descriptions(kind)
    fields = dataclasses.fields(kind)
    names = [field.name for field in fields]
    properties = {name: _schema_of(hints[name], definitions) for name in names}
    required = names
    for name in getattr(kind, "_also_in_json", ()):
        found = getattr(kind, name).fget
        properties[name] = _schema_of(typing.get_type_hints(found)["return"], definitions)
        described[name] = _plain_text((found.__doc__ or "").strip().split("\n\n")[0])
        required = [*required, name]
    if kind is Measure:
        for name in ("value", "reference"):
            properties[name]["anyOf"].append({"enum": ["inf", "-inf"]})
    elif kind.__module__ == __name__:
        required = [field.name for field in fields if field.default is dataclasses.MISSING]
    for name, found in properties.items():
        if name in described:
            found["description"] = described[name]
    return {
        "type": "object",
        "description": (kind.__doc__ or "").strip().split("\n")[0],
        "properties": properties,
        "required": required,
    }


def descriptions(kind: type) -> dict[str, str]:
    """Field to its description, from the docstrings of a class and of those that it extends."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        parsed = griffe.Docstring(base.__doc__ or "", lineno=1).parse("google", warnings=False)
        for part in parsed:
            if part.kind is griffe.DocstringSectionKind.attributes:
                found |= {item.name: _plain_text(item.description) for item in part.value}
    return found


def _plain_text(description: str) -> str:
    """A description on one line, without the roles of Sphinx."""
    text = re.sub(r":\w+:`~?([^`]*)`", r"``\1``", " ".join(description.split()))
    return re.sub(r"\bNone\b", "null", text)


def tables() -> Iterator[str]:
    """One section per verb and one per type that verbs share, as lines of Markdown."""
    definitions = schema()["$defs"]
    for verb in OUTPUTS:
        yield from ["", f"## {verb} {{ #{verb.replace(' ', '-')} }}", ""]
        found = definitions[f"verb {verb}"]
        name = found.get("$ref", "").rsplit("/")[-1]
        if name:
            yield from _table(definitions[name])
        else:
            yield f"{_type_in_words(found)}."
    own = {f"verb {verb}" for verb in OUTPUTS}
    own |= {getattr(kind, "__name__", "") for kind in OUTPUTS.values()} - _USED_WITHIN
    yield from ["", "## Types { #types }"]
    for name in sorted(definitions.keys() - own):
        yield from ["", f"### {name} {{ #{name.lower()} }}", ""]
        yield from _table(definitions[name])


def _table(definition: dict[str, Any]) -> Iterator[str]:
    yield from [definition["description"], "", "| field | type | meaning |", "|---|---|---|"]
    for name, found in definition["properties"].items():
        text = found.get("description", "").replace("|", "\\|").replace("``", "`")
        yield f"| `{name}` | {_type_in_words(found)} | {text} |"


def _type_in_words(found: dict[str, Any]) -> str:
    """The type of a field, with links to the types that it has."""
    if "$ref" in found:
        name = found["$ref"].rsplit("/")[-1]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in found:
        return " or ".join(_type_in_words(option) for option in found["anyOf"])
    if "enum" in found:
        return " or ".join(f"`{json.dumps(value)}`" for value in found["enum"])
    if found["type"] == "array":
        return f"list of {_type_in_words(found['items'])}"
    if found["type"] == "object":
        return f"object of {_type_in_words(found['additionalProperties'])}"
    return found["type"] if isinstance(found["type"], str) else " or ".join(found["type"])


def makeExtension() -> Place:  # noqa: N802 - the name that Python-Markdown calls
    """Returns the extension that fills in the tables."""
    return Place(PLACE, tables)
