"""The public calls for models and tables that other tools made.

The public call that cuts a float model in two.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from calibrators.checks import several
from calibrators.errors import Argument, ModelError
from calibrators.tables.ranges import TableSource, as_table
from trtint8.interop.migrate import Migrated
from trtint8.interop.migrate import migrate as migrate_prepared
from trtint8.models.model import load_float_model, prepare
from trtint8.models.outputs import picked
from trtint8.models.serialization import to_proto
from trtint8.models.torch_export import AnyModel, open_module
from trtint8.quantization.quantize import QuantizeOptions, refuse_without_float16
from trtint8.quantization.targets import TargetName, target_named


def migrate(
    model: AnyModel,
    cache: TableSource,
    *,
    fill: bool = False,
    keep_float: Sequence[str] = (),
    keep_int8: Sequence[str] = (),
    target: TargetName = "tensorrt",
    float16: bool = False,
    example_inputs: object = None,
) -> Migrated:
    """Turns the calibration cache of an implicit engine into a Q/DQ model.

    Args:
        model: The float model that was calibrated.
        cache: TensorRT's calibration cache, or any other table.
        fill: Whether tensors that the cache lacks get the ranges that follow from others.
        keep_float: Nodes that stay in float: names, or patterns.
        keep_int8: With ``float16``, nodes that are put in INT8 even if that is estimated to be slower.
        target: The TensorRT that the model is for, as in :func:`quantize`.
        float16: Whether everything outside INT8 becomes FP16, except inputs, outputs, and nodes that would
            lose accuracy. Tensors that the cache lacks stay in FP32 if they may overflow.
        example_inputs: What the forward of a ``torch.nn.Module`` takes; see :func:`model_inputs`.

    Returns:
        The model with Q/DQ pairs, and the ranges that were missing or unused. Its ``save`` writes the model.
        :func:`count_int8_layers` checks with a build on the CPU that it runs in INT8.

    Raises:
        ModelError: The model is unusable, a pattern matches no node, or ``keep_int8`` is given without
            ``float16``.
        TableError: The cache is unusable or lacks ranges.
        UnsupportedError: There is no such target.

    Examples:
        >>> migrated = trtint8.migrate("model.onnx", "model.cache")
        >>> migrated.save("int8.onnx")
        PosixPath('int8.onnx')
    """
    refuse_without_float16(float16, False, keep_int8)
    asked = QuantizeOptions(keep_float, keep_int8, target_named(target), float16, float32_io=float16)
    prepared = prepare(load_float_model(open_module(model, example_inputs)))
    return migrate_prepared(prepared, as_table(cache), asked, fill=fill)


def cut_model(
    model: AnyModel, tensors: Sequence[str], *, example_inputs: object = None
) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Cuts a float model in two, for nodes that TensorRT does not take.

    Args:
        model: A path, the serialized model or a ``ModelProto``, or a ``torch.nn.Module``.
        tensors: Names of tensors that nodes compute. If TensorRT refuses nodes, :func:`build_int8_engine`
            names the tensors before these nodes.
        example_inputs: What the forward of a ``torch.nn.Module`` takes; see :func:`model_inputs`.

    Returns:
        Two models. The first is the model up to the tensors, which are its outputs. Use it with all other
        calls. The second is the rest, for ONNX Runtime: it computes the other outputs from the tensors.

    Raises:
        ModelError: The model is unusable or quantized, or cannot be cut there, or a name is no string.
        UnsupportedError: ``tensors`` has no name of a tensor.

    Examples:
        >>> head, tail = trtint8.cut_model("model.onnx", ["/block1/relu2/Relu_output_0"])
        >>> onnx.save(head, "head.onnx")
    """
    names = several(tensors)
    for name in names:
        if not isinstance(name, str):
            raise ModelError(f"{Argument('tensors')} has {name!r:.80}; give names of tensors, as strings")
    cut = picked.cut_model(prepare(load_float_model(open_module(model, example_inputs))), names)
    return to_proto(cut.head.graph_model), to_proto(cut.tail)
