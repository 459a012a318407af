"""Reads an ONNX model into a network of TensorRT, and says which nodes it refuses."""

from __future__ import annotations

import os
import re
from typing import Any

from calibrators.errors import BuildError, ModelError
from calibrators.tensorrt.flavor import Flavor
from calibrators.tensorrt.messages import BuildLog, plain

#: Phrases in the parser's errors, and what the user can do.
_ADVICE = (
    ("zero point", "quantize symmetrically, with zero point 0"),
    ("type Int32 but must have type", "leave the bias in float"),
    ("does not support this operator", "replace the node by operators that TensorRT has"),
    ("Scale coefficients must all be positive", "calibrate the tensor again"),
)
_EXTERNAL_DATA = re.compile(r"(?:Failed to open|out of range for) file: (?P<file>.*?)(?: \(offset=.*)?$")


def new_builder(trt: Any, logger: Any, flavor: Flavor, log: BuildLog) -> Any:
    """Makes TensorRT's builder.

    Raises:
        BuildError: TensorRT does not start.
    """
    try:
        return trt.Builder(logger)
    except TypeError as error:
        # Where the driver is too old for TensorRT's CUDA, the bindings only get a null pointer.
        raise BuildError(
            f"{flavor} does not start ({log.reason()}); check that the NVIDIA driver is new enough for it"
        ) from error


def network_flags(trt: Any, flavor: Flavor) -> int:
    """The flags with which a network for an ONNX model is created."""
    if flavor.explicit_batch_flag:
        return 1 << int(trt.NetworkDefinitionCreationFlag.EXPLICIT_BATCH)
    return 0


def parse_model(
    parser: Any, network: Any, model: bytes | str | os.PathLike[str], flavor: Flavor, log: BuildLog
) -> None:
    """Reads an ONNX model into a network.

    Args:
        parser: TensorRT's parser of the network.
        network: The network.
        model: The serialized model, or its path.
        flavor: The TensorRT.
        log: What TensorRT has said.

    Raises:
        ModelError: The model cannot be read, is empty, or lacks a file with its weights.
        BuildError: TensorRT refuses a node.
    """
    if isinstance(model, bytes):
        parsed, name = parser.parse(model), "the model"
    else:
        parsed, name = parser.parse_from_file(os.fspath(model)), f"'{os.fspath(model)}'"
    if not parsed:
        _raise_parser_error(parser, flavor, log, name)
    # The parser accepts an empty file.
    if network.num_layers == 0:
        raise ModelError(f"{name} holds no nodes; give an ONNX model that was exported completely")


def _raise_parser_error(parser: Any, flavor: Flavor, log: BuildLog, name: str) -> None:
    # Only the log names the file with the weights.
    for message in log.errors:
        external = _EXTERNAL_DATA.search(message)
        if external:
            raise ModelError(
                f"{name} keeps weights in '{external['file']}', which is missing or too short; put the whole "
                f"file beside the model, and give the model's path"
            )
    error = parser.get_error(0)
    if error.node() < 0:
        raise ModelError(f"{flavor} cannot read {name} as an ONNX model: {plain(error.desc())}")
    raise BuildError(f"{flavor} cannot take {_node(error, flavor)} of {name}: {reason_of(error)}")


def reason_of(error: Any) -> str:
    """Why the parser refuses a node, and where that is known, what to do."""
    reason = plain(error.desc())
    return reason + "".join(f"; {advice}" for phrase, advice in _ADVICE if phrase in reason)


def _node(error: Any, flavor: Flavor) -> str:
    if flavor.names_failing_nodes:
        return f"node '{error.node_name()}' ({error.node_operator()})"
    return f"node number {error.node()}"
