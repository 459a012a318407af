"""The content of a deployment's files: templates of this package, filled in."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TypeAlias

from calibrators.data.images.preprocessing import PADDING
from calibrators.data.inputs import shape_text
from calibrators.errors import UnsupportedError
from trtint8.deployment.source import (
    QDQ_FILE,
    Code,
    DeploySource,
    fits_command,
    markdown_code,
    requirements_file,
    shell_words,
)
from trtint8.engine.file import TensorSpec
from trtint8.models.model import Model
from trtint8.quantization.targets import TYPED

#: A file's path in the folder, made of trtint8's own names, to its content, to the file that is copied there,
#: or to the model that is written there, of which a large one gets a file with its weights beside it.
Files: TypeAlias = Mapping[str, str | bytes | Path | Model]


def template(file: str, /, **values: Code | int) -> Code:
    """A template with its names replaced; without any it is taken as it stands.

    Args:
        file: Its path in the folder of templates, such as ``cpp/main.cpp.in``.
        values: What stands in place of each ``$name`` of the template, in the language of the template.
    """
    text = (files("trtint8.deployment") / "templates" / file).read_text(encoding="utf-8")
    filled = Template(text).substitute({key: str(value) for key, value in values.items()}) if values else text
    return Code(filled)


def paragraphs(file: str, /, **values: Code | int) -> Code:
    """A part of a README: a template, filled in, without the line breaks at its end."""
    return Code(template(file, **values).strip())


def readme(file: str, source: DeploySource, /, **values: Code | int) -> Code:
    """A README: what the templates say of one kind of deployment, and what is the same in all of them."""
    text = template(
        file,
        name=source.name,
        tensorrt=source.tensorrt,
        origin=source.origin,
        capabilities=_capabilities(source),
        tensors=_tensors(source),
        preprocessing=_preprocessing(source),
        **values,
    )
    return Code(re.sub(r"\n{3,}", "\n\n", text))  # a part may be empty


def files_of_programs(source: DeploySource) -> dict[str, str]:
    """What every program reads: what is known of the engine, and how raw images are prepared."""
    return {"model.json": source.description(), "preprocess.py": template("shared/preprocess.py.in")}


def files_of_python(source: DeploySource) -> dict[str, str | Path]:
    """The engine, and a program in Python that runs it."""
    return {
        "model.engine": source.engine,
        "run.py": template("shared/run.py.in"),
        "requirements.txt": requirements_file(source),
        **files_of_programs(source),
    }


def build_words(source: DeploySource, plan: str) -> Code:
    """The options of trtexec that build a plan of the Q/DQ model, whatever its version.

    Raises:
        UnsupportedError: The name of an input cannot stand in a command.
    """
    words = [f"--onnx={QDQ_FILE}", f"--saveEngine={plan}"]
    for index, profile in enumerate(source.info.profiles):
        words += [f"--profile={index}"] if len(source.info.profiles) > 1 else []
        for option in ("min", "opt", "max"):
            shapes = (
                f"{_in_spec(name)}:{shape_text(getattr(shape, option))}" for name, shape in profile.items()
            )
            words.append(f"--{option}Shapes={','.join(shapes)}")
    return shell_words(words)


#: The options for types, by the form and the version that trtexec has, of a model that is FP32 outside INT8.
_TYPES_OF_FLOAT32 = f"""\
    weak*) types="--int8 --fp16" ;;
    *)
        types=""
        echo "what is outside INT8 runs in FP32; a model for the target {TYPED.name} has FP16 there"
        ;;"""

#: The same of a model that has FP16 in it, which TensorRT is to take from there.
_TYPES_IN_GRAPH = """\
    weak10????) types="--stronglyTyped" ;;
    weak*)
        echo "the model has FP16 in it, and TensorRT $version takes types from no graph;" \
            "deploy it for the target tensorrt-8.6" >&2
        exit 2
        ;;
    *) types="" ;;"""


def build_script(source: DeploySource, plan: str) -> Code:
    """A shell script that calls trtexec with :func:`build_words`, and with options that its version has.

    Args:
        source: What is deployed.
        plan: Where the plan goes, from the folder of the script.
    """
    found = (files("trtint8.tuning") / "trtexec.sh").read_text(encoding="utf-8")
    return template(
        "shared/build_plan.sh.in",
        find_trtexec=Code(found.strip()),
        types=Code(_TYPES_IN_GRAPH if source.has_types_in_graph else _TYPES_OF_FLOAT32),
        command=build_words(source, plan),
        plan=shell_words([plan]),
    )


def plan_text(source: DeploySource, folder: str) -> Code:
    """What a README says of the plan: that it is there, or how it is made.

    Args:
        source: What is deployed.
        folder: The folder of the texts, as of ``triton``.
    """
    if source.plan is None:
        return paragraphs(f"{folder}/plan_missing.md.in", placed=Code(source.placed or ""))
    gpus = Code(", ".join(source.info.compute_capabilities))
    return paragraphs(f"{folder}/plan_there.md.in", tensorrt=source.tensorrt, gpus=gpus)


def labels_file(source: DeploySource, separator: str) -> str:
    """The names of the classes with a separator between them, and a line break at the end."""
    return separator.join(source.labels or ()) + "\n"


def _in_spec(name: str) -> str:
    """A name as trtexec takes it before a shape: in quotes where it has what separates names and shapes."""
    if not fits_command(name):
        raise UnsupportedError(
            f"trtexec cannot be told the name of the input {name!r:.80}; export the model with another name"
        )
    return f"'{name}'" if set(name) & set(":,") else name


def _capabilities(source: DeploySource) -> Code:
    known = source.info.compute_capabilities
    if known == ("current",):
        return Code("the GPU that it was built on")
    return Code(f"GPUs of compute capability {', '.join(known)}")


def _tensors(source: DeploySource) -> Code:
    """Tables of the inputs and outputs and of the profiles, with the sizes that the profiles allow."""
    sizes = _open_sizes(source)
    rows = ["| kind | name | type | shape |", "|---|---|---|---|"]
    for kind, specs in (("input", source.info.inputs), ("output", source.info.outputs)):
        rows += [
            f"| {kind} | {markdown_code(spec.name)} | {spec.dtype} | "
            f"{markdown_code(shape_text([sizes.get(dim, dim) for dim in _sizes(source, spec)], ' x '))} |"
            for spec in specs
        ]
    if source.info.profiles:
        rows += ["", "| profile: input | smallest | optimal | largest |", "|---|---|---|---|"]
    for index, profile in enumerate(source.info.profiles):
        rows += [
            f"| {index}: {markdown_code(name)} | "
            f"{shape_text(shapes.min)} | {shape_text(shapes.opt)} | {shape_text(shapes.max)} |"
            for name, shapes in profile.items()
        ]
    return Code("\n".join(rows))


def _sizes(source: DeploySource, spec: TensorSpec) -> list[int | str | None]:
    """The sizes of a tensor; of an input that a profile names, as ranges where they differ."""
    known = [profile[spec.name] for profile in source.info.profiles if spec.name in profile]
    if not known or spec not in source.info.inputs:
        return list(spec.shape)
    smallest = [min(sizes) for sizes in zip(*(shapes.min for shapes in known), strict=True)]
    largest = [max(sizes) for sizes in zip(*(shapes.max for shapes in known), strict=True)]
    return [low if low == high else f"{low}..{high}" for low, high in zip(smallest, largest, strict=True)]


def _open_sizes(source: DeploySource) -> dict[int | str | None, int | str | None]:
    """The sizes of named dimensions, as far as profiles of the inputs give them: outputs have the same."""
    return {
        dim: size
        for spec in source.info.inputs
        for dim, size in zip(spec.shape, _sizes(source, spec), strict=False)
        if isinstance(dim, str)
    }


def _preprocessing(source: DeploySource) -> Code:
    wanted = source.preprocessing
    if wanted is None:
        return Code(
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
    return Code(
        f"Raw images (uint8, {'grey' if channels == 1 else 'RGB'}, height x width x channels) become "
        f"{markdown_code(image.name if image else '')} in this order: {'; '.join(steps)}."
    )


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.9g}" for value in values)
