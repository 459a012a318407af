"""Writes a deployment: one folder, complete or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from calibrators.data.images.preprocessing import Preprocessing
from calibrators.errors import Argument, UnsupportedError
from calibrators.files import new_folder
from trtint8.deployment.content import Files
from trtint8.deployment.cpp import cpp_files, docker_files
from trtint8.deployment.deepstream import deepstream_files
from trtint8.deployment.ort_trt import ort_trt_files
from trtint8.deployment.source import DeployOptions, DeploySource, read_source
from trtint8.deployment.triton import triton_files
from trtint8.models.model import Model, names_model
from trtint8.models.serialization import save_model

#: What an engine can be deployed to.
Destination: TypeAlias = Literal["triton", "deepstream", "ort-trt", "cpp", "docker"]


class _Kind(NamedTuple):
    """What is written for one destination, and whether that can build an engine of a model."""

    files: Callable[[DeploySource], Files]
    takes_models: bool


_KINDS: dict[Destination, _Kind] = {
    "triton": _Kind(triton_files, takes_models=True),
    "deepstream": _Kind(deepstream_files, takes_models=True),
    "ort-trt": _Kind(ort_trt_files, takes_models=True),
    "cpp": _Kind(cpp_files, takes_models=False),
    "docker": _Kind(docker_files, takes_models=False),
}


def deploy(
    engine: str | os.PathLike[str],
    to: Destination,
    output: str | os.PathLike[str],
    preprocessing: Preprocessing | None,
    asked: DeployOptions = DeployOptions(),  # noqa: B008  # frozen
) -> list[Path]:
    """Writes what runs an engine elsewhere, with a README.

    Args:
        engine: The engine file; its sidecar, Q/DQ model and table stand beside it. Or a model.
        to: What runs it.
        output: The folder to write; it must not exist, or be empty.
        preprocessing: How raw images become inputs of the engine.
        asked: What is asked for besides.

    Returns:
        The files, in the order of their names.

    Raises:
        TrtInt8Error: Always one of its subclasses, whose message says in one sentence what to do.
    """
    if not isinstance(to, str) or to not in _KINDS:
        raise UnsupportedError(f"cannot deploy to {to!r:.80}; use one of {', '.join(_KINDS)}")
    if asked.preferred_batch_sizes and to != "triton":
        raise UnsupportedError(
            f"{Argument('preferred_batch_sizes')} is for Triton, and has no effect on {to}; leave it out"
        )
    # Before the model is read, which may lack profiles or a table that would be of no use.
    kind = _KINDS[to]
    if not kind.takes_models and isinstance(engine, str | os.PathLike) and names_model(engine):
        raise UnsupportedError(f"'{engine}' is a model, and {to} takes an engine; build one, and give that")
    files = kind.files(read_source(engine, preprocessing, asked))
    with new_folder(output) as folder:
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, Model):
                save_model(content.graph_model, path)
            elif isinstance(content, Path):
                shutil.copyfile(content, path)
            else:
                path.write_bytes(content.encode() if isinstance(content, str) else content)
            if path.suffix == ".sh":
                path.chmod(0o755)
        names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return [Path(output) / name for name in names]
