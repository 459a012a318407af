"""The rules of the house: who may import whom.

A package is a floor: it may import what stands below it in ``FLOORS``, never what stands above.
"""

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

#: From the top down. What is not a package of its own is a module.
FLOORS = (
    "trtint8.__main__",
    "trtint8.cli",
    "trtint8.api",
    "trtint8.int8_engine",
    "trtint8.built_files",
    "trtint8.deployment",
    "trtint8.report",
    "trtint8.tuning",
    "trtint8.equalization",
    "trtint8.calibration",
    "trtint8.range_choice",
    "trtint8.sensitivity",
    "trtint8.validation",
    "trtint8.runtime",
    "trtint8.auditing",
    "trtint8.builder",
    "trtint8.engine",
    "trtint8.simulation",
    "trtint8.arithmetic",
    "trtint8.interop",
    "trtint8.quantization",
    "trtint8.models",
    "trtint8.data",
    "trtint8.version",
    "calibrators.run",
    "calibrators.ray",
    "calibrators.tensorrt",
    "calibrators.host",
    "calibrators.tables",
    "calibrators.data",
    "calibrators.display",
    "calibrators.histograms",
    "calibrators.cuda",
    "calibrators.progress",
    "calibrators.files",
    "calibrators.records",
    "calibrators.checks",
    "calibrators.imports",
    "calibrators.interruption",
    "calibrators.operators",
    "calibrators.errors",
)


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {
    module_name(path): path
    for package in ("trtint8", "calibrators")
    for path in (ROOT / package).rglob("*.py")
}


def imported_by(name):
    """Modules that a module imports anywhere: in functions, and for type checkers too."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.fixture(scope="module")
def imports():
    """Each module with what it imports."""
    return {name: imported_by(name) for name in MODULES}


def floor(name):
    """Index of a module's floor; None for the two packages themselves, which stand outside."""
    return next(
        (level for level, package in enumerate(FLOORS) if name == package or name.startswith(f"{package}.")),
        None,
    )


def test_every_module_stands_on_a_floor():
    assert {name for name in MODULES if floor(name) is None} == {"trtint8", "calibrators"}


def test_a_floor_imports_only_what_stands_below_it(imports):
    floors = {name: level for name in MODULES if (level := floor(name)) is not None}
    assert not {
        f"{name} imports {target}"
        for name, level in floors.items()
        for target in imports[name]
        if floors.get(target, level) < level
    }


def test_there_are_no_import_cycles(imports):
    # A package's own file re-exports: what its parts import of it counts as importing the parts.
    graph = {
        name: {target for target in targets if target in MODULES and target != name}
        for name, targets in imports.items()
    }
    assert len(list(TopologicalSorter(graph).static_order())) == len(MODULES) > 80


def test_calibrators_import_nothing_of_trtint8(imports):
    assert not {
        f"{name} imports {target}"
        for name, targets in imports.items()
        if name.startswith("calibrators")
        for target in targets
        if target.split(".")[0] == "trtint8"
    }


def test_only_flavor_imports_tensorrt(imports):
    importers = {name for name, targets in imports.items() if {"tensorrt", "tensorrt_rtx"} & targets}
    assert importers == set()
    text = MODULES["calibrators.tensorrt.flavor"].read_text()
    assert '"tensorrt_rtx"' in text
    for name, path in MODULES.items():
        source = path.read_text()
        assert "hasattr(trt" not in source, name
        assert "trt.__version__" not in source, name


def test_calibration_on_the_cpu_needs_no_gpu_stack(imports):
    reached = set()
    waiting = ["calibrators.host.observer", "calibrators.data.opening", "calibrators.tables.table"]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += [target for target in imports[name] if target in MODULES]
    assert not [name for name in reached if name.startswith(("calibrators.cuda", "calibrators.tensorrt"))]


def test_only_the_run_options_know_of_ray(imports):
    """Besides the public name and the option of the command line."""
    assert {
        name
        for name, targets in imports.items()
        if not name.startswith("calibrators.ray")
        and any(target.startswith("calibrators.ray") for target in targets)
    } == {"calibrators.run", "trtint8.cli.verbs"}


def test_sessions_of_onnx_runtime_are_made_in_one_place():
    makers = {name for name, path in MODULES.items() if "InferenceSession(" in path.read_text()}
    assert makers == {"calibrators.host.session"}


def test_int8_is_simulated_in_one_place(imports):
    pieces = {f"trtint8.quantization.qdq.{name}" for name in ("insert_qdq", "make_pair", "rounded_weights")}
    users = {name for name, targets in imports.items() if targets & pieces}
    assert {".".join(name.split(".")[:2]) for name in users} == {"trtint8.quantization", "trtint8.simulation"}
    pairs = re.compile(r"(Node|node|op)\(\s*(\"\", *)?\"QuantizeLinear")
    makers = {name for name, path in MODULES.items() if pairs.search(path.read_text())}
    # Models that others quantized are mended where they are read.
    assert {name for name in makers if floor(name) != FLOORS.index("trtint8.interop")} == {
        "trtint8.quantization.qdq"
    }


def test_users_are_warned_in_one_place():
    calls = re.compile(r"warnings\.warn(_explicit)?\(")
    assert {name for name, path in MODULES.items() if calls.search(path.read_text())} == {
        "calibrators.checks"
    }


def test_no_test_file_is_imported_by_another():
    importers = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith("tests.")
        and (node.module or "").rsplit(".", 1)[1].startswith("test_")
    }
    assert not importers
