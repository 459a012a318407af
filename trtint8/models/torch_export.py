"""Modules of PyTorch as ONNX models. PyTorch is never imported here: who has a module has imported it."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import logging
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeGuard, cast

import onnx_ir as ir

from calibrators.checks import warn_user
from calibrators.errors import Argument, ModelError, UnsupportedError, cause_in_words
from calibrators.host.weights import LightModel
from trtint8.models.graph import SCOPES, settle_modules
from trtint8.models.model import Model, ModelSource, check_light
from trtint8.models.serialization import to_light

#: The first PyTorch that names dynamic dimensions as it exports.
_OLDEST = (2, 7)

#: The name of the first dimension, which is the number of samples.
_BATCH = "batch"


class TorchModule(Protocol):
    """A ``torch.nn.Module``, by methods that it has and no other kind of model."""

    def eval(self) -> Any:
        """Puts the module into evaluation mode."""
        ...

    def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
        """The parameters with their names."""
        ...


#: The forms in which a caller may give a model; a module takes example inputs as well.
AnyModel: TypeAlias = ModelSource | TorchModule


def open_module(model: AnyModel, example_inputs: object) -> ModelSource:
    """Exports a module; another model stays as it is.

    Args:
        model: A module of PyTorch, or any other model.
        example_inputs: What the module's forward takes: a tensor, a tuple of positional arguments, or a dict
            of arguments by name; None for another model.

    Returns:
        The exported model, which keeps a copy of the module's weights in memory; or ``model``.

    Raises:
        ModelError: Example inputs are missing, do not fit the module or are given for another model, or the
            module cannot be exported.
        UnsupportedError: PyTorch is too old, or onnxscript is not installed.

    Warns:
        UserWarning: The module was exported for the batch of the example inputs alone.
    """
    return open_modules([model], example_inputs)[0]


def open_modules(models: Sequence[AnyModel], example_inputs: object) -> list[ModelSource]:
    """Exports the modules among several models that take the same inputs.

    Args:
        models: Modules of PyTorch and other models.
        example_inputs: What the forward of each module takes; see :func:`open_module`.

    Returns:
        The exported models, and the others as they were, in the same order.

    Raises:
        ModelError: See :func:`open_module`.
        UnsupportedError: See :func:`open_module`.
    """
    if example_inputs is not None and not any(map(_is_module, models)):
        raise ModelError(
            f"{Argument('example_inputs')} are for a torch.nn.Module, and the model is given as "
            f"{', '.join(sorted({type(model).__name__ for model in models}))}; leave them out"
        )
    exported = {id(model): _exported(model, example_inputs) for model in models if _is_module(model)}
    return [exported.get(id(model), cast("ModelSource", model)) for model in models]


def _is_module(model: object) -> TypeGuard[TorchModule]:
    nn = getattr(sys.modules.get("torch"), "nn", None)  # nothing is a module before PyTorch was imported
    return nn is not None and isinstance(model, nn.Module)


def _exported(module: Any, example_inputs: object) -> Model:
    """Exports a module in evaluation mode, with a dynamic batch where it can have one."""
    torch = sys.modules["torch"]
    module = _unwrapped(torch, module)
    name = type(module).__name__
    if example_inputs is None:
        raise ModelError(
            f"'{name}' is a torch.nn.Module, which is exported by running it once: give "
            f"{Argument('example_inputs')} as well, what its forward takes, such as torch.zeros(1, 3, 224, "
            "224)"
        )
    _check_exporter(torch, name)
    if isinstance(module, torch.jit.ScriptModule):
        raise ModelError(
            f"'{name}' is a TorchScript module, which PyTorch no longer exports; give the torch.nn.Module "
            "that it was made from"
        )
    arguments = _bound_arguments(module, example_inputs)
    with _evaluating(module), torch.no_grad(), warnings.catch_warnings(), _no_logged_warnings():
        warnings.simplefilter("ignore")  # of what PyTorch's exporter uses of PyTorch
        try:
            outputs = module(*arguments.positional, **arguments.named)
        except Exception as error:
            raise ModelError(
                f"the torch.nn.Module '{name}' does not run on {Argument('example_inputs')}: "
                f"{cause_in_words(error)}; give what its forward takes, on the module's own device"
            ) from error
        program, failure = _program(torch, module, arguments, dynamic=True)
        if failure:
            program, failure_when_fixed = _program(torch, module, arguments, dynamic=False)
            if failure_when_fixed:
                if foreign := _foreign_output(module, outputs):
                    raise ModelError(
                        f"the torch.nn.Module '{name}' cannot be exported to ONNX: {foreign}"
                    ) from failure_when_fixed
                raise ModelError(
                    f"the torch.nn.Module '{name}' cannot be exported to ONNX: "
                    f"{cause_in_words(failure_when_fixed)}; change its forward, or export it another way and "
                    "give the file"
                ) from failure_when_fixed
    if failure:
        warn_user(
            f"'{name}' was exported for the batch of {Argument('example_inputs')} alone, because PyTorch "
            f"exports it with no other: {cause_in_words(failure)}",
            note=True,
        )
    named = [inner for key, value in arguments.by_name.items() for inner in _tensor_names(key, value)]
    return _as_model(program.model, named, _output_names(outputs), name)


def _unwrapped(torch: Any, module: Any) -> Any:
    """The user's own module in what compiles it, or spreads it over GPUs."""
    parallel = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)
    while isinstance(module, parallel) or hasattr(module, "_orig_mod"):
        module = module.module if isinstance(module, parallel) else module._orig_mod
    return module


