"""Docstrings refer to what exists."""

import importlib
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]

_REFERENCE = re.compile(r":(?:func|class|mod|data|meth|attr):`~?((?:trtint8|calibrators)[\w.]*)`")


def exists(name):
    """Whether a dotted name is a module, or something in one."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


def references():
    return {
        (path.relative_to(ROOT).as_posix(), match[1])
        for folder in ("trtint8", "calibrators", "scripts")
        for path in (ROOT / folder).rglob("*.py")
        for match in _REFERENCE.finditer(path.read_text())
    }


def test_references_of_docstrings_resolve():
    found = references()
    assert len(found) > 40
    assert not {(file, name) for file, name in found if not exists(name)}


def test_a_name_that_is_not_there_is_found():
    assert exists("trtint8.calibrate") and exists("calibrators.histograms.thresholds.METHODS")
    assert not exists("trtint8.nothing") and not exists("calibrators.nothing.METHODS")
