"""Builds the package with setuptools, each time in a folder of its own: several can build one clone at once.

The folder has links to what the clone has. So what setuptools writes beside the sources is written there, and
is gone afterwards. An editable installation alone is built in the clone, which it points to.
"""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from setuptools import build_meta


def _link(clone: Path, folder: str) -> None:
    for entry in clone.iterdir():
        if entry.is_file():
            shutil.copy2(entry, folder)  # a source distribution would have the link
        elif entry.name not in ("build", "dist") and entry.suffix != ".egg-info":
            Path(folder, entry.name).symlink_to(entry, target_is_directory=True)


def _apart(hook: Callable[..., Any]) -> Callable[..., Any]:
    """The same step of a build, in a folder of its own."""

    @functools.wraps(hook)
    def run(*arguments: Any) -> Any:
        clone = Path.cwd()
        paths = [os.path.abspath(one) if isinstance(one, str) else one for one in arguments]  # noqa: PTH100
        with tempfile.TemporaryDirectory() as folder:
            try:
                _link(clone, folder)
            except OSError:  # Windows lets few users make links
                return hook(*paths)
            os.chdir(folder)
            try:
                return hook(*paths)
            finally:
                os.chdir(clone)

    return run


build_editable = build_meta.build_editable
build_sdist = _apart(build_meta.build_sdist)
build_wheel = _apart(build_meta.build_wheel)
get_requires_for_build_editable = _apart(build_meta.get_requires_for_build_editable)
get_requires_for_build_sdist = _apart(build_meta.get_requires_for_build_sdist)
get_requires_for_build_wheel = _apart(build_meta.get_requires_for_build_wheel)
prepare_metadata_for_build_editable = _apart(build_meta.prepare_metadata_for_build_editable)
prepare_metadata_for_build_wheel = _apart(build_meta.prepare_metadata_for_build_wheel)
