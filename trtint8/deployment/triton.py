"""A model repository of Triton Inference Server.

The configuration is that of "Model Configuration" in Triton's documentation
(docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/user_guide/model_configuration.html).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from calibrators.errors import Argument, UnsupportedError
from trtint8.deployment.content import (
    Files,
    build_script,
    files_of_programs,
    labels_file,
    plan_text,
    readme,
    template,
)
from trtint8.deployment.source import Code, DeploySource, c_literal, markdown_code
from trtint8.engine.file import TensorSpec
from trtint8.models.model import Model

#: NumPy's names of the element types that Triton has, to Triton's.
_TYPES = {
    "bool": "TYPE_BOOL",
    "uint8": "TYPE_UINT8",
    "int8": "TYPE_INT8",
    "int32": "TYPE_INT32",
    "int64": "TYPE_INT64",
    "float16": "TYPE_FP16",
    "bfloat16": "TYPE_BF16",
    "float32": "TYPE_FP32",
}

#: The file with the names of the classes.
_LABELS = "labels.txt"

#: How long a request may wait for others that share its batch, in microseconds. Triton's documentation of the
#: dynamic batcher (docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/batcher.html) advises
#: against preferred batch sizes, unless some are much faster than others.
_QUEUE_DELAY = 100


def triton_files(source: DeploySource) -> Files:
    """The model repository, a client, and a script that builds the plan where Triton runs.

    Args:
        source: The engine.

    Raises:
        UnsupportedError: Triton has no such element type, cannot load the engine and there is no Q/DQ model
            to build another one from, or the engine has the name of a file beside the model's folder.
    """
    source = source.for_full_tensorrt("Triton")
    qdq = source.qdq_files()
    preferred = source.asked.preferred_batch_sizes
    if preferred and (source.batching is None or max(preferred) > source.batching.largest):
        most = source.batching.largest if source.batching else 0
        raise UnsupportedError(
            f"{Argument('preferred_batch_sizes')} has {max(preferred)}, and Triton can join up to {most} "
            "samples here; give smaller ones, or leave it out"
        )
    files: dict[str, str | Path | Model] = {f"{source.name}/config.pbtxt": model_config(source)}
    if source.plan is not None:
        files[f"{source.name}/1/model.plan"] = source.plan
    if qdq:
        files[f"{source.name}/build_plan.sh"] = build_script(source, "1/model.plan")
        files |= {f"{source.name}/{name}": model for name, model in qdq.items()}
    if source.labels:
        files[f"{source.name}/{_LABELS}"] = labels_file(source, "\n")
    beside = {
        **files_of_programs(source),
        "client.py": template("triton/client.py.in"),
        "README.md": readme(
            "triton/README.md.in",
            source,
            plan=plan_text(source, "triton"),
            batching=_batching_text(source),
            labels=_labels_text(source),
        ),
    }
    if source.name.lower() in map(str.lower, beside):
        raise UnsupportedError(
            f"the folder of Triton's model has the engine's name, and '{source.name}' is a file beside it; "
            "give the engine another name"
        )
    return {**files, **beside}


def model_config(source: DeploySource) -> Code:
    """Triton's configuration of the model, in protobuf's text format.

    Raises:
        UnsupportedError: Triton has no such element type.
    """
    batching = source.batching
    lines = [
        f"name: {c_literal(source.name)}",
        'platform: "tensorrt_plan"',
        f"max_batch_size: {batching.largest if batching else 0}",
        'default_model_filename: "model.plan"',
        *_tensors("input", source.info.inputs, batched=batching is not None),
        *_tensors("output", source.info.outputs, batched=batching is not None, classes=source.scores),
    ]
    if batching:
        preferred = ", ".join(map(str, sorted(set(source.asked.preferred_batch_sizes))))
        lines += [
            "dynamic_batching {",
            *([f"  preferred_batch_size: [ {preferred} ]"] if preferred else []),
            f"  max_queue_delay_microseconds: {_QUEUE_DELAY}",
            "}",
        ]
    profiles = ", ".join(c_literal(str(index)) for index in range(len(source.info.profiles)))
    chosen = f" profile: [ {profiles} ]" if profiles else ""
    lines.append(f"instance_group [ {{ count: 1 kind: KIND_GPU{chosen} }} ]")
    if source.preprocessing is not None:
        text = c_literal(json.dumps(asdict(source.preprocessing)))
        lines.append(f'parameters {{ key: "preprocessing" value {{ string_value: {text} }} }}')
    return Code("\n".join(lines) + "\n")


def _tensors(
    kind: str, specs: Sequence[TensorSpec], *, batched: bool, classes: TensorSpec | None = None
) -> list[str]:
    """The inputs or the outputs, without the batch where Triton adds it.

    Labels belong to outputs that are classifications only (``label_filename`` in Triton's
    ``model_config.proto``; docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/protocol/
    extension_classification.html): a label is found by the place of a value in the whole output.
    """
    lines = []
    for spec in specs:
        if spec.dtype not in _TYPES:
            raise UnsupportedError(
                f"Triton has no element type for the {kind} '{spec.name}' of {spec.dtype}; export the model "
                "with another type there"
            )
        dims = [dim if isinstance(dim, int) else -1 for dim in spec.shape[1 if batched else 0 :]]
        # Triton takes no empty shape: it sees one element, and the engine none.
        shape = f"dims: [ {', '.join(map(str, dims))} ]" if dims else "dims: [ 1 ] reshape { shape: [ ] }"
        labels = f' label_filename: "{_LABELS}"' if spec is classes else ""
        lines.append(
            f"{kind} {{ name: {c_literal(spec.name)} data_type: {_TYPES[spec.dtype]} {shape}{labels} }}"
        )
    return lines


def _labels_text(source: DeploySource) -> Code:
    """What the server knows of the classes."""
    if source.labels is None:
        return Code(
            "The names of the classes are not known. Give `trtint8 deploy` a file with them, `--classes`."
        )
    count = f"`{source.name}/{_LABELS}` has the names of the {len(source.labels)} classes, a line each."
    if source.scores is not None:
        name = markdown_code(source.scores.name)
        return Code(f"{count} Triton gives them for {name} to requests of its classification extension.")
    return Code(
        f"{count} No output has one score for each class, so `config.pbtxt` does not name the file: Triton's "
        "classification extension would take places of boxes for classes. Triton has no decoder of boxes. "
        "`client.py` writes the outputs as they are: decode them in your program."
    )


def _batching_text(source: DeploySource) -> Code:
    batching = source.batching
    if batching is None:
        if any(spec.shape and isinstance(spec.shape[0], int) for spec in source.info.inputs):
            return Code(
                "The model fixes the first dimension, so `max_batch_size` is 0: requests have full shapes, "
                "and are not joined."
            )
        return Code(
            "The first dimension is no batch that all inputs and outputs share, or samples change each other "
            "along it, so `max_batch_size` is 0: requests have full shapes and are not joined."
        )
    sizes = ", ".join(map(str, sorted(set(source.asked.preferred_batch_sizes))))
    text = (
        f"Triton joins requests to batches of up to {batching.largest}"
        f"{', preferably ' if sizes else ''}{sizes}, and lets a request wait {_QUEUE_DELAY} microseconds for "
        "others."
    )
    if source.info.joins_samples is None:
        text += (
            " Whether each request then has the answer that it has by itself was not tried: set "
            "`max_batch_size` to 0 unless the first dimension is the batch."
        )
    if batching.smallest > 1:
        text += f" The engine takes no batch of fewer than {batching.smallest} samples."
    return Code(text)
