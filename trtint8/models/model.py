"""Reads, checks and prepares ONNX models.

A model's file may say where it comes from, in properties that runtimes ignore. Endings of names tell models
from engines.
"""

from __future__ import annotations

import contextlib
import io
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError, EncodeError
from onnx_ir.passes import common

from calibrators import records
from calibrators.checks import PATH_TYPES, FilePath, check_ending, refuse_empty_path, warn_user
from calibrators.data.feeds import NamedArrays
from calibrators.data.inputs import CalibratedInputs, InputSpec, OpenShape
from calibrators.errors import Argument, ModelError, advice, enumerated
from calibrators.files import is_file, is_folder, kind_by_ending
from calibrators.host.weights import LightModel, properties
from trtint8.models.checks import (
    check_complete,
    check_names,
    check_weights,
    name_graphs,
    name_listed_outputs,
    name_nodes_apart,
    random_nodes,
    settle_ir_version,
    sort_nodes,
    switch_to_inference,
)
from trtint8.models.declared import (
    check_outputs_are_tensors,
    clear_unknown_sizes,
    declare_shapes,
    hides_scores,
    input_bound,
    list_outputs_once,
    with_some_shapes,
)
from trtint8.models.garbage_collection import pause_garbage_collection
from trtint8.models.graph import (
    as_model_errors,
    bounded_constants,
    computes_in,
    keep_modules,
    message_graphs,
    modules_by_tensor,
    run_passes,
    settle_modules,
    values_behind,
)
from trtint8.models.opset import (
    settle_domains,
    settle_function_opsets,
    with_known_opset,
    with_opset,
    write_zero_points,
)
from trtint8.models.passes.attention_masks import RemoveNanGuardsPass
from trtint8.models.passes.einsum import EinsumProductsPass, LowerCaseEinsumPass
from trtint8.models.passes.float32 import NARROW_TYPES, ComputeInFloat32Pass
from trtint8.models.passes.fold_constants import FoldConstantsPass
from trtint8.models.passes.simplify import (
    FoldBatchNormPass,
    InferShapesPass,
    InlineFunctionsPass,
    NameNodesPass,
    RemoveIdentitiesPass,
    SumsAsAddsPass,
    check_functions,
)
from trtint8.models.plugins import (
    declare_plugins,
    hide,
    needed_opset,
    refuse_tool_quantizers,
    runtime_nodes,
    unknown_nodes,
)
from trtint8.models.serialization import (
    StoredTensors,
    check_stored_tensors,
    fingerprint,
    to_proto,
    without_stored_tensors,
)
from trtint8.models.shapes import open_shape

#: The first opset whose QuantizeLinear and DequantizeLinear take one scale per channel.
OLDEST_OPSET = 13

#: The opset to which models with an older one are converted.
_CONVERTED_OPSET = 17


@dataclass(frozen=True)
class Model:
    """A checked ONNX model; the nodes of its own functions have taken the place of those that call them.

    Attributes:
        graph_model: The model in onnx-ir's form; not to be changed.
        name: The model's name in messages: its file name, or ``model``.
        known_fingerprint: The fingerprint, where it is that of another graph.
        cut_from: The fingerprint of the model that this one was cut from; None if it was not cut.
        light: What the graph was read from, where all its weights are in memory.
        data_files: The files beside the model's own that its weights are in.
    """

    graph_model: ir.Model
    name: str
    known_fingerprint: str | None = None
    cut_from: str | None = None
    light: LightModel | None = field(default=None, repr=False, compare=False)
    data_files: tuple[Path, ...] = field(default=(), repr=False, compare=False)

    @cached_property
    def fingerprint(self) -> str:
        """See :func:`trtint8.models.serialization.fingerprint`; computed when it is asked for."""
        return self.known_fingerprint or fingerprint(self.graph_model)

    def part(self, graph_model: ir.Model) -> Model:
        """A part of the model, which has the whole model's fingerprint.

        Args:
            graph_model: The part.
        """
        return replace(self, graph_model=graph_model, known_fingerprint=self.fingerprint, light=None)

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """The inputs that a feed must have; initializers that are listed as inputs are left out.

        Inputs in BF16 take float32.

        Raises:
            ModelError: An input has no element type, or one that NumPy lacks.
        """
        graph = self.graph_model.graph
        values = [value for value in graph.inputs if value.name not in graph.initializers]
        return tuple(_input_spec(value, self.name) for value in values)

    @property
    def output_shapes(self) -> tuple[OpenShape, ...]:
        """The shapes of the outputs, in order."""
        return tuple(open_shape(value) for value in self.graph_model.graph.outputs)

    @property
    def is_quantized(self) -> bool:
        """Whether the model holds Q/DQ pairs."""
        return has_pairs(self.graph_model)


