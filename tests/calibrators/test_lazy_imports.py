"""Modules that are loaded when they are used."""

import importlib.util
import subprocess
import sys

import pytest

pytest.importorskip("sympy", reason="SymPy is not installed")


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("onnx_ir._symbolic_shapes") is None,
    reason="this onnx-ir computes symbolic shapes elsewhere, or not at all",
)
def test_onnx_ir_loads_no_sympy_until_it_computes_with_shapes():
    script = """
import sys
from calibrators.imports import import_lazily
finders = len(sys.meta_path)
import_lazily()
import_lazily()
assert len(sys.meta_path) == finders + 1
import onnx_ir
print("sympy.core" in sys.modules)
print(onnx_ir.SymbolicDim("N") + 1)
print("sympy.core" in sys.modules)
import sympy
print(sympy.Integer(2) + 3, sympy.core.Integer(4))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["False", "N + 1", "True", "5 4"]
