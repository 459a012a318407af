"""The rules of the house: who may import whom."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {
    module_name(path): path
    for package in ("trtint8", "calibrators")
    for path in (ROOT / package).rglob("*.py")
}


def imported_by(name):
    """Modules that a module imports anywhere, functions included."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


IMPORTS = {name: imported_by(name) for name in MODULES}


def test_there_are_no_import_cycles():
    # A package's own file re-exports: what its parts import of it counts as importing the parts.
    graph = {
        name: {target for target in targets if target in MODULES and target != name}
        for name, targets in IMPORTS.items()
    }
    assert len(list(TopologicalSorter(graph).static_order())) == len(MODULES) > 80


def test_only_flavor_imports_tensorrt():
    importers = {name for name, targets in IMPORTS.items() if {"tensorrt", "tensorrt_rtx"} & targets}
    assert importers == set()
    text = MODULES["trtint8.flavor"].read_text()
    assert '"tensorrt_rtx"' in text
    for name, path in MODULES.items():
        source = path.read_text()
        assert "hasattr(trt" not in source, name
        assert "trt.__version__" not in source, name


def test_calibrators_use_only_two_rooms_of_trtint8():
    used = {
        target
        for name, targets in IMPORTS.items()
        if name.startswith("calibrators")
        for target in targets & set(MODULES)
        if target.startswith("trtint8")
    }
    assert used <= {"trtint8", "trtint8.cuda", "trtint8.flavor"}


def test_calibration_on_the_cpu_needs_no_gpu_stack():
    reached, waiting = set(), ["calibrators.host", "calibrators.batches", "calibrators.table"]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += [target for target in IMPORTS[name] if target in MODULES]
    assert not [name for name in reached if name.startswith("trtint8")]


def test_sessions_of_onnx_runtime_are_made_in_one_place():
    makers = {name for name, path in MODULES.items() if "InferenceSession(" in path.read_text()}
    assert makers == {"calibrators.onnx_session"}