def has_pairs(graph_model: ir.Model) -> bool:
    """Whether a graph holds Q/DQ pairs."""
    return any(node.op_type == "QuantizeLinear" for node in graph_model.graph)


#: The forms in which a model may be given: a path, the serialized model, the message, or what was checked.
ModelSource = FilePath | bytes | onnx.ModelProto | Model


@pause_garbage_collection()
def load_model(source: ModelSource) -> Model:
    """Reads and checks a model.

    Args:
        source: A path, the serialized model, or a ``ModelProto``; a :class:`Model` is returned as it is.

    Returns:
        The model.

    Raises:
        ModelError: The model is missing, empty, not ONNX, truncated, invalid or without nodes, a file with
            its weights is missing or too short, or weights are no numbers.
    """
    if isinstance(source, Model):
        return source
    if isinstance(source, onnx.ModelProto):
        return _checked(_parsed("model", lambda: LightModel.parse(source.SerializeToString())), "model", None)
    if isinstance(source, bytes):
        return _checked(_parsed("model", lambda: LightModel.parse(source)), "model", None)
    if not isinstance(source, PATH_TYPES):
        raise ModelError(
            f"cannot take a model from a {type(source).__name__}; give the path of an ONNX file, the "
            "serialized model or a ModelProto"
        )
    path = check_model_file(source)
    return _checked(_parsed(str(path), lambda: LightModel.read(path)), path.name, path)


def check_model_file(source: FilePath) -> Path:
    """Returns the path of a model's file, after a check that there is one.

    Args:
        source: The path.

    Raises:
        ModelError: There is no such file.
    """
    refuse_empty_path("the model", source, ModelError)
    path = Path(source)
    if not is_file(path):
        advice = "it is a folder, so give the .onnx file in it" if is_folder(path) else "check the path"
        raise ModelError(f"there is no model '{path}'; {advice}")
    return path


@pause_garbage_collection()
def check_light(light: LightModel, name: str) -> Model:
    """Checks a model that was made in memory.

    Args:
        light: The model; its weights must not change.
        name: The model's name in messages.

    Raises:
        ModelError: The model is invalid or without nodes.
    """
    return _checked(light, name, None)


def load_float_model(source: ModelSource) -> Model:
    """Reads and checks a model that is not quantized yet.

    Args:
        source: A path, the serialized model, or a ``ModelProto``.

    Raises:
        ModelError: The model is unusable (see :func:`load_model`), or holds Q/DQ pairs.
    """
    model = load_model(source)
    if model.is_quantized:
        raise ModelError(
            f"'{model.name}' holds Q/DQ pairs already; build it as it is, or give the float model"
        )
    warn_of_runtime_nodes(model)
    return model


def warn_of_runtime_nodes(model: Model) -> None:
    """Warns of a model that ONNX Runtime's optimizer has written, if it is to become an engine.

    Args:
        model: A checked model.
    """
    found = runtime_nodes(model.graph_model)
    if found:
        named = enumerated(f"'{node.name or node.outputs[0].name}' ({node.op_type})" for node in found)
        warn_user(
            f"ONNX Runtime's optimizer or one of its quantizers wrote {named} into '{model.name}': they stay "
            "in float, and TensorRT hardly takes them; give the model from before that"
        )


