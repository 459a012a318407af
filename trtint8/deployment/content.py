"""The content of a deployment's files: templates of this package, filled in."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TypeAlias

from calibrators.data.images.preprocessing import PADDING
from calibrators.data.inputs import shape_text
from trtint8.deployment.source import DeploySource

#: A file's path in the folder to its content, or to the file that is copied there.
Files: TypeAlias = Mapping[str, str | bytes | Path]


def template(file: str, /, **values: object) -> str:
    """A template with its names replaced; without any it is taken as it stands.

    Args:
        file: Its path in the folder of templates, such as ``cpp/main.cpp.in``.
        values: The text for each ``$name`` of the template.
    """
    text = (files("trtint8.deployment") / "templates" / file).read_text(encoding="utf-8")
    return Template(text).substitute({key: str(value) for key, value in values.items()}) if values else text


def readme(file: str, source: DeploySource, /, **values: object) -> str:
    """A README: what the templates say of one kind of deployment, and what is the same in all of them."""
    return template(
        file,
        name=source.name,
        tensorrt=source.tensorrt,
        capabilities=_capabilities(source),
        tensors=_tensors(source),
        preprocessing=_preprocessing(source),
        **values,
    )


def build_command(source: DeploySource, plan: str) -> str:
    """The command that builds a plan of the Q/DQ model with the full TensorRT, where a GPU is."""
    model = source.qdq_model.name if source.qdq_model else "model.onnx"
    words = ["trtexec", f"--onnx={model}", f"--saveEngine={plan}"]
    words += ["--stronglyTyped"] if source.info.built_with.strongly_typed_only else ["--int8", "--fp16"]
    for index, profile in enumerate(source.info.profiles):
        words += [f"--profile={index}"] if len(source.info.profiles) > 1 else []
        for option in ("min", "opt", "max"):
            shapes = (
                f"{_in_spec(name)}:{shape_text(getattr(shape, option))}" for name, shape in profile.items()
            )
            words.append(f"--{option}Shapes={','.join(shapes)}")
    return " ".join(map(shlex.quote, words))


def build_script(source: DeploySource, plan: str) -> str:
    """A shell script with :func:`build_command`.

    Args:
        source: The engine.
        plan: Where the plan goes, from the folder of the script.
    """
    return template("shared/build_plan.sh.in", command=build_command(source, plan), plan=shlex.quote(plan))


def _in_spec(name: str) -> str:
    """A name as trtexec takes it before a shape: in quotes where it has what separates names and shapes."""
    return f"'{name}'" if set(name) & set(":,") else name


def _capabilities(source: DeploySource) -> str:
    known = source.info.compute_capabilities
    if known == ("current",):
        return "the GPU that it was built on"
    return f"GPUs of compute capability {', '.join(known)}"


def _tensors(source: DeploySource) -> str:
    rows = ["| | name | type | shape |", "|---|---|---|---|"]
    for kind, specs in (("input", source.info.inputs), ("output", source.info.outputs)):
        rows += [
            f"| {kind} | `{spec.name}` | {spec.dtype} | {shape_text(spec.shape, ' x ')} |" for spec in specs
        ]
    for index, profile in enumerate(source.info.profiles):
        shapes = "; ".join(f"`{name}` {shape}" for name, shape in profile.items())
        rows += ["", f"Profile {index} (smallest, optimal, largest shape): {shapes}."]
    return "\n".join(rows)


def _preprocessing(source: DeploySource) -> str:
    wanted = source.preprocessing
    if wanted is None:
        return (
            "None was declared when this folder was made, so inputs are fed as they are. Give `trtint8 "
            "deploy` the same `--preprocess FILE`, or `--mean`, `--std` and so on, as the calibration had."
        )
    steps = []
    if isinstance(wanted.resize, int):
        steps.append(f"the shorter side is resized to {wanted.resize} (bilinear, with antialiasing)")
    elif wanted.resize:
        steps.append(f"resized to {shape_text(wanted.resize)} (height x width, bilinear, with antialiasing)")
    if wanted.crop:
        steps.append(f"{shape_text(wanted.crop)} (height x width) are cropped from the centre")
    if wanted.letterbox:
        steps.append(
            f"resized to fit into {shape_text(wanted.letterbox)} (height x width, bilinear, with "
            f"antialiasing), and padded to that size with the value {PADDING}"
        )
    if wanted.channels == "BGR":
        steps.append("channels are reversed to BGR")
    steps.append(f"multiplied by {wanted.scale:.9g}")
    steps.append(f"less the mean {_listed(wanted.mean)}")
    steps.append(f"divided by {_listed(wanted.std)}")
    steps.append(f"brought to {wanted.layout}")
    image = source.image_input
    channels = image.shape[1 if wanted.layout == "NCHW" else 3] if image else None
    return (
        f"Raw images (uint8, {'grey' if channels == 1 else 'RGB'}, height x width x channels) become "
        f"`{image.name if image else ''}` in this order: {'; '.join(steps)}."
    )


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.9g}" for value in values)
