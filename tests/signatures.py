"""Which members of TensorRT's classes our code uses, with how many arguments: read from the code itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from calibrators.errors import UnsupportedError

ROOT = Path(__file__).parents[1]
PACKAGES = ("calibrators", "trtint8")

#: File, or "file:function" where a name means something else elsewhere, to variable and TensorRT class.
VARIABLES = {
    "trtint8/builder/build.py": {
        "builder": "Builder",
        "config": "IBuilderConfig",
        "self.network": "INetworkDefinition",
        "self.parser": "OnnxParser",
    },
    "trtint8/builder/build.py:new_profile": {"profile": "IOptimizationProfile"},
    "trtint8/builder/build.py:check_shape_values": {
        "network": "INetworkDefinition",
        "inputs[name]": "ITensor",
        "tensor": "ITensor",
    },
    "trtint8/builder/build.py:_raise_error": {"error": "ParserError"},
    "trtint8/builder/build.py:reason_of": {"error": "ParserError"},
    "trtint8/builder/refusals.py": {"parser": "OnnxParser", "error": "ParserError"},
    "trtint8/builder/config.py": {
        "builder": "Builder",
        "config": "IBuilderConfig",
        "timing_cache": "ITimingCache",
    },
    "trtint8/builder/dynamic_ranges.py": {"network": "INetworkDefinition", "tensor": "ITensor"},
    "trtint8/builder/dynamic_ranges.py:read_network": {"layer": "ILayer"},
    "trtint8/builder/dynamic_ranges.py:_tensors": {"layer": "ILayer"},
    "trtint8/builder/implicit.py": {
        "network": "INetworkDefinition",
        "config": "IBuilderConfig",
        "layer": "ILayer",
        "tensor": "ITensor",
        "tensors[name]": "ITensor",
    },
    "trtint8/runtime/context.py": {"self._raw": "IExecutionContext"},
    "trtint8/runtime/context.py:__init__": {"raw": "IExecutionContext"},
    "trtint8/engine/plan.py": {"runtime": "Runtime", "engine": "ICudaEngine", "inspector": "EngineInspector"},
    "calibrators/tensorrt/plugins.py": {"owner": "Builder", "registry": "IPluginRegistry"},
    "calibrators/tensorrt/messages.py": {"severity": "ILogger.Severity"},
    "trtint8/runtime/refit.py": {"refitter": "Refitter", "engine.raw": "ICudaEngine"},
    "trtint8/runtime/bindings.py": {"engine": "ICudaEngine"},
    "trtint8/runtime/engine.py:load": {"runtime": "Runtime", "self._cache": "IRuntimeCache"},
    "trtint8/runtime/engine.py": {"raw": "ICudaEngine", "config": "IRuntimeConfig"},
    "trtint8/runtime/engine.py:save": {"self._cache": "IRuntimeCache"},
    "trtint8/runtime/engine.py:_new_raw_context": {"self.raw": "ICudaEngine"},
}

#: Member, class, or member with a number of arguments, to what says whether it is there: a property of a
#: Flavor, or a feature that it requires.
GATED = {
    "BuilderFlag.BF16": "bf16",
    "BuilderFlag.FP16": "implicit_int8",
    "BuilderFlag.INT8": "implicit_int8",
    "BuilderFlag.OBEY_PRECISION_CONSTRAINTS": "implicit_int8",
    "BuilderFlag.PREFER_PRECISION_CONSTRAINTS": "implicit_int8",
    "BuilderFlag.STRIP_PLAN": "strip_plan",
    "ComputeCapability": "has_compute_capabilities",
    "IBuilderConfig.int8_calibrator": "implicit_int8",
    "IBuilderConfig.num_compute_capabilities": "has_compute_capabilities",
    "IBuilderConfig.progress_monitor": "has_progress_monitor",
    "IBuilderConfig.set_calibration_profile": "implicit_int8",
    "IBuilderConfig.set_compute_capability": "has_compute_capabilities",
    "IBuilderConfig.set_quantization_flag": "implicit_int8",
    "IInt8Calibrator": "implicit_int8",
    "ICudaEngine.create_execution_context(1)": "runtime_cache",
    "ICudaEngine.create_runtime_config": "runtime_cache",
    "IRuntimeCache": "runtime_cache",
    "IRuntimeConfig": "runtime_cache",
    "ILayer.precision": "implicit_int8",
    "INetworkDefinition.get_flag": "tells_strong_types",
    "NetworkDefinitionCreationFlag.STRONGLY_TYPED": "tells_strong_types",
    "ILayer.set_output_type": "implicit_int8",
    "IProgressMonitor": "has_progress_monitor",
    "ITensor.set_dynamic_range": "implicit_int8",
    "NetworkDefinitionCreationFlag.EXPLICIT_BATCH": "explicit_batch_flag",
    "ParserError.node_name": "names_failing_nodes",
    "ParserError.node_operator": "names_failing_nodes",
    "PreviewFeature.PROFILE_SHARING_0806": "shares_profiles_on_request",
    "QuantizationFlag": "implicit_int8",
    "Weights(3)": "takes_weights_by_address",
}
#: Still there for a while after the property stopped saying so.
LINGERING = {"explicit_batch_flag", "shares_profiles_on_request", "runtime_cache"}


@dataclass(frozen=True)
class Use:
    """One use of a member.

    Attributes:
        owner: The class, or "" for the module's own.
        member: Its attribute.
        arguments: How many arguments it is called with; None where it is not called.
        place: File and line.
        keywords: The names of those arguments that are given by name.
        row: File and variable, as in ``VARIABLES``; "" for the module's own.
    """

    owner: str
    member: str
    arguments: int | None
    place: str
    keywords: tuple[str, ...] = ()
    row: str = ""


@cache
def collect() -> list[Use]:
    """Every use in both packages."""
    uses = []
    for path in sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        file = path.relative_to(ROOT).as_posix()
        uses += _visit(ast.parse(path.read_text()), file, _rows(file))
    return uses


def dead_rows(uses: list[Use]) -> set[str]:
    """What the tables speak of and the code no longer does: since then something is not looked at."""
    rows = {f"{key} {variable}" for key, variables in VARIABLES.items() for variable in variables}
    names = {
        name
        for use in uses
        for member in (use.member, f"{use.owner}.{use.member}")
        for name in (use.owner, member, f"{member}({use.arguments})")
    }
    return rows - {use.row for use in uses} | GATED.keys() - names


def _rows(key: str) -> dict[str, tuple[str, str]]:
    """Variable to class and row."""
    return {name: (owner, f"{key} {name}") for name, owner in VARIABLES.get(key, {}).items()}


def _visit(tree: ast.AST, file: str, variables: dict[str, tuple[str, str]]) -> list[Use]:
    uses = []
    for node in ast.iter_child_nodes(tree):
        inner = variables
        if isinstance(node, ast.FunctionDef):
            inner = {**variables, **_rows(f"{file}:{node.name}")}
        found = None
        if isinstance(node, ast.Call):
            found = _flag(node, file) or _use(node.func, file, inner, node)
        elif isinstance(node, ast.Attribute):
            found = _use(node, file, inner, None)
        uses += [found] if found else []
        uses += _visit(node, file, inner)
    return uses


def _flag(call: ast.Call, file: str) -> Use | None:
    """A builder flag that is given by its name."""
    if isinstance(call.func, ast.Name) and call.func.id in ("set_flag", "_flag"):
        name = call.args[2 if call.func.id == "set_flag" else 1]
        if isinstance(name, ast.Constant):
            return Use("BuilderFlag", name.value, None, f"{file}:{call.lineno}")
    return None


def _use(
    node: ast.expr, file: str, variables: dict[str, tuple[str, str]], call: ast.Call | None
) -> Use | None:
    if not isinstance(node, ast.Attribute) or node.attr.startswith("__"):
        return None
    owner = ast.unparse(node.value)
    owner, row = variables.get(owner, (owner, ""))
    if not row:
        if owner not in ("trt", "flavor.module") and not owner.startswith("trt."):
            return None
        owner = owner.removeprefix("flavor.module").removeprefix("trt").removeprefix(".")
    keywords = tuple(keyword.arg or "**" for keyword in call.keywords) if call else ()
    arguments = len(call.args) + len(keywords) if call else None
    return Use(owner, node.attr, arguments, f"{file}:{node.lineno}", keywords, row)


def problems(module: object, flavor: object, uses: Iterable[Use]) -> list[str]:
    """What is wrong with uses in these bindings."""
    return [found for use in uses if (found := problem(module, flavor, use)) is not None]


def problem(module: object, flavor: object, use: Use) -> str | None:
    """What is wrong with a use in these bindings; None where nothing is."""
    name = ".".join(filter(None, (use.owner, use.member)))
    with_arguments = f"{name}({use.arguments})"
    gate = next((GATED[key] for key in (with_arguments, name, use.owner) if key in GATED), None)
    expected = gate is None or _has(flavor, gate)
    found = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is None:
        return f"{use.place}: there is no {name}" if expected else None
    if not expected and with_arguments in GATED and _call_problem(found, name, use):
        return None
    if not expected and gate not in LINGERING:
        return f"{use.place}: {name} is there, though {gate} says no"
    return None if use.arguments is None else _call_problem(found, name, use)


def _call_problem(found: object, name: str, use: Use) -> str | None:
    function = found.__init__ if isinstance(found, type) else found
    counts = accepted_arguments(function)
    if not any(low <= use.arguments <= high for low, high in counts):
        return f"{use.place}: {name} takes {counts} arguments, not {use.arguments}"
    for keyword in use.keywords:
        if not any(keyword in names for names in parameter_names(function)):
            return f"{use.place}: {name} has no parameter {keyword}"
    return None


def _has(flavor: object, gate: str) -> bool:
    if hasattr(type(flavor), gate):
        return getattr(flavor, gate)
    try:
        flavor.require(gate)
    except UnsupportedError:
        return False
    return True


def accepted_arguments(function: object) -> list[tuple[int, int]]:
    """Least and largest number of arguments besides ``self``, an entry an overload."""
    return [(sum("=" not in p for p in overload), len(overload)) for overload in _overloads(function)]


def parameter_names(function: object) -> list[list[str]]:
    """The parameters' names besides ``self``, an entry an overload."""
    return [[p.split(":")[0].split("=")[0].strip() for p in overload] for overload in _overloads(function)]


def _overloads(function: object) -> list[list[str]]:
    """The parameters besides ``self`` as the docstring has them: all that the bindings tell."""
    name = getattr(function, "__name__", "")
    lines = re.findall(
        rf"^(?:\d+\. )?{re.escape(name)}\((.*)\)(?: ->.*)?$", function.__doc__ or "", re.MULTILINE
    )
    return [
        [p for p in _split(line) if not re.match(r"self\b", p)] for line in lines if line != "*args, **kwargs"
    ]


def _split(line: str) -> list[str]:
    parts, depth = [""], 0
    for character in line:
        depth += (character in "[(<") - (character in "])>")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]