@pause_garbage_collection()
def prepare(model: Model) -> Model:
    """Brings a model into the form that both calibration and quantization use.

    FP16 becomes FP32, except inputs and outputs, and BF16 becomes FP32 throughout. Constants are folded,
    BatchNormalization is folded into convolutions, Identity nodes and guards against NaN where there is none
    are removed, a Sum is written as Adds, every node has a unique name, and every tensor has its shape as far
    as it can be inferred.
    Initializers are no longer listed as inputs. Other inputs, outputs and the names of the remaining tensors
    stay the same.

    Args:
        model: A checked model; not changed.

    Returns:
        A new model with the same fingerprint.

    Raises:
        ModelError: The opset is older than 13 and cannot be converted, or constants do not fit their nodes.
    """
    copy = _with_recent_opset(model).clone()
    settle_modules(copy)
    modules = modules_by_tensor(copy)
    run_passes(copy, model.name, common.RemoveInitializersFromInputsPass())
    if any(computes_in(copy, dtype) for dtype in NARROW_TYPES):
        run_passes(copy, model.name, ComputeInFloat32Pass())
    with bounded_constants(copy):
        run_passes(
            copy,
            model.name,
            LowerCaseEinsumPass(),
            common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
            FoldConstantsPass(),
            RemoveIdentitiesPass(),
            SumsAsAddsPass(),
            EinsumProductsPass(),
            FoldBatchNormPass(),
            RemoveNanGuardsPass(),
            common.RemoveUnusedNodesPass(),
            NameNodesPass(),
            InferShapesPass(),
        )
    keep_modules(copy, modules)
    fingerprint = model.fingerprint
    record_float_model(copy, fingerprint)
    return Model(copy, model.name, fingerprint, model.cut_from)


def rebuilt(graph_model: ir.Model, name: str) -> Model:
    """A changed graph as a prepared model, with the fingerprint that its file will have.

    Args:
        graph_model: The changed graph of a prepared model.
        name: The model's name in messages.

    Raises:
        ModelError: The model is larger than protobuf's limit of 2 GiB.
    """
    prepared = prepare(load_model(to_proto(graph_model)))
    # The file holds what the preparation made of the changes.
    return replace(prepared, name=name, known_fingerprint=fingerprint(prepared.graph_model))


_OF_ARRAYS = "it holds arrays, so " + advice(
    f"give the model first and {Argument('data')} after it",
    f"give the model first and {Argument('calibration')} after it",
    "give an ONNX model in its place",
)
_OF_RANGES = "if it is a table, " + advice(
    f"give the model first and {Argument('table')} after it",
    f"give the model first and {Argument('calibration')} after it",
    "give an ONNX model in its place",
)

#: What to do about a file that is no ONNX model, by what it holds.
_INSTEAD = {
    "PyTorch": "export the network of PyTorch with torch.onnx.export and give the .onnx file",
    "TensorFlow": "convert the network of TensorFlow with tf2onnx and give the .onnx file",
    "arrays": _OF_ARRAYS,
    "table": _OF_RANGES,
    "engine": "it is an engine, so give the ONNX model that it was built from",
    "archive": "unpack it, and give the .onnx file in it",
}


def _parsed(name: str, parse: Callable[[], LightModel]) -> LightModel:
    try:
        light = parse()
    except OSError as error:
        raise ModelError(f"cannot read the model '{name}': {error.strerror or error}") from error
    except DecodeError as error:
        instead = _INSTEAD.get(kind_by_ending(name), "export or download it again")
        raise ModelError(f"'{name}' is not an ONNX model, or is truncated; {instead}") from error
    except EncodeError as error:
        raise ModelError(
            f"'{name}' is larger than 2 GiB and does not fit one message; save it with external data and "
            "give its path"
        ) from error
    if not light.message.ListFields():
        raise ModelError(f"the model '{name}' is empty; export or download it again")
    return light


