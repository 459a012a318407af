"""Which members of TensorRT's classes our code uses, with how many arguments: read from the code itself."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "trtint8"

#: File, or "file:function" where a name means something else elsewhere, to variable and TensorRT class.
VARIABLES = {
    "builder.py": {
        "builder": "Builder",
        "config": "IBuilderConfig",
        "network": "INetworkDefinition",
        "parser": "OnnxParser",
        "memory": "IHostMemory",
    },
    "builder.py:_profile": {"profile": "IOptimizationProfile"},
    "builder.py:_raise_parser_error": {"error": "ParserError"},
    "build_config.py": {"builder": "Builder", "config": "IBuilderConfig"},
    "capabilities.py": {"config": "IBuilderConfig"},
    "dynamic_ranges.py": {"network": "INetworkDefinition", "tensor": "ITensor"},
    "dynamic_ranges.py:_constant_amax": {"layer": "IConstantLayer"},
    "dynamic_ranges.py:read_layers": {"layer": "ILayer"},
    "dynamic_ranges.py:set_ranges": {"layer": "ILayer"},
    "implicit.py": {"network": "INetworkDefinition", "config": "IBuilderConfig"},
    "inspection.py": {"runtime": "Runtime", "engine": "ICudaEngine", "inspector": "EngineInspector"},
    "precisions.py": {
        "network": "INetworkDefinition",
        "config": "IBuilderConfig",
        "layer": "ILayer",
        "tensor": "ITensor",
        "flags": "BuilderFlag",
    },
    "refit.py": {"refitter": "Refitter", "engine.raw": "ICudaEngine"},
    "runtime.py:_bindings": {"engine": "ICudaEngine"},
    "runtime.py:load": {"runtime": "Runtime"},
    "runtime.py:new_context": {"self.raw": "ICudaEngine"},
    "execution.py": {"self._context": "IExecutionContext"},
    "timing_cache.py": {"config": "IBuilderConfig", "timing_cache": "ITimingCache"},
}

#: Member, or class, to the property of a Flavor that says whether it is there.
GATED = {
    "BuilderFlag.OBEY_PRECISION_CONSTRAINTS": "implicit_int8",
    "BuilderFlag.PREFER_PRECISION_CONSTRAINTS": "implicit_int8",
    "ComputeCapability": "has_compute_capabilities",
    "IBuilderConfig.int8_calibrator": "implicit_int8",
    "IBuilderConfig.num_compute_capabilities": "has_compute_capabilities",
    "IBuilderConfig.progress_monitor": "has_progress_monitor",
    "IBuilderConfig.set_calibration_profile": "implicit_int8",
    "IBuilderConfig.set_compute_capability": "has_compute_capabilities",
    "IBuilderConfig.set_quantization_flag": "implicit_int8",
    "IInt8Calibrator": "implicit_int8",
    "ILayer.precision": "implicit_int8",
    "ILayer.set_output_type": "implicit_int8",
    "IProgressMonitor": "has_progress_monitor",
    "ITensor.set_dynamic_range": "implicit_int8",
    "NetworkDefinitionCreationFlag.EXPLICIT_BATCH": "explicit_batch_flag",
    "ParserError.node_name": "names_failing_nodes",
    "ParserError.node_operator": "names_failing_nodes",
    "PreviewFeature.PROFILE_SHARING_0806": "shares_profiles_on_request",
    "QuantizationFlag": "implicit_int8",
}
#: Still there for a while after the property stopped saying so.
LINGERING = {"explicit_batch_flag", "shares_profiles_on_request"}


@dataclass(frozen=True)
class Use:
    """One use of a member.

    Attributes:
        owner: The class, or "" for the module's own.
        member: Its attribute.
        arguments: How many arguments it is called with; None where it is not called.
        place: File and line.
    """

    owner: str
    member: str
    arguments: int | None
    place: str


def collect() -> list[Use]:
    """Every use in the package."""
    uses = []
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        uses += _visit(tree, path.name, VARIABLES.get(path.name, {}))
    return uses


def _visit(tree: ast.AST, file: str, variables: dict[str, str]) -> list[Use]:
    uses = []
    for node in ast.iter_child_nodes(tree):
        inner = variables
        if isinstance(node, ast.FunctionDef):
            inner = {**variables, **VARIABLES.get(f"{file}:{node.name}", {})}
        found = None
        if isinstance(node, ast.Call):
            found = _use(node.func, file, inner, len(node.args) + len(node.keywords))
        elif isinstance(node, ast.Attribute):
            found = _use(node, file, inner, None)
        uses += [found] if found else []
        uses += _visit(node, file, inner)
    return uses


def _use(node: ast.expr, file: str, variables: dict[str, str], arguments: int | None) -> Use | None:
    if not isinstance(node, ast.Attribute) or node.attr.startswith("__"):
        return None
    owner = ast.unparse(node.value)
    place = f"{file}:{node.lineno}"
    if owner in variables:
        return Use(variables[owner], node.attr, arguments, place)
    if owner in ("trt", "flavor.module"):
        return Use("", node.attr, arguments, place)
    if owner.startswith("trt."):
        return Use(owner.removeprefix("trt."), node.attr, arguments, place)
    return None


def problem(module: object, flavor: object, use: Use) -> str | None:
    """What is wrong with a use in these bindings; None where nothing is."""
    name = ".".join(filter(None, (use.owner, use.member)))
    gate = next((GATED[key] for key in (name, use.owner) if key in GATED), None)
    expected = gate is None or getattr(flavor, gate)
    found = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is None:
        return f"{use.place}: there is no {name}" if expected else None
    if not expected and gate not in LINGERING:
        return f"{use.place}: {name} is there, though {gate} says no"
    if use.arguments is not None and not isinstance(found, type):
        counts = accepted_arguments(found)
        if counts and not any(low <= use.arguments <= high for low, high in counts):
            return f"{use.place}: {name} takes {counts} arguments, not {use.arguments}"
    return None


def accepted_arguments(function: object) -> list[tuple[int, int]]:
    """Least and largest number of arguments besides ``self``, an entry an overload, from the docstring."""
    name = getattr(function, "__name__", "")
    lines = re.findall(
        rf"^(?:\d+\. )?{re.escape(name)}\((.*)\)(?: ->.*)?$", function.__doc__ or "", re.MULTILINE
    )
    counts = []
    for line in lines:
        if line == "*args, **kwargs":
            continue
        parameters = [p for p in _split(line) if not p.startswith("self")]
        counts.append((sum("=" not in p for p in parameters), len(parameters)))
    return counts


def _split(line: str) -> list[str]:
    parts, depth = [""], 0
    for character in line:
        depth += (character in "[(<") - (character in "])>")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]
