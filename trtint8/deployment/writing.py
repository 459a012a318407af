"""Writes a deployment: one folder, complete or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from calibrators.checks import PATH_TYPES, FilePath, several
from calibrators.data.images.preprocessing import Preprocessing
from calibrators.data.images.true_boxes import as_class_names
from calibrators.errors import Argument, UnsupportedError
from calibrators.files import new_folder
from calibrators.tables.ranges import TableSource
from trtint8.deployment.content import Files
from trtint8.deployment.cpp import cpp_files, docker_files
from trtint8.deployment.deepstream import deepstream_files
from trtint8.deployment.ort_trt import ort_trt_files
from trtint8.deployment.source import DeployOptions, DeploySource, read_source
from trtint8.deployment.triton import triton_files
from trtint8.engine.profiles import Profile
from trtint8.models.model import Model, names_model
from trtint8.models.serialization import save_model
from trtint8.quantization.targets import TargetName

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
    engine: FilePath,
    to: Destination,
    output: FilePath,
    *,
    table: TableSource | None = None,
    target: TargetName | None = None,
    profiles: Sequence[Profile] = (),
    keep_float: Sequence[str] = (),
    class_names: FilePath | Sequence[str] | None = None,
    preferred_batch_sizes: Sequence[int] = (),
    preprocessing: Preprocessing | None = None,
) -> list[Path]:
    """Writes a folder for running an engine in another program or on another machine, with a README.

    Triton, DeepStream and ONNX Runtime have the full TensorRT. They cannot use an engine of TensorRT for RTX,
    a model, or an engine for another target. In these cases Q/DQ pairs are placed anew for the target, and
    the folder has a script that builds the engine on the machine that will run it.

    Args:
        engine: The engine file, with its sidecar and the files that the build left beside it; or a model that
            ends in .onnx: a float model with its ``table``, or one with Q/DQ pairs.
        to: ``triton`` for a model repository, ``deepstream`` for a configuration of nvinfer, ``ort-trt`` for
            ONNX Runtime's TensorRT execution provider, ``cpp`` for a C++ and a Python program, ``docker`` for
            a container.
        output: The folder. It must be empty or not exist. After a crash it is complete or does not exist.
        table: The ranges of a model, or the file that holds them; an engine has its own.
        target: The TensorRT that pairs are placed for: ``tensorrt-8.6``, ``tensorrt-10``, ``tensorrt-11``, or
            ``tensorrt`` for any of them. By default that of the engine if it can be used, else ``tensorrt``.
        profiles: Shapes of the dynamic inputs of a model; an engine has its own.
        keep_float: Names of nodes, or patterns, that stay in float when pairs are placed. Nodes that an
            engine was told to keep in float stay in float.
        class_names: Names of the classes in the order of their indices, a text file with one per line, a
            dataset file of ultralytics, or a ``.json`` file of COCO's instances. By default the names in the
            model.
        preferred_batch_sizes: The batch sizes that Triton prefers.
        preprocessing: How raw images become inputs. The folder has it in a form that the target
            program can use.

    Returns:
        The files that were written.

    Raises:
        EngineError: The engine, or a file beside it, is unusable.
        ModelError: The model is unusable, or a pattern matches nothing.
        BuildError: A profile does not fit the model, or one is needed.
        UnsupportedError: The target program lacks something that the engine needs, such as an element type;
            or an argument would have no effect.
        CalibrationDataError: No input of the engine fits the result of the preprocessing, or the names of
            classes are unusable.
        TableError: The table is unusable, or a float model has none.
        OutputError: The folder is not empty, or cannot be written.

    Examples:
        >>> files = trtint8.deploy("model.engine", "triton", "repository")
        >>> files[0]
        PosixPath('repository/README.md')
    """
    asked = DeployOptions(
        table,
        target,
        tuple(profiles),
        tuple(several(keep_float)),
        None if class_names is None else as_class_names(class_names),
        tuple(preferred_batch_sizes),
    )
    if not isinstance(to, str) or to not in _KINDS:
        raise UnsupportedError(f"cannot deploy to {to!r:.80}; use one of {', '.join(_KINDS)}")
    if asked.preferred_batch_sizes and to != "triton":
        raise UnsupportedError(
            f"{Argument('preferred_batch_sizes')} is for Triton, and has no effect on {to}; leave it out"
        )
    # Before the model is read, which may lack profiles or a table that would be of no use.
    kind = _KINDS[to]
    if not kind.takes_models and isinstance(engine, PATH_TYPES) and names_model(engine):
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