def _check_exporter(torch: Any, name: str) -> None:
    """Refuses a PyTorch that cannot export, or lacks what it needs for that."""
    version = tuple(map(int, re.findall(r"\d+", torch.__version__)[:2]))
    if version < _OLDEST:
        raise UnsupportedError(
            f"exporting '{name}' takes PyTorch {'.'.join(map(str, _OLDEST))} or newer, and "
            f"{torch.__version__} is installed; upgrade it, or export the module yourself and give the file"
        )
    if importlib.util.find_spec("onnxscript") is None:
        raise UnsupportedError(
            f"exporting '{name}' takes onnxscript, which is not installed; install it with "
            "'pip install onnxscript'"
        )


@dataclass(frozen=True)
class _Arguments:
    """Example inputs as arguments of a module's forward.

    Attributes:
        positional: The positional ones.
        named: The others.
        by_name: All of them by the names of forward's parameters, in their order.
    """

    positional: tuple[Any, ...]
    named: Mapping[str, Any]
    by_name: Mapping[str, Any]


def _bound_arguments(module: Any, example_inputs: object) -> _Arguments:
    """The example inputs as arguments of forward."""
    positional: tuple[object, ...] = ()
    named: Mapping[str, object] = {}
    if isinstance(example_inputs, Mapping):
        named = example_inputs
    else:
        positional = tuple(example_inputs) if isinstance(example_inputs, tuple | list) else (example_inputs,)
    signature = inspect.signature(module.forward)
    try:
        bound = signature.bind(*positional, **named)
    except TypeError as error:
        raise ModelError(
            f"{Argument('example_inputs')} do not fit forward{signature} of the torch.nn.Module "
            f"'{type(module).__name__}': {error}; give a tensor, a tuple of tensors, or a dict by these names"
        ) from error
    by_name = dict(bound.arguments)
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            by_name.update(by_name.pop(parameter.name, {}))
    return _Arguments(bound.args, bound.kwargs, by_name)


@contextlib.contextmanager
def _evaluating(module: Any) -> Iterator[None]:
    """Puts a module into evaluation mode, and each of its parts back into its own mode afterwards."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


@contextlib.contextmanager
def _no_logged_warnings() -> Iterator[None]:
    """Leaves out what PyTorch's exporter logs, such as that torchvision is not there; errors it raises."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.WARNING))
    try:
        yield
    finally:
        logging.disable(before)


def _foreign_output(module: Any, outputs: Any) -> str | None:
    """Which output is of a type of its own, such as a cache, and how to leave it out; None where none is."""
    named = outputs.items() if isinstance(outputs, Mapping) else [("output", outputs)]
    for key, value in named:
        kinds = (type(part).__name__ for _, part in _parts("", value) if not _is_exported(part))
        if kind := next(kinds, None):
            cure = "return tensors, or tuples, lists or dicts of them"
            if getattr(getattr(module, "config", None), "use_cache", False):
                cure = (
                    "set config.use_cache = False on the module, or export it another way and give the file"
                )
            return f"its forward returns a {kind} in '{key}', and PyTorch exports no such type; {cure}"
    return None