def _checked(light: LightModel, name: str, path: Path | None) -> Model:
    if not light.message.graph.node:
        raise ModelError(
            f"'{name}' holds no nodes, so it is not a usable ONNX model; export or download it again"
        )
    check_names(light.message, name)
    settle_domains(light.message, name)
    settle_function_opsets(light.message)
    stored = check_stored_tensors(light, name, path)
    check_functions(light.message, name)
    refuse_tool_quantizers(light.message, name)
    _check_values(light.message.graph, name)
    _check_attributes(light.message.graph, name)
    list_outputs_once(light.message, name)
    check_outputs_are_tensors(light.message, name)
    for mend in _MENDS:
        mend(light.message)
    with as_model_errors(name, "is not a valid ONNX model"):
        onnx.checker.check_model(hide(with_some_shapes(without_stored_tensors(light.message, name))))
    with as_model_errors(name, "cannot be read"):
        graph_model = _from_light(light, stored)
    known_fingerprint = None
    if graph_model.functions:
        known_fingerprint = fingerprint(graph_model)
        run_passes(graph_model, name, InlineFunctionsPass())
    changed = _leave_training_mode(graph_model, name) | write_zero_points(graph_model)
    as_given = graph_model
    graph_model = with_known_opset(with_opset(graph_model, needed_opset(light.message), name), name)
    changed = changed or graph_model is not as_given
    check_complete(graph_model, name)
    check_weights(graph_model, name)
    as_read = None if stored.files or changed else light
    model = Model(graph_model, name, known_fingerprint, light=as_read, data_files=stored.files)
    _warn_of_unknown_nodes(model)
    if not model.is_quantized:
        _warn_of_random_nodes(model)
    return model


def _check_values(graph: onnx.GraphProto, name: str) -> None:
    """Refuses what ONNX's checker does not name: inputs without a type or shape, text, and no outputs."""
    if not graph.output:
        raise ModelError(f"'{name}' has no outputs, so it computes nothing; export it again")
    for value in graph.input:
        tensor = value.type.tensor_type
        if value.type.WhichOneof("value") not in (None, "tensor_type"):
            continue
        if not tensor.elem_type or not tensor.HasField("shape"):
            lacks = "shape" if tensor.elem_type else "element type"
            raise ModelError(
                f"the input '{value.name}' of '{name}' has no {lacks}, and TensorRT needs one; export the "
                "model with it"
            )
        if tensor.elem_type == onnx.TensorProto.STRING:
            raise ModelError(
                f"the input '{value.name}' of '{name}' is text, which TensorRT does not take; export the "
                "model without what reads it"
            )


def _check_attributes(graph: onnx.GraphProto, name: str) -> None:
    """Refuses attributes without a value, which only functions have."""
    for node in (node for inner in message_graphs(graph) for node in inner.node):
        for attribute in node.attribute:
            if attribute.ref_attr_name:
                raise ModelError(
                    f"'{name}' is not a valid ONNX model: the attribute '{attribute.name}' of node "
                    f"'{node.name}' refers to '{attribute.ref_attr_name}', which only a function can have"
                )


def _leave_training_mode(graph_model: ir.Model, name: str) -> bool:
    switched = Counter(switch_to_inference(graph_model))
    if switched:
        nodes = " and ".join(f"{count} {operator}" for operator, count in sorted(switched.items()))
        warn_user(
            f"'{name}' was exported in training mode, and {nodes} nodes compute as in inference instead; "
            "export it in evaluation mode, after model.eval()",
            note=True,
        )
    return bool(switched)


def _warn_of_unknown_nodes(model: Model) -> None:
    found = unknown_nodes(model.graph_model)
    if found:
        named = enumerated(f"'{node.name or node.outputs[0].name}' ({node.op_type})" for node in found)
        behind = values_behind(model.graph_model.graph, set(found).__contains__)
        lost = [f"'{value.name}'" for value in model.graph_model.graph.outputs if value in behind]
        warn_user(
            f"ONNX has no such operator as that of {named} in '{model.name}', which is taken for a plugin of "
            "TensorRT: only what comes before it is calibrated, measured and audited"
            + (f", without the output {enumerated(lost)}" if lost else "")
            + "; if it is a plugin, give it the domain 'trt.plugins', else export the model with ONNX's "
            "operators"
        )


def _warn_of_random_nodes(model: Model) -> None:
    found = random_nodes(model.graph_model)
    if found:
        first, others = found[0], f", and {len(found) - 1} more" if len(found) > 1 else ""
        warn_user(
            f"'{model.name}' draws random numbers ('{first.outputs[0].name}', from {first.op_type}{others}), "
            "so two runs on the same samples may differ, and errors of INT8 that are found contain that; "
            "export it in evaluation mode, or with the random numbers as an input"
        )


