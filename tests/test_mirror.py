"""Tests stand where the code stands: trtint8/a/b.py is tested in tests/trtint8/a/test_b.py."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]


def has_behaviour(path):
    """Whether a module computes anything: not one that only re-exports, declares or names."""
    tree = ast.parse(path.read_text())
    return any(not _is_declared_only(node) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def _is_declared_only(function):
    """Whether a function's body is no more than a docstring and an ellipsis, as in protocols."""
    return all(
        isinstance(statement, ast.Pass)
        or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
        for statement in function.body
    )


def modules():
    """The modules of both packages that compute something, as paths from the root."""
    return {
        path.relative_to(ROOT)
        for package in ("trtint8", "calibrators")
        for path in (ROOT / package).rglob("*.py")
        if path.name != "__init__.py" and has_behaviour(path)
    }


def test_every_module_has_a_test_file_of_its_own():
    without = {
        module.as_posix()
        for module in modules()
        if not (ROOT / "tests" / module.parent / f"test_{module.name}").is_file()
    }
    assert not without


def test_modules_that_only_declare_need_none():
    assert not has_behaviour(ROOT / "calibrators/cuda/device.py")
    assert has_behaviour(ROOT / "calibrators/files.py")
    assert len(modules()) > 150


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
