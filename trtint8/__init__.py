"""INT8 TensorRT engines from ONNX models.

The public names stand in :mod:`trtint8.api`, which is loaded when one of them is first used, so that
``import trtint8`` is quick and needs neither TensorRT nor ONNX Runtime. Type checkers read the same list.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from trtint8.version import __version__ as __version__

if TYPE_CHECKING:
    from trtint8.api import *  # noqa: F403 the list is ``__all__`` there
else:

    def __getattr__(name: str) -> object:
        # Python itself asks for names like __path__, which must not load anything.
        if name == "__all__" or not name.startswith("_"):
            # Not a from-import, which would first ask this function for the name.
            api = importlib.import_module("trtint8.api")
            public = ["__version__", *api.__all__]
            if name == "__all__":
                return public
            if name in public:
                return getattr(api, name)
        raise AttributeError(f"module 'trtint8' has no attribute '{name}'")

    def __dir__() -> list[str]:
        return __getattr__("__all__")