def _leave_devices_out(message: onnx.ModelProto) -> None:
    """Removes on which devices nodes should run: TensorRT decides that itself."""
    message.ClearField("configuration")
    for node in message.graph.node:
        node.ClearField("device_configurations")


#: What lets ONNX's checker take a model that ONNX Runtime and TensorRT take, in this order: shapes are
#: inferred of nodes in order whose operators are known.
_MENDS: tuple[Callable[[onnx.ModelProto], None], ...] = (
    settle_ir_version,
    clear_unknown_sizes,
    sort_nodes,
    declare_plugins,
    name_nodes_apart,
    name_graphs,
    name_listed_outputs,
    declare_shapes,
    _leave_devices_out,
)


def _from_light(light: LightModel, stored: StoredTensors) -> ir.Model:
    stored.fill()
    graph_model = ir.from_proto(light.message)
    for name, values in (*light.weights.items(), *stored.weights.items()):
        graph_model.graph.initializers[name].const_value = ir.Tensor(values, name=name)
    _join_same(graph_model.graph, stored.weights)
    return graph_model


def _join_same(graph: ir.Graph, weights: NamedArrays) -> None:
    """Lets the first of the constants that have the same memory take the place of all."""
    first: dict[tuple[Any, ...], ir.Value] = {}
    for name, values in weights.items():
        value = graph.initializers[name]
        if not value.is_graph_input() and not value.is_graph_output():
            place = values.__array_interface__["data"], values.dtype, values.shape
            same = first.setdefault(place, value)
            if same is not value:
                value.replace_all_uses_with(same)
                del graph.initializers[name]


def _with_recent_opset(model: Model) -> ir.Model:
    opset = model.graph_model.opset_imports.get("", 0)
    if opset >= OLDEST_OPSET:
        return model.graph_model
    return with_opset(model.graph_model, _CONVERTED_OPSET, model.name)


def _input_spec(value: ir.Value, model: str) -> InputSpec:
    try:
        # NumPy has no BF16, and a prepared model none either.
        known = value.dtype is not None and value.dtype != ir.DataType.BFLOAT16
        dtype = value.dtype.numpy() if value.dtype is not None and known else np.dtype(np.float32)
    except TypeError as error:
        raise ModelError(
            f"the input '{value.name}' of '{model}' has the element type {value.dtype}, which no array has; "
            "export the model again"
        ) from error
    bound = input_bound(value) if dtype.kind in "iu" else None
    hides = dtype.kind == "f" and hides_scores(value)
    return InputSpec(value.name or "", dtype, open_shape(value), bound, hides)


#: The fingerprint of the float model that a model was made from, also where weights were equalized since.
FLOAT_MODEL = "trtint8.float_model"

#: The fingerprint of the samples that a model's ranges were found on, and their number.
_CALIBRATION_DATA, _CALIBRATION_SAMPLES = "trtint8.calibration_data", "trtint8.calibration_samples"

#: What a model was fed while it was calibrated, as JSON.
_CALIBRATED_INPUTS = "trtint8.calibrated_inputs"

#: What the calibration of a model warned of, as JSON.
_WARNINGS = "trtint8.warnings"

#: What was done to the weights of a model before it was quantized, so that they lose less.
_REMEDIES = "trtint8.changed_weights"

#: Whether a model was quantized, and has no Q/DQ pairs all the same.
WITHOUT_PAIRS = "trtint8.without_pairs"


def record_float_model(graph_model: ir.Model, fingerprint: str) -> None:
    """Writes into a model which float model it was made from, unless it says so already."""
    graph_model.metadata_props.setdefault(FLOAT_MODEL, fingerprint)


def record_calibration(graph_model: ir.Model, data: str | None, samples: int | None) -> None:
    """Writes into a model which samples it was calibrated with, where that is known."""
    if data is not None and samples is not None:
        graph_model.metadata_props.update({_CALIBRATION_DATA: data, _CALIBRATION_SAMPLES: str(samples)})


@dataclass(frozen=True)
class _Warnings:
    """What a calibration warned of."""

    warnings: tuple[records.Text, ...]


