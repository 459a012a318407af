"""INT8 TensorRT engines from ONNX models.

Every public name is loaded from its module when it is first used, so that ``import trtint8`` is quick and
needs neither TensorRT nor ONNX Runtime. The names stand in ``__init__.pyi`` beside this file, which type
checkers read.
"""

from __future__ import annotations

import calibrators  # noqa: F401  # before ONNX Runtime: it turns off what that would send

# No module of Python is imported here: that would delay the moment from which the program heeds Ctrl-C. The
# loader reads the stub also where the package lies in an archive.
_STUB = __loader__.get_data(f"{__path__[0]}/__init__.pyi").decode("ascii")
_IMPORTS = [line.split() for line in _STUB.splitlines() if line.startswith("from ")]

#: Public name to its module: ``from MODULE import NAME as NAME``.
_MODULES = {words[-1]: words[1] for words in _IMPORTS}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'trtint8' has no attribute '{name}'")
    from importlib import import_module

    found = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return found


def __dir__() -> list[str]:
    return __all__
