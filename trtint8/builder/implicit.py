"""Implicit INT8: ranges and calibrators for a builder of TensorRT 8.5 to 10.x.

Precisions of single layers, and types and formats of inputs and outputs, in a TensorRT network.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from calibrators.checks import check_choice, several, warn_user
from calibrators.errors import Argument, BuildError, UnsupportedError, such_as
from calibrators.tensorrt.calibrator import AnyCalibrator
from calibrators.tensorrt.flavor import Flavor, numpy_dtype
from trtint8.builder.config import BuildOptions, member, set_flag
from trtint8.builder.dynamic_ranges import (
    RANGED,
    MissingRange,
    SetRanges,
    check_ranges,
    layer_type,
    layers_of,
    read_network,
    set_ranges,
)
from trtint8.engine.profiles import Profile, ShapeRange

#: The only calibrator that the DLA takes.
_DLA_CALIBRATOR = "IInt8EntropyCalibrator2"

#: The precision besides INT8 that every build allows.
_EVERY_BUILDS_FLOAT = "fp32"

#: Layers by which a network gives its precisions itself.
_EXPLICIT = frozenset({"QUANTIZE", "DEQUANTIZE", "DYNAMIC_QUANTIZE"})


@dataclass(frozen=True)
class ImplicitInt8:
    """Where the ranges of an implicitly quantized network come from.

    Attributes:
        calibrator: The calibrator, see :func:`~calibrators.tensorrt.calibrator.as_any_calibrator`; None where
            ``ranges`` are enough.
        ranges: Tensor name to amax; tensors that the network lacks are ignored, because the parser may remove
            layers.
        manual: Names among ``ranges`` that the user set by hand; each must be in the network.
        keep_float: Names of layers, or patterns with ``*`` and ``?``, that do not run in INT8.
        model: Fingerprint of the float model, by which a calibrator's cache of another model is told; None
            where it is not known.
    """

    calibrator: AnyCalibrator | None = None
    ranges: Mapping[str, float] = field(default_factory=dict)
    manual: frozenset[str] = frozenset()
    keep_float: Sequence[str] = ()
    model: str | None = None


def check_calibrator(trt: Any, calibrator: AnyCalibrator, options: BuildOptions) -> None:
    """Refuses a calibrator that TensorRT cannot use.

    Args:
        trt: The TensorRT module.
        calibrator: What was given as calibrator.
        options: The build options, which say whether to build for the DLA.

    Raises:
        UnsupportedError: The object is no calibrator, or not the one that the DLA takes.
    """
    given = calibrator.implementation
    if not isinstance(given, trt.IInt8Calibrator):
        raise UnsupportedError(
            f"a {type(given).__name__} is no TensorRT calibrator; give one of calibrators.tensorrt"
        )
    if options.dla_core is not None and not isinstance(given, getattr(trt, _DLA_CALIBRATOR)):
        raise UnsupportedError(
            f"the DLA takes no other calibrator than EntropyCalibrator2, and this is a {type(given).__name__}"
        )


def check_device(calibrator: AnyCalibrator, device: int) -> None:
    """Refuses a calibrator whose batches are not on the GPU that builds.

    Args:
        calibrator: A calibrator that TensorRT can use.
        device: Index of the GPU that builds.

    Raises:
        BuildError: The calibrator uploads to another GPU.
    """
    uploads = calibrator.device_index
    if uploads is not None and uploads != device:
        raise BuildError(
            f"the calibrator's batches are on GPU {uploads}, and the build is to run on GPU {device}; give "
            "both the same device"
        )


def apply_ranges(
    trt: Any, network: Any, config: Any, implicit: ImplicitInt8, options: BuildOptions
) -> tuple[MissingRange, ...]:
    """Sets the dynamic ranges and the layers that stay in float.

    Args:
        trt: The TensorRT module.
        network: The parsed ``INetworkDefinition``, with the types of its inputs and outputs set.
        config: The ``IBuilderConfig`` of the build.
        implicit: Where the ranges come from, and the layers that stay in float.
        options: The build options, with the precisions of single layers.

    Returns:
        The tensors that have no range; empty where a calibrator finds the ranges.

    Raises:
        BuildError: A range that was set by hand belongs to no tensor of the network, none of the ranges does,
            or a pattern matches no layer.
    """
    tensors = read_network(trt, network)
    check_ranges(tensors, implicit.ranges, implicit.manual)
    kept = dict.fromkeys(implicit.keep_float, _EVERY_BUILDS_FLOAT)
    in_float = set_precisions(trt, network, config, options, kept)
    if implicit.calibrator is not None:
        return ()
    return set_ranges(network, tensors, implicit.ranges, in_float).missing


def set_network_ranges(
    flavor: Flavor,
    network: Any,
    config: Any,
    ranges: Mapping[str, float],
    manual: Collection[str],
    keep_float: Sequence[str] | Mapping[str, str],
) -> SetRanges:
    """Sets the dynamic ranges of a network that trtint8 does not build, and the layers that stay in float.

    Args:
        flavor: The TensorRT that the network belongs to.
        network: An ``INetworkDefinition``.
        config: The ``IBuilderConfig`` of the build; None where the caller sets the flags.
        ranges: Tensor name to amax.
        manual: Names of the tensors whose range was set by hand; each must be in the network.
        keep_float: Layer names or patterns; or these to "fp32", "fp16" or "bf16".

    Returns:
        What was set, and what is missing.

    Raises:
        UnsupportedError: This TensorRT, or this network, has no dynamic ranges, or a precision is unknown.
        BuildError: The ranges or patterns are not those of the network, or ``config`` is missing or has a
            calibrator.
        TableError: A range is no float32.
    """
    _check_implicit(flavor, network)
    trt = flavor.module
    if isinstance(keep_float, Mapping):
        kept = dict(keep_float)
        for precision in kept.values():
            check_choice(f"a precision of {Argument('keep_float')}", precision, ("fp32", "fp16", "bf16"))
    else:
        kept = dict.fromkeys(several(keep_float), _EVERY_BUILDS_FLOAT)
    if config is None and kept:
        raise BuildError(
            f"{Argument('keep_float')} needs config: TensorRT obeys precisions only where it has the flag "
            "for that"
        )
    if config is not None:
        _check_config(trt, config)
    tensors = read_network(trt, network)
    check_ranges(tensors, ranges, manual)
    in_float = set_precisions(trt, network, config, BuildOptions(), kept)
    if config is not None:
        set_flag(trt, config, "INT8", True)
        set_flag(trt, config, "FP16", "fp16" in kept.values())
        set_flag(trt, config, "BF16", "bf16" in kept.values())
    return set_ranges(network, tensors, ranges, in_float)


def _check_implicit(flavor: Flavor, network: Any) -> None:
    """Refuses a network that takes its INT8 from the graph."""
    if not flavor.implicit_int8:
        raise UnsupportedError(
            f"{flavor} has no dynamic ranges, which TensorRT 8.5 to 10.x have; take the explicit route: put "
            "Q/DQ pairs into the network, by trtint8.quantize, or by add_quantize and add_dequantize"
        )
    trt = flavor.module
    if flavor.tells_strong_types and network.get_flag(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED):
        raise UnsupportedError(
            "the network is strongly typed, so it has no dynamic ranges; create it without STRONGLY_TYPED, "
            "or put Q/DQ pairs into it"
        )
    if not network.num_layers:
        raise BuildError("the network has no layers; define it, or parse a model, before its ranges are set")
    for layer in layers_of(network):
        if layer_type(trt, layer) in _EXPLICIT:
            raise UnsupportedError(
                f"the network holds Q/DQ layers, such as '{layer.name}', so its INT8 is explicit and dynamic "
                "ranges have no effect; leave the ranges out, or the layers"
            )


def _check_config(trt: Any, config: Any) -> None:
    if not isinstance(config, trt.IBuilderConfig):
        raise BuildError(
            f"{Argument('config')} is a {type(config).__name__}; give the IBuilderConfig of the build"
        )
    if config.int8_calibrator is not None:
        raise BuildError(
            f"{Argument('config')} has an int8_calibrator, and TensorRT does not say whether its ranges or "
            "these would count; leave the calibrator out, and give the cache that it has written, or its "
            "table"
        )


def calibration_profile(calibrator: AnyCalibrator, profiles: Sequence[Profile]) -> Profile | None:
    """The shapes with which TensorRT calibrates.

    Args:
        calibrator: The calibrator, which is bound to the build.
        profiles: The optimization profiles.

    Returns:
        The shapes of the batches as a profile; where they are unknown, the optimal shapes of the first
        profile; None where all inputs are static.
    """
    if not profiles:
        return None
    shapes = calibrator.shapes() or {}
    fixed = {name: shapes.get(name, sizes.opt) for name, sizes in profiles[0].items()}
    return {name: ShapeRange(shape, shape, shape) for name, shape in fixed.items()}


def finish_calibration(calibrator: AnyCalibrator | None, error: BaseException | None) -> None:
    """Frees a calibrator's memory, and raises the exception that it failed with during a build.

    Args:
        calibrator: The calibrator, or None.
        error: The exception of a build that failed; None where it succeeded.

    Raises:
        BaseException: The exception that the calibrator failed with.

    Warns:
        UserWarning: The build succeeded, and TensorRT asked the calibrator neither for a batch nor for its
            cache.
    """
    if calibrator is None:
        return
    calibrator.raise_failure(error)
    if error is None and not calibrator.was_asked:
        warn_user(
            "TensorRT never asked the calibrator for data; check that the model has layers that run in INT8"
        )


_TYPES = {"fp32": "FLOAT", "fp16": "HALF", "bf16": "BF16", "int8": "INT8"}


def match_layers(names: Iterable[str], patterns: Mapping[str, str]) -> dict[str, str]:
    """Finds the value of each layer; a later pattern takes precedence over an earlier one.

    Args:
        names: The names of all layers.
        patterns: Layer name or pattern (``*``, ``?``) to value.

    Returns:
        Layer name to value, for the layers that any pattern matches.

    Raises:
        BuildError: A pattern matches no layer, or is no text.
    """
    names = list(names)
    matched: dict[str, str] = {}
    for pattern, value in patterns.items():
        if not isinstance(pattern, str):
            raise BuildError(
                f"the pattern {pattern!r:.80} is no text; give the name of a layer, or a pattern"
            )
        # TensorRT names layers like "(Unnamed Layer* 0) [Convolution]", and brackets stand for themselves.
        glob = pattern.replace("[", "[[]")
        hits = [name for name in names if name == pattern or fnmatchcase(name, glob)]
        if not hits:
            raise BuildError(
                f"the pattern '{pattern}' matches no layer of the network; it has {such_as(names)}"
            )
        matched.update(dict.fromkeys(hits, value))
    return matched


def set_precisions(
    trt: Any, network: Any, config: Any, options: BuildOptions, kept: Mapping[str, str] | None = None
) -> frozenset[str]:
    """Sets the precisions and the output types of single layers.

    Args:
        trt: The TensorRT module, 8.5 to 10.x.
        network: An ``INetworkDefinition``.
        config: The ``IBuilderConfig`` of the build.
        options: The build options, with the patterns.
        kept: Layer name or pattern to the floating-point precision that the layer and its outputs must have,
            except outputs of the network; TensorRT has to obey it.

    Returns:
        Names of the layers that have to stay in float.

    Raises:
        BuildError: A pattern matches no layer. Nothing is set then.
        UnsupportedError: This TensorRT lacks a type or a flag. Nothing is set then.
    """
    # Layers that compute no floats have no precision to choose.
    layers = [layer for layer in layers_of(network) if _computes_floats(trt, layer)]
    names = [layer.name for layer in layers]
    stay = match_layers(names, kept or {})
    precisions = {**match_layers(names, options.layer_precisions), **stay}
    outputs = {**match_layers(names, options.output_types), **stay}
    types = {kind: data_type(trt, kind) for kind in {*precisions.values(), *outputs.values()}}
    obeyed = options.precision_constraints == "obey" or bool(stay)
    if precisions or outputs:
        set_flag(trt, config, "OBEY_PRECISION_CONSTRAINTS", obeyed)
        set_flag(trt, config, "PREFER_PRECISION_CONSTRAINTS", not obeyed)
    for layer in layers:
        if layer.name in precisions:
            layer.precision = types[precisions[layer.name]]
        for index in range(layer.num_outputs if layer.name in outputs else 0):
            tensor = layer.get_output(index)
            # The type of an output of the network is the caller's; TensorRT converts what the layer computes.
            if layer.name not in stay or not tensor.is_network_output:
                layer.set_output_type(index, types[outputs[layer.name]])
    return frozenset(name for name, kind in precisions.items() if obeyed and kind != "int8")


def check_io_names(names: Iterable[str], options: BuildOptions) -> None:
    """Refuses types and formats of what is no input or output.

    Args:
        names: The names of all inputs and outputs.
        options: The build options, with types and formats by name.

    Raises:
        BuildError: The network has no input or output of a name.
    """
    known = list(names)
    for name in (*options.io_types, *options.io_formats):
        if name not in known:
            raise BuildError(f"'{name}' is no input or output of the network; it has {such_as(known)}")


def set_io(trt: Any, network: Any, options: BuildOptions) -> None:
    """Sets the types and formats of inputs and outputs.

    Args:
        trt: The TensorRT module.
        network: An ``INetworkDefinition``.
        options: The build options, with types and formats by name.

    Raises:
        BuildError: The network has no input or output of a name.
        UnsupportedError: This TensorRT lacks a type or format.
    """
    tensors = {tensor.name: tensor for tensor in _io_tensors(network)}
    check_io_names(tensors, options)
    for name, kind in options.io_types.items():
        tensors[name].dtype = data_type(trt, kind)
    for name, formats in options.io_formats.items():
        tensors[name].allowed_formats = sum(
            1 << int(member(trt.TensorFormat, text, "format")) for text in dict.fromkeys(formats)
        )


def io_dtypes(trt: Any, network: Any) -> dict[str, np.dtype[Any]]:
    """The element types that an engine's inputs and outputs have, which are not always those of the model.

    Before version 10, TensorRT's parser makes INT64 inputs INT32, and every version makes DOUBLE inputs and
    outputs FLOAT.

    Args:
        trt: The TensorRT module.
        network: An ``INetworkDefinition``, as it is built.

    Returns:
        Input or output name to its element type, without those of a type that NumPy lacks.
    """
    dtypes = {tensor.name: numpy_dtype(trt, tensor.dtype) for tensor in _io_tensors(network)}
    return {name: dtype for name, dtype in dtypes.items() if dtype is not None}


def data_type(trt: Any, name: str) -> Any:
    """Finds a data type of TensorRT.

    Args:
        trt: The TensorRT module.
        name: "fp32", "fp16", "bf16" or "int8".

    Raises:
        UnsupportedError: The name is another one, or this TensorRT lacks the type.
    """
    member = _TYPES.get(name.lower())
    if member is None or member not in trt.DataType.__members__:
        raise UnsupportedError(f"there is no precision '{name}' here; use one of {', '.join(_TYPES)}")
    return trt.DataType.__members__[member]


def _io_tensors(network: Any) -> list[Any]:
    """The inputs and the outputs of a network."""
    inputs = map(network.get_input, range(network.num_inputs))
    return [*inputs, *map(network.get_output, range(network.num_outputs))]


def _computes_floats(trt: Any, layer: Any) -> bool:
    if layer_type(trt, layer) in ("CONSTANT", "SHAPE"):
        return False
    return all(layer.get_output(index).dtype.name in RANGED for index in range(layer.num_outputs))
