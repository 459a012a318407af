"""The public call that cuts a float model in two."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from calibrators.checks import several
from calibrators.errors import Argument, ModelError
from trtint8.models.model import load_float_model, prepare
from trtint8.models.outputs import cutting
from trtint8.models.serialization import to_proto
from trtint8.models.torch_export import AnyModel, open_module


def cut_model(
    model: AnyModel, tensors: Sequence[str], *, example_inputs: object = None
) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Cuts a float model in two, for nodes that TensorRT does not take.

    Args:
        model: A path, the serialized model or a ``ModelProto``, or a ``torch.nn.Module``.
        tensors: Names of tensors that nodes compute. :func:`build_int8_engine` names those before nodes that
            TensorRT refuses.
        example_inputs: What the forward of a ``torch.nn.Module`` takes; see :func:`model_inputs`.

    Returns:
        The model up to the tensors, which are outputs of it, for all other calls; and the rest, which
        computes the other outputs from them, for ONNX Runtime.

    Raises:
        ModelError: The model is unusable or quantized, or cannot be cut there, or a name is no string.
        UnsupportedError: ``tensors`` is no name and holds none.
    """
    names = several(tensors)
    for name in names:
        if not isinstance(name, str):
            raise ModelError(f"{Argument('tensors')} has {name!r:.80}; give names of tensors, as strings")
    cut = cutting.cut_model(prepare(load_float_model(open_module(model, example_inputs))), names)
    return to_proto(cut.head.graph_model), to_proto(cut.tail)
