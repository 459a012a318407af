"""The public calls for models and tables that other tools made."""

from __future__ import annotations

from collections.abc import Sequence

from calibrators.tables.source import TableSource, as_table
from trtint8.interop import lint as linting
from trtint8.interop import mend as mending
from trtint8.interop.lint_rules import Finding
from trtint8.interop.mend import Mended
from trtint8.interop.migrate import Migrated
from trtint8.interop.migrate import migrate as migrate_prepared
from trtint8.models.model import ModelSource, load_float_model, load_model, prepare
from trtint8.models.torch_export import AnyModel, open_module


def lint(model: ModelSource) -> list[Finding]:
    """Checks a model that any tool has quantized against TensorRT's rules.

    Args:
        model: A path, the serialized model or a ``ModelProto``, with Q/DQ pairs, operators on integers
            (QLinearConv and the like), or integer operators with scales computed at run time.

    Returns:
        The findings, in the graph's order; empty where there is nothing to mend.

    Raises:
        ModelError: The model is unusable, or a float model.
    """
    return linting.lint(load_model(model))


def mend(model: ModelSource) -> Mended:
    """Places the Q/DQ pairs of a model that any tool has quantized anew, as TensorRT wants them.

    Args:
        model: What :func:`lint` takes.

    Returns:
        The new model, with the ranges and the quantized weights of the old one; its ``save`` writes it.

    Raises:
        ModelError: The model is unusable or a float model, a finding cannot be mended, or a tensor that needs
            a range had no pair.
    """
    return mending.mend(load_model(model))


def migrate(
    model: AnyModel,
    cache: TableSource,
    *,
    fill: bool = False,
    keep_float: Sequence[str] = (),
    example_inputs: object = None,
) -> Migrated:
    """Turns the calibration cache of an implicit engine into a Q/DQ model.

    Args:
        model: The float model that was calibrated.
        cache: TensorRT's calibration cache, or any other table.
        fill: Whether tensors that the cache lacks get the ranges that follow from others.
        keep_float: Names of nodes, or patterns, that stay in float.
        example_inputs: What the forward of a ``torch.nn.Module`` takes; see :func:`model_inputs`.

    Returns:
        The model with Q/DQ pairs, and which ranges were missing or unused; its ``save`` writes it, and
        :func:`count_int8_layers` proves by a build on the CPU that it runs in INT8.

    Raises:
        ModelError: The model is unusable, or a pattern matches no node.
        TableError: The cache is unusable or lacks ranges.
    """
    prepared = prepare(load_float_model(open_module(model, example_inputs)))
    return migrate_prepared(prepared, as_table(cache), fill=fill, keep_float=keep_float)
