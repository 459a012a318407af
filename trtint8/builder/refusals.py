"""Which route a build takes, and what is refused before it begins.

Nodes that TensorRT does not take are named, with where the model could be cut before them.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import onnx_ir as ir

from calibrators.cuda import gpu_problem, primary_context
from calibrators.errors import Argument, BuildError, ModelError, UnsupportedError, advice, enumerated
from calibrators.interruption import deferred_interrupt
from calibrators.tensorrt.calibrator import Calibrator
from calibrators.tensorrt.flavor import Flavor
from calibrators.tensorrt.messages import collected
from trtint8.builder.build import Build, NetworkReader, reason_of
from trtint8.builder.config import BuildOptions
from trtint8.models.graph import read_constant
from trtint8.models.model import Model
from trtint8.models.outputs.picked import cut_model, tensors_before
from trtint8.models.serialization import runnable
from trtint8.quantization.targets import Target, target_named

Route = Literal["auto", "explicit", "implicit"]


def choose_route(
    route: Route, calibration: Any, flavor: Flavor, model: Model
) -> Literal["explicit", "implicit"]:
    """Decides between Q/DQ pairs in the graph and calibrators with dynamic ranges.

    Args:
        route: The route that the user asked for. "auto" is implicit where the model is float, and a
            calibrator is given or this TensorRT is 8.5 to 10.0.
        calibration: Where the ranges come from, in any form that ``build_int8_engine`` takes.
        flavor: The TensorRT that builds.
        model: The model that is to be built.

    Returns:
        The route to take.

    Raises:
        UnsupportedError: The route contradicts the model, the TensorRT or the calibration.
    """
    calibrator = is_calibrator(calibration, flavor)
    if model.is_quantized and (calibrator or route == "implicit"):
        raise UnsupportedError(
            f"'{model.name}' holds Q/DQ pairs, so its INT8 is explicit; leave route and calibrator out, or "
            "give the float model"
        )
    if not flavor.implicit_int8 and (calibrator or route == "implicit"):
        raise UnsupportedError(
            f"{flavor} has neither calibrators nor dynamic ranges, which TensorRT 8.5 to 10.x have; take the "
            "explicit route, with sample inputs or a table"
        )
    if route == "explicit" and calibrator:
        raise UnsupportedError(
            "a calibrator belongs to the implicit route, and the explicit one was asked for; give sample "
            "inputs or a table, or leave the route out"
        )
    if route != "auto":
        return route
    implicit = calibrator or not (flavor.explicit_by_default or model.is_quantized)
    return "implicit" if implicit else "explicit"


def quantization_target(flavor: Flavor, options: BuildOptions) -> Target:
    """What Q/DQ pairs are placed for.

    Args:
        flavor: The TensorRT that builds.
        options: The options of the build, which may name a DLA core.
    """
    return target_named("dla" if options.dla_core is not None else flavor.quantization_target)


def is_calibrator(calibration: Any, flavor: Flavor) -> bool:
    """Whether an object is a calibrator of ``calibrators.tensorrt``, or implements TensorRT's interface."""
    if isinstance(calibration, Calibrator):
        return True
    return flavor.implicit_int8 and isinstance(calibration, flavor.module.IInt8Calibrator)


#: What the builder says of a layer that it has no kernel for, after the layer's name.
_UNIMPLEMENTED = " has no runners that implement it"

#: What assertions of the builder about branches and loops have in common.
_SCOPES = "ScopedOp"


@dataclass(frozen=True)
class _Refusal:
    """A node that the parser refuses, and why."""

    node: str
    operator: str
    reason: str


def refuse_unsupported(prepared: Model, build: Build) -> None:
    """Fails where TensorRT's parser refuses a node, and says where the model could be cut.

    The parser stops at some of the nodes, so what is before them is parsed again until nothing is refused.

    Args:
        prepared: From :func:`trtint8.models.model.prepare`; not changed.
        build: How it is to be built.

    Raises:
        BuildError: A node is refused; names all such nodes, and the tensors before them.
        ModelError: TensorRT cannot read the model.
    """
    graph = prepared.graph_model.graph
    by_name = {node.name: node for node in graph}
    refusals: dict[ir.Node, _Refusal] = {}
    tensors: tuple[str, ...] = ()
    part: ir.Model | None = prepared.graph_model
    while part is not None:
        found = {
            by_name[name]: refusal for name, refusal in _refusals(part, build.flavor, build.options).items()
        }
        if not found:
            break
        if found.keys() <= refusals.keys():  # it needs inputs alone, so that no cut is before it
            part = None
            break
        refusals |= found
        tensors = tensors_before(graph, refusals.keys())
        part = _head(prepared, tensors)
    if refusals:
        raise BuildError(_message(prepared, build.flavor, list(refusals.values()), tensors if part else ()))


def refuse_renamed_inputs(model: Model) -> None:
    """Refuses an input that is an output, too.

    TensorRT's parser puts ``__`` before its name, which neither profiles nor whoever runs the engine know.

    Args:
        model: A checked model.

    Raises:
        BuildError: There is such an input.
    """
    outputs = {value.name for value in model.graph_model.graph.outputs}
    for spec in model.inputs:
        if spec.name in outputs:
            raise BuildError(
                f"'{spec.name}' is both an input and an output of '{model.name}', and TensorRT would rename "
                "the input; pass the output through an Identity of another name"
            )


