"""The kernels that TensorRT for RTX compiles when it loads an engine, kept in a file between runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from calibrators import records
from calibrators.errors import EngineError
from calibrators.files import check_writable, write_atomically
from calibrators.tensorrt.flavor import Flavor
from calibrators.user_warnings import warn_user

#: The largest file that is read, in bytes.
_MOST_BYTES = 1 << 30


class RuntimeCache:
    """Gives an engine's contexts the kernels of earlier runs, and keeps those that were compiled since.

    Args:
        config: The ``IRuntimeConfig`` for all contexts of the engine.
        cache: The ``IRuntimeCache`` in it.
        path: The file.
    """

    def __init__(self, config: Any, cache: Any, path: Path) -> None:
        self._config, self._cache, self._path = config, cache, path
        self._kept: bytes | None = None

    @classmethod
    def attach(cls, raw: Any, path: str | os.PathLike[str], flavor: Flavor) -> RuntimeCache:
        """Makes the runtime configuration of an engine; its GPU's context must be current.

        Args:
            raw: The ``ICudaEngine``.
            path: The file, which need not exist.
            flavor: The TensorRT that runs the engine.

        Returns:
            The cache, filled from the file.

        Raises:
            UnsupportedError: This TensorRT has no runtime cache.
            EngineError: The file cannot be read, or TensorRT refuses the configuration.
            OutputError: The file cannot be written.

        Warns:
            UserWarning: The file is of another TensorRT, GPU or driver, and is made anew.
        """
        flavor.require("runtime_cache")
        config = raw.create_runtime_config()
        cache = config.create_runtime_cache()
        made = cls(config, cache, check_writable(path))
        made.load()
        if not config.set_runtime_cache(cache):
            raise EngineError(f"{flavor} refuses the runtime cache '{os.fspath(path)}'; leave it out")
        return made

    def load(self) -> None:
        """Fills the cache from the file, where there is one that fits; see :meth:`attach`."""
        try:
            data = records.read_bytes(self._path, _MOST_BYTES)
        except FileNotFoundError:
            return
        except (OSError, records.RecordError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise EngineError(
                f"the runtime cache '{self._path}' cannot be read ({reason}); give another file"
            ) from error
        if self._cache.deserialize(data):
            self._kept = data
        else:
            warn_user(
                f"the runtime cache '{self._path}' is of another TensorRT, GPU or driver; it is made anew"
            )

    def new_context(self, engine: Any) -> Any:
        """Makes one of TensorRT's contexts that uses the cache; None where TensorRT cannot."""
        return engine.create_execution_context(self._config)

    def save(self) -> None:
        """Writes the cache where it holds anything new.

        Raises:
            OutputError: The file cannot be written.
        """
        data = bytes(self._cache.serialize())
        if data != self._kept:
            write_atomically(self._path, data)
            self._kept = data