def _is_exported(value: Any) -> bool:
    """Whether PyTorch exports a value that holds no others."""
    return _is_tensor(value) or value is None or isinstance(value, bool | int | float | str)


def _program(
    torch: Any, module: Any, arguments: _Arguments, *, dynamic: bool
) -> tuple[Any, Exception | None]:
    """The exported program, or why there is none."""
    tensors = (part for _, part in _parts("", arguments.by_name) if _is_tensor(part) and part.ndim)
    batch = next((tensor.shape[0] for tensor in tensors), None) if dynamic else None
    shapes = {name: _dynamic_shapes(value, batch) for name, value in arguments.by_name.items()}
    try:
        return torch.onnx.export(
            module,
            arguments.positional,
            kwargs=arguments.named,
            dynamo=True,
            dynamic_shapes=shapes if batch is not None else None,
            verbose=False,
        ), None
    except Exception as error:  # noqa: BLE001 the caller raises it, of whichever of PyTorch's parts it is
        return None, error


def _dynamic_shapes(value: Any, batch: int | None) -> Any:
    """Which dimensions of an argument are the batch, in the form that ``torch.onnx.export`` takes."""
    if _is_tensor(value):
        return {0: _BATCH} if value.ndim and value.shape[0] == batch else None
    if isinstance(value, Mapping):
        return {name: _dynamic_shapes(part, batch) for name, part in value.items()}
    if isinstance(value, tuple | list):
        parts = [_dynamic_shapes(part, batch) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)  # a named tuple
    return None


def _output_names(outputs: Any) -> list[str]:
    """Names of a module's outputs: the keys of a dict; else ``output``, numbered where there are several."""
    if isinstance(outputs, Mapping):
        return [name for key, value in outputs.items() for name in _tensor_names(str(key), value)]
    return _tensor_names("output", outputs)


def _tensor_names(name: str, value: Any) -> list[str]:
    """A name for every tensor in a value, which may hold several."""
    return [inner for inner, part in _parts(name, value) if _is_tensor(part)]


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What a value of any depth holds in the end, each with a name."""
    if isinstance(value, Mapping | tuple | list):
        for key, part in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _parts(f"{name}_{key}", part)
    else:
        yield name, value


def _is_tensor(value: object) -> bool:
    return isinstance(value, sys.modules["torch"].Tensor)


def _as_model(graph_model: ir.Model, inputs: list[str], outputs: list[str], name: str) -> Model:
    """The exported graph as a checked model, which does not change when the module does."""
    graph = graph_model.graph
    if len(outputs) != len(graph.outputs):  # caches of a language model, for example, are several
        outputs = [f"output_{index}" for index in range(len(graph.outputs))]
    # An input that is returned as it is gets another name from PyTorch.
    _rename(graph, graph.outputs, [f"{name}_output" if name in inputs else name for name in outputs])
    if len(inputs) == len(graph.inputs):
        _rename(graph, graph.inputs, inputs)
    settle_modules(graph_model)
    # PyTorch describes there where in the user's files each node comes from. Only its module is of use.
    for described in (graph_model, graph, *ir.traversal.RecursiveGraphIterator(graph)):
        module = described.metadata_props.get(SCOPES)
        described.metadata_props.clear()
        if module is not None:
            described.metadata_props[SCOPES] = module
    light = to_light(graph_model)
    weights = {weight: values.copy() for weight, values in light.weights.items()}
    for values in weights.values():
        values.flags.writeable = False
    return check_light(LightModel(light.message, weights), name)


def _rename(graph: ir.Graph, values: Sequence[ir.Value], names: Sequence[str]) -> None:
    """Gives inputs or outputs the names that a user knows, as far as nothing else in the graph has them."""
    taken = {value.name for value in graph.inputs} | set(graph.initializers)
    taken |= {output.name for node in ir.traversal.RecursiveGraphIterator(graph) for output in node.outputs}
    for value, name in zip(values, names, strict=True):
        if name not in taken:
            taken.add(name)
            value.name = name