def refuse_int8_blocks(model: Model) -> None:
    """Refuses int8 weights with one scale per block.

    TensorRT has blocks for narrower types alone. TensorRT for RTX 1.7 builds an engine all the same, in which
    the scales of all blocks stand for those of the channels.

    Args:
        model: A model with Q/DQ pairs.

    Raises:
        BuildError: There are such weights.
    """
    for node in model.graph_model.graph:
        if node.op_type != "DequantizeLinear" or not node.attributes.get_int("block_size", 0):
            continue
        weights = read_constant(node.inputs[0])
        if weights is not None and weights.dtype == np.int8:
            raise BuildError(
                f"'{node.name}' dequantizes int8 weights with one scale per block, which TensorRT cannot "
                "compute; 'trtint8 lint --fix' gives them one scale per channel"
            )


def refuse_unimplemented(prepared: Model, flavor: Flavor, reason: str) -> None:
    """Fails where TensorRT's builder has nothing that computes a node, and says where the model could be cut.

    Args:
        prepared: From :func:`trtint8.models.model.prepare`; not changed.
        flavor: The TensorRT that was to build.
        reason: Why the build failed. Nothing happens where that is something else.

    Raises:
        BuildError: A node cannot be computed; names it, and the tensors before it.
    """
    before, found, _ = reason.partition(_UNIMPLEMENTED)
    graph, layer = prepared.graph_model.graph, before.rpartition("failed. ")[2]
    # TensorRT for RTX appends a number to the name of the node.
    named = [node for node in graph if node.name and layer.startswith(node.name)]
    if not (found and named):
        return
    node = max(named, key=lambda node: len(node.name or ""))
    refusal = _Refusal(node.name or "", node.op_type, "it has nothing that computes it")
    tensors = tensors_before(graph, [node])
    raise BuildError(_message(prepared, flavor, [refusal], tensors if _head(prepared, tensors) else ()))


def refuse_branches(graph_model: ir.Model, reason: str) -> None:
    """Fails where TensorRT's builder fails in branches or loops, and says how a model gets rid of them.

    Args:
        graph_model: What was to be built.
        reason: Why the build failed. Nothing happens where that is something else.

    Raises:
        BuildError: The model has branches or loops; names the first.
    """
    node = next((node for node in graph_model.graph.all_nodes() if node.op_type in ("If", "Loop")), None)
    if node is None or _SCOPES not in reason:
        return
    raise BuildError(
        f"{reason}; the model has {node.op_type} nodes ('{node.name}'), which may be the cause: export it "
        "without them, or run ONNX Runtime's basic optimizations with fixed input shapes first"
    )


def _head(prepared: Model, tensors: tuple[str, ...]) -> ir.Model | None:
    """The model up to some tensors; None where it cannot be cut there."""
    if not tensors:
        return None
    try:
        return cut_model(prepared, tensors).head.graph_model
    except ModelError:
        return None


def _message(prepared: Model, flavor: Flavor, refusals: list[_Refusal], tensors: tuple[str, ...]) -> str:
    first, *others = refusals
    more = ""
    if others:
        named = enumerated(f"'{other.node}' ({other.operator})" for other in others)
        more = f"; nor does it take {named}"
    where = ""
    if tensors:
        listed = " and ".join(f"'{name}'" for name in tensors[:5])
        listed += f" and {len(tensors) - 5} more" if len(tensors) > 5 else ""
        ways = advice(
            f"build what comes before it with the model cut at {listed} ({Argument('cut_at')}), and run the "
            "rest in ONNX Runtime",
            "replace it by operators that TensorRT takes",
        )
        where = f"; {ways}"
    return (
        f"{flavor} cannot take node '{first.node}' ({first.operator}) of '{prepared.name}': {first.reason}"
        f"{more}{where}"
    )


def _refusals(graph_model: ir.Model, flavor: Flavor, options: BuildOptions) -> dict[str | None, _Refusal]:
    """Names of nodes of the main graph that the parser refuses at once, each with the reason."""
    nodes = list(graph_model.graph)
    context = contextlib.nullcontext() if gpu_problem() else primary_context(options.device)
    with context, collected(flavor.module) as log, deferred_interrupt(), runnable(graph_model) as serialized:
        reader = NetworkReader.new(flavor, options, log)
        try:
            reader.read(serialized)
        except BuildError:
            parser = reader.parser
            errors = [parser.get_error(index) for index in range(parser.num_errors)]
            refused = [(nodes[error.node()], error) for error in errors if error.node() >= 0]
            return {node.name: _refusal(node, error, flavor) for node, error in refused}
    return {}


def _refusal(node: ir.Node, error: Any, flavor: Flavor) -> _Refusal:
    """A refused node, which may be inside a node of the main graph."""
    if flavor.names_failing_nodes:
        return _Refusal(error.node_name(), error.node_operator(), reason_of(error))
    return _Refusal(node.name or "", node.op_type, reason_of(error))
