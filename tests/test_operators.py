"""What an operator is stands in one table: every operator that the code names has its row there alone."""

import ast
import functools
from pathlib import Path

import onnx
import pytest

from calibrators.operators import OPERATORS

ROOT = Path(__file__).parents[1]
TABLE = "calibrators/operators.py"
MODULES = sorted(
    path.relative_to(ROOT).as_posix()
    for package in ("trtint8", "calibrators")
    for path in (ROOT / package).rglob("*.py")
)
ROWS = {name for _, name in OPERATORS}
NAMES = ROWS | {schema.name for schema in onnx.defs.get_all_schemas_with_history() if not schema.domain}

#: Modules with functions or forms by operator: how each is rewritten, computed or differentiated.
REGISTRIES = {
    "trtint8/equalization/following/follow.py",
    "trtint8/interop/integer_models.py",
    "trtint8/models/opset.py",
    "trtint8/models/passes/fold_constants.py",
    "trtint8/models/samples/separate.py",
    "trtint8/quantization/float16_magnitudes.py",
    "trtint8/sensitivity/gradients/elementwise.py",
    "trtint8/sensitivity/gradients/movement.py",
    "trtint8/sensitivity/gradients/backward.py",
}

#: Modules that hold what a TensorRT does, or another backend: targets, arithmetics, and names of kernels.
OF_TENSORRT = {
    "trtint8/engine/kernels.py",
    "trtint8/quantization/config.py",
    "trtint8/quantization/targets.py",
}

#: From how many operators on a literal is a table.
A_TABLE = 3


@functools.cache
def tree(module):
    return ast.parse((ROOT / module).read_text())


def named(node):
    """The operator that an element or a key names, alone or behind its domain."""
    if isinstance(node, ast.Tuple) and len(node.elts) == 2:
        node = node.elts[1]
    return node.value if isinstance(node, ast.Constant) and node.value in NAMES else None


def tables(parsed):
    """The lines of the tables of operators, each with whether it is of functions or forms."""
    found = []
    for node in ast.walk(parsed):
        if isinstance(node, ast.Set | ast.Tuple | ast.List):
            elements, registry = node.elts, False
        elif isinstance(node, ast.Dict):
            elements = [key for key in node.keys if key is not None]
            registry = not any(isinstance(value, ast.Constant) for value in node.values)
        else:
            continue
        if sum(named(element) is not None for element in elements) >= A_TABLE:
            found.append((node.lineno, registry))
    return found


def test_every_operator_that_the_code_names_has_a_row():
    literals = {
        node.value
        for module in MODULES
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Constant) and node.value in NAMES
    }
    assert len(literals) > 100
    assert literals <= ROWS


def test_only_the_table_says_what_operators_are():
    found = {module: tables(tree(module)) for module in MODULES if module not in {TABLE, *OF_TENSORRT}}
    assert {module for module, lines in found.items() if lines} == REGISTRIES
    assert not {
        f"{module}:{line}" for module in REGISTRIES for line, registry in found[module] if not registry
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('_MOVING = frozenset({"Reshape", "Squeeze", "Identity"})', [(1, False)]),
        ('x in ("Conv", "Gemm", "MatMul")', [(1, False)]),
        ('{("", "Conv"): 0, ("", "Gemm"): 1, ("", "MatMul"): 2}', [(1, False)]),
        ('{"Add": add, "Mul": lambda x: x, "Sub": rule(1)}', [(1, True)]),
        ('("Clip", "Relu")', []),
        ('("one", "two", "three", "Relu")', []),
    ],
)
def test_a_table_elsewhere_would_be_found(text, expected):
    assert tables(ast.parse(text)) == expected