def record_quantization(
    graph_model: ir.Model, inputs: CalibratedInputs | None, warnings: Sequence[str], *, pairs: bool
) -> None:
    """Writes into a quantized model how its ranges were found.

    Args:
        graph_model: The model.
        inputs: What it was fed while it was calibrated, where that is known.
        warnings: What its calibration warned of.
        pairs: Whether it has Q/DQ pairs.
    """
    properties = graph_model.metadata_props
    if inputs is not None:
        properties[_CALIBRATED_INPUTS] = records.render(inputs).decode()
    if warnings:
        properties[_WARNINGS] = records.render(_Warnings(tuple(warnings))).decode()
    properties.pop(WITHOUT_PAIRS, None)
    if not pairs:
        properties[WITHOUT_PAIRS] = "yes"


def inputs_of(source: ModelSource) -> CalibratedInputs | None:
    """What a model was fed while it was calibrated; None where it does not say so.

    Args:
        source: The model. Of one that is not loaded, neither the graph nor the weights are read, so that data
            can be opened while the model is still read. What is no model gives None: whoever loads it says
            what is wrong.

    Raises:
        ModelError: The model cannot be read, or what it says is damaged.
    """
    return _read(source, _CALIBRATED_INPUTS, CalibratedInputs)


def warnings_of(source: ModelSource) -> tuple[str, ...]:
    """What the calibration of a model warned of; see :func:`inputs_of`."""
    found = _read(source, _WARNINGS, _Warnings)
    return found.warnings if found else ()


def _read(source: ModelSource, key: str, kind: type[records.RecordT]) -> records.RecordT | None:
    properties, name = _properties_of(source)
    if key not in properties:
        return None
    wrong = f"the property '{key}' of '{name}' is damaged"
    with records.decoding(wrong, ModelError, "quantize the float model again"):
        return records.to_record(records.parse(properties[key].encode(errors="replace")), kind)


def _properties_of(source: ModelSource) -> tuple[Mapping[str, str], str]:
    """The properties of a model, and what it is called in messages."""
    if isinstance(source, Model):
        return source.graph_model.metadata_props, source.name
    entries: Iterable[onnx.StringStringEntryProto] = ()
    name = "model"
    with contextlib.suppress(DecodeError, IndexError):
        if isinstance(source, onnx.ModelProto):
            entries = source.metadata_props
        elif isinstance(source, bytes):
            entries = list(properties(io.BytesIO(source)))
        elif isinstance(source, PATH_TYPES) and is_file(source):
            name = Path(source).name
            with records.reading(f"the model '{name}'", ModelError), records.open_file(source) as stream:
                entries = list(properties(stream))
    return {entry.key: entry.value for entry in entries}, name


def record_remedies(graph_model: ir.Model, remedies: Sequence[str]) -> None:
    """Writes into a model how its weights were changed."""
    graph_model.metadata_props[_REMEDIES] = ", ".join(remedies)


def calibration_of(graph_model: ir.Model) -> tuple[str, int] | None:
    """The fingerprint of the samples that a model was calibrated with, and their number; None if unknown."""
    data, samples = map(graph_model.metadata_props.get, (_CALIBRATION_DATA, _CALIBRATION_SAMPLES))
    return (data, int(samples)) if data and samples and samples.isdecimal() else None


def forget_origin(graph_model: ir.Model) -> None:
    """Removes what a model says of where it comes from."""
    calibrated = (_CALIBRATION_DATA, _CALIBRATION_SAMPLES, _CALIBRATED_INPUTS, _WARNINGS)
    for key in (FLOAT_MODEL, *calibrated, _REMEDIES, WITHOUT_PAIRS):
        graph_model.metadata_props.pop(key, None)


_SUFFIX = ".onnx"


def names_model(path: FilePath) -> bool:
    """Whether a file's name is that of a model; where either is given, every other file is an engine."""
    return Path(path).suffix.lower() == _SUFFIX


def check_model_name(path: FilePath) -> Path:
    """Refuses a name for a model by which it would be taken for an engine, before any work is done for it.

    Raises:
        OutputError: The name is empty, does not end in .onnx, or is that ending alone.
    """
    return check_ending(path, "a model", (_SUFFIX,))
