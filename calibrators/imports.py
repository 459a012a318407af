"""Imports that happen late, and imports of the user's own modules.

Modules that neither verbs nor workers need are loaded when they are first used. Where a package is missing,
the command that installs it is said.

A user's modules may stand in a folder that is on no search path. Such a folder may be a stranger's, and hold
a ``rich.py`` or a ``numpy.py``. So it is not put onto ``sys.path``. It is searched after all that is
installed, and only for modules that the user names and for what these import themselves. Its files never
stand in for what trtint8 and its dependencies import, nor for a module that is not installed.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import FrameType

#: onnx-ir computes symbolic shapes by SymPy, which takes 0.3 to 0.5 s to load; nothing here
#: has them computed.
_LAZY = ("sympy", "onnx_ir._symbolic_shapes")


class _LazyFinder(MetaPathFinder):
    """Finds the first import of a module as usual, and has it loaded when an attribute of it is read."""

    def __init__(self) -> None:
        self._found: set[str] = set()

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        """The specification of the module with a loader that waits; None for all other modules."""
        if fullname not in _LAZY or fullname in self._found:
            return None
        self._found.add(fullname)
        spec = importlib.util.find_spec(fullname)  # which asks this finder again
        if spec is not None and spec.loader is not None:
            spec.loader = importlib.util.LazyLoader(spec.loader)
        return spec


def import_lazily() -> None:
    """Lets the first imports of these modules cost nothing until an attribute is read."""
    if not any(isinstance(finder, _LazyFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _LazyFinder())


@contextlib.contextmanager
def importing_matplotlib() -> Iterator[None]:
    """Lets Matplotlib be imported without a warning, and without settings of the current folder.

    If it cannot write to its folders, it takes a temporary one, and warns that ``MPLCONFIGDIR`` names none.
    Here that variable names the temporary one. Matplotlib also reads a ``matplotlibrc`` of the current folder
    before any other, and no setting keeps it from that. ``os.path`` is told that there is none: the current
    folder itself belongs to all threads.
    """
    if not os.environ.get("MPLCONFIGDIR") and not _has_folders():
        os.environ["MPLCONFIGDIR"] = made = tempfile.mkdtemp(prefix="matplotlib-")
        atexit.register(shutil.rmtree, made, ignore_errors=True)
    exists = os.path.exists
    os.path.exists = lambda path: path != "matplotlibrc" and exists(path)
    try:
        yield
    finally:
        os.path.exists = exists


def _has_folders() -> bool:
    """True if Matplotlib can write to its folders, which are made."""
    try:
        for variable, usual in (("XDG_CONFIG_HOME", ".config"), ("XDG_CACHE_HOME", ".cache")):
            folder = Path(os.environ.get(variable) or Path.home() / usual, "matplotlib")
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
    except (OSError, RuntimeError):  # the latter where there is no home
        return False
    return True


def install_command(extra: str) -> str:
    """Returns the command that installs what an extra brings.

    It names the packages of the extra, so that it is right for who installed trtint8 from a clone.

    Args:
        extra: The name of the extra, such as ``images``.

    Returns:
        Such as ``pip install "pillow>=10"``. Where trtint8 is not installed, but run from its sources, the
        command for their folder.
    """
    from importlib import metadata  # which takes 20 ms to load, and is needed where something is missing

    try:
        requirements = [text.split(";") for text in metadata.requires("trtint8") or ()]
    except metadata.PackageNotFoundError:
        requirements = []
    packages = [
        text.strip() for text, *condition in requirements if f'extra == "{extra}"' in "".join(condition)
    ]
    return "pip install " + " ".join(f'"{package}"' for package in packages or [f".[{extra}]"])


class _OwnModules(MetaPathFinder):
    """Finds the user's own modules in one folder.

    Args:
        folder: The folder.

    Attributes:
        names: Names of the top-level modules that are the user's own. What these import from the folder comes
            to them.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.names: set[str] = set()

    def find_spec(self, fullname: str, path: object = None, *_: object) -> ModuleSpec | None:
        """The specification of a module of the user's own; None for all others, and for parts of packages."""
        if path is not None or not (fullname in self.names or _importer(sys._getframe(1)) in self.names):
            return None
        spec = PathFinder.find_spec(fullname, [self.folder])
        if spec is not None:
            self.names.add(fullname)
        return spec


def _importer(frame: FrameType | None) -> str:
    """The top-level module whose code imports something, which stands behind frames of the import system."""
    while frame is not None:
        name = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if name not in ("importlib", "_frozen_importlib", "_frozen_importlib_external"):
            return name
        frame = frame.f_back
    return ""


def find_own_module(name: str, folder: str) -> None:
    """Lets a module be imported from a folder, where nothing of that name is installed.

    Args:
        name: Its name. Of a module in a package, the package counts.
        folder: The folder.
    """
    finder = next((finder for finder in _finders() if finder.folder == folder), None)
    if finder is None:
        finder = _OwnModules(folder)
        sys.meta_path.append(finder)
    finder.names.add(name.partition(".")[0])


def own_modules() -> list[tuple[str, str]]:
    """The user's own modules, each by its name and its folder."""
    return [(name, finder.folder) for finder in _finders() for name in sorted(finder.names)]


def _finders() -> list[_OwnModules]:
    return [finder for finder in sys.meta_path if isinstance(finder, _OwnModules)]
