"""Plugins: those that come with TensorRT, and those in shared libraries of the user.

TensorRT's parser and engines look for them by name. A library registers its plugins itself where it is
loaded (NVIDIA's macro ``REGISTER_TENSORRT_PLUGIN``), once for the whole process. Or it exports a function
that gives their creators, which TensorRT registers for one builder or runtime.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

from calibrators import records
from calibrators.checks import FilePath
from calibrators.errors import TrtInt8Error
from calibrators.files import exists
from calibrators.tensorrt.flavor import Flavor
from calibrators.tensorrt.messages import shared_logger


def register_own_plugins(trt: Any) -> None:
    """Makes TensorRT's own plugins known, which its parser and engines look for by name.

    Args:
        trt: The TensorRT module.
    """
    trt.init_libnvinfer_plugins(shared_logger(trt), "")


#: The functions that give creators: that of TensorRT 10 and newer, and that of 8.6 and newer.
_GIVES_CREATORS = ("getCreators", "getPluginCreators")


def load_plugin_library(library: FilePath, owner: Any, flavor: Flavor, error: type[TrtInt8Error]) -> bool:
    """Makes the plugins of a shared library known; the library stays loaded as long as the process lives.

    Args:
        library: The library's path.
        owner: The ``Builder`` or ``Runtime`` that is to know the plugins.
        flavor: The TensorRT that the owner is of.
        error: What is raised where the library cannot be loaded.

    Returns:
        Whether the library gives TensorRT its creators. Others cannot be stored in a plan.

    Raises:
        TrtInt8Error: The library cannot be loaded; of the type ``error``.
        UnsupportedError: The library gives creators, and this TensorRT takes none.
    """
    # Of a name without a folder, the system looks in its own folders only.
    path = str(Path(library).absolute())
    try:
        if exists(path):
            records.open_file(path).close()  # the system would wait for a named pipe
        functions = ctypes.CDLL(path)
    except OSError as reason:
        raise error(
            f"the plugin library '{os.fspath(library)}' cannot be loaded ({reason}); give the path of a "
            "shared library, and install what it needs"
        ) from reason
    if not any(hasattr(functions, name) for name in _GIVES_CREATORS):
        return False
    flavor.require("plugin_creators")
    registry = owner.get_plugin_registry()
    if registry.load_library(path) is None:
        raise error(
            f"{flavor} refuses the plugin library '{os.fspath(library)}': "
            f"{shared_logger(flavor.module).last_error}; check that it was built for this TensorRT"
        )
    return True
