"""The public calls that put Q/DQ pairs into a float model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from calibrators.checks import FilePath
from calibrators.data.images.preprocessing import Preprocessing
from calibrators.data.inputs import DataOptions
from calibrators.data.opening import DataSource
from calibrators.errors import Argument, ModelError
from calibrators.files import check_writable, refuse_losing, refuse_overwriting, written_together
from calibrators.records import Result, as_json
from calibrators.tables.choice import FloatLayers
from calibrators.tables.ranges import TableSource, as_table
from calibrators.tables.table import CalibrationTable
from trtint8.auditing.gpus import at_costs_of, capability_of, gpus_of
from trtint8.engine.file import table_file_of
from trtint8.models.model import Model, check_model_name, load_float_model, prepare
from trtint8.models.outputs.picked import cut_model
from trtint8.models.serialization import fingerprint, save_model, to_proto
from trtint8.models.torch_export import AnyModel, open_module
from trtint8.quantization.quantize import Quantized, QuantizeOptions, quantized_model, refuse_without_float16
from trtint8.quantization.targets import TargetName, target_named
from trtint8.quantization.tensor_configs import ppq_document

if TYPE_CHECKING:
    from trtint8.equalization.equalize import Equalized
    from trtint8.tuning.remedies.held_out import Compensation


@dataclass(frozen=True)
class QuantizedFiles(Result):
    """What :func:`trtint8.write_quantized` made.

    Attributes:
        model: The file of the model with Q/DQ pairs.
        target: What it is for.
        quantized: The model, where its pairs are, and why.
        equalized: What was equalized; None where that was not asked for.
        rounded: How biases were corrected and weights rounded; None where that was not asked for.
        float_model: The file of the float model that was quantized, if it was equalized or cut; else None.
        table: The file of the table of an equalized model; else None.
        tail: The file of the rest, if the model was cut; else None.
        float_layers: The layers that stay in float because that gains accuracy; None where the table says
            nothing of them.
    """

    model: Path
    target: str
    quantized: Quantized
    equalized: Equalized | None = None
    rounded: Compensation | None = None
    float_model: Path | None = None
    table: Path | None = None
    tail: Path | None = None
    float_layers: FloatLayers | None = None

    def __repr__(self) -> str:
        placement = self.quantized.placement
        return f"<QuantizedFiles: '{self.model}', {placement.layers_text}, for {self.target}>"

    def to_json(self, *, configs: bool = False) -> dict[str, Any]:
        """Returns what ``trtint8 quantize --json`` prints, which includes the decisions and their reasons.

        Args:
            configs: Whether ``act_quant_info`` and ``quant_info`` are included, as with ``--configs``.
                Otherwise they are null.
        """
        quantized, equalized = self.quantized, self.equalized
        placement, states = quantized.placement, quantized.configs
        in_full = ppq_document(states, {edge.tensor for edge in placement.weights}) if configs else {}
        tensors = {
            name: {"state": states[name].state.value, "dominator": states.dominator(name)} for name in states
        }
        found = {
            "model": self.model,
            "target": self.target,
            "nodes_in_int8": len(placement.quantized_nodes),
            "nodes_that_multiply": placement.multiplying,
            "decisions": placement.decisions,
            "left_out": quantized.left_out,
            "shared_scales": placement.shared,
            "tensors": tensors,
            "act_quant_info": in_full.get("act_quant_info"),
            "quant_info": in_full.get("quant_info"),
            "float32": quantized.float32 if quantized.float16 else None,
            "float32_causes": quantized.float32_causes if quantized.float16 else None,
            "equalization": equalized
            and {
                "forms": equalized.forms,
                "unchanged": equalized.unchanged,
                "skipped": equalized.skipped,
                "float_model": self.float_model,
                "table": self.table,
            },
            "rounding": self.rounded,
            "float_layers": self.float_layers,
        }
        return {name: as_json(value) for name, value in found.items()}


def quantize(
    model: AnyModel,
    table: TableSource,
    *,
    keep_float: Sequence[str] = (),
    keep_int8: Sequence[str] = (),
    target: TargetName = "tensorrt",
    compute_capability: str | None = None,
    float16: bool = False,
    float32_io: bool = False,
    equalize: DataSource | None = None,
    rounding: DataSource | None = None,
    spend: float | None = None,
    batch_size: int | None = None,
    limit: int | None = None,
    preprocessing: Preprocessing | None = None,
    skip_bad: bool = False,
    progress: bool = True,
    example_inputs: object = None,
) -> onnx.ModelProto:
    """Puts Q/DQ pairs into a float model, where TensorRT fuses them.

    Args:
        model: A path, the serialized model or a ``ModelProto``, or a ``torch.nn.Module``.
        table: The ranges, or the file that holds them. With ``float16`` it should have the ranges of all
            tensors.
        keep_float: Names of nodes, or patterns with ``*`` and ``?``, that stay in float. A module of PyTorch
            stands for all nodes in it, such as ``encoder.layer.1``.
        keep_int8: With ``float16``, names of nodes, or patterns, that are put in INT8 even if that is
            estimated to be slower.
        target: The TensorRT that the model is for: ``rtx``, ``tensorrt-8.6``, ``tensorrt-10``,
            ``tensorrt-11`` or ``dla``. Layers that it does not run in INT8 stay in float. ``tensorrt``
            quantizes all layers that at least one of them runs in INT8.
        compute_capability: The GPU, by compute capability or name, like "8.6" or "RTX 4090", for a target
            other than ``tensorrt``. A target that has no INT8 on that GPU is refused.
        float16: Whether everything outside INT8 becomes FP16, except nodes that would lose accuracy. For
            ``rtx``, layers that are estimated to be slower in INT8 than in FP16 also become FP16. The
            estimate is for the GPU of ``compute_capability``, or else for an RTX 4090.
        float32_io: With ``float16``, whether the model's inputs and outputs stay float32.
        equalize: Calibration samples, which are read twice. With them, channels of the float model get
            similar ranges, and the model still computes the same. It is then calibrated anew with the table's
            method (see :func:`trtint8.equalization.equalize.equalize`). If equalization gains nothing, the
            model is not changed.
        rounding: Calibration samples, of which at most 256 are read. With them, biases are corrected by the
            mean error of each layer, and weights are rounded so that layers' outputs change least. Every
            fourth sample is used for that. The others judge the result: without a clear gain on these nothing
            is changed.
        spend: 0 puts layers in INT8 that the table leaves in float because that gains accuracy. By default
            they stay in float, for the share of the time that :func:`trtint8.calibrate` was allowed.
        batch_size: Samples per batch of ``equalize`` and ``rounding``.
        limit: Use only this many samples of ``equalize`` and ``rounding``.
        preprocessing: How raw images become inputs.
        skip_bad: Leave out the files of a folder that cannot be read, such as damaged images, with their
            labels, and warn of them by name. By default the first such file is an error.
        progress: Show a progress bar on a terminal while calibrating.
        example_inputs: What the forward of a ``torch.nn.Module`` takes; see :func:`model_inputs`.

    Returns:
        The model with Q/DQ pairs. Inputs, outputs and tensor names are the same.

    Raises:
        ModelError: The model is unusable or quantized already, a pattern matches nothing, or an option is
            given that needs ``float16`` or samples, and these are missing.
        TableError: The table is of another model, stale, or lacks a range; or nothing can be calibrated with
            its method.
        CalibrationDataError: The samples do not fit the model.
        UnsupportedError: There is no such target, it has no INT8 on that GPU, or a GPU is given for
            ``tensorrt``, which stands for several targets.

    Warns:
        UserWarning: All layers are estimated to be slower in INT8 than in FP16; equalization gains nothing;
            or the table lacks tensors, so that what may overflow in FP16 stays in FP32.

    Examples:
        >>> model = trtint8.quantize("model.onnx", "table.json", keep_float=["/fc/*"])
        >>> onnx.save(model, "int8.onnx")
    """
    asked = _asked(keep_float, keep_int8, target, compute_capability, float16, float32_io)
    data_options = _data_options(
        equalize is None and rounding is None, batch_size, limit, preprocessing, skip_bad
    )
    work = _Work(
        prepare(load_float_model(open_module(model, example_inputs))), as_table(table).spending(spend)
    )
    quantized = work.quantize(asked, equalize, rounding, data_options, progress)
    return to_proto(quantized.graph_model)


def write_quantized(
    model: AnyModel,
    table: TableSource,
    output: FilePath,
    *,
    keep_float: Sequence[str] = (),
    keep_int8: Sequence[str] = (),
    target: TargetName = "tensorrt",
    compute_capability: str | None = None,
    float16: bool = False,
    float32_io: bool = False,
    cut_at: Sequence[str] = (),
    equalize: DataSource | None = None,
    rounding: DataSource | None = None,
    spend: float | None = None,
    batch_size: int | None = None,
    limit: int | None = None,
    preprocessing: Preprocessing | None = None,
    skip_bad: bool = False,
    progress: bool = True,
    example_inputs: object = None,
) -> QuantizedFiles:
    """Writes a float model with Q/DQ pairs, and says what is in INT8 and why.

    It takes what :func:`trtint8.quantize` takes, and models of any size. With ``equalize``, the equalized
    float model and its table are written as well, as ``<stem>.float.onnx`` and ``<stem>.table.json``. All
    files are written or none. Existing files of these names are overwritten only if an earlier run has made
    them.

    Args:
        model: A path, the serialized model or a ``ModelProto``, or a ``torch.nn.Module``.
        table: The ranges, or the file that holds them. With ``float16`` it should have the ranges of all
            tensors.
        output: The file of the model with Q/DQ pairs, which ends in ``.onnx``.
        keep_float: Names of nodes, or patterns with ``*`` and ``?``, that stay in float. A module of PyTorch
            stands for all nodes in it, such as ``encoder.layer.1``.
        keep_int8: With ``float16``, names of nodes, or patterns, that are put in INT8 even if that is
            estimated to be slower.
        target: The TensorRT that the model is for: ``rtx``, ``tensorrt-8.6``, ``tensorrt-10``,
            ``tensorrt-11`` or ``dla``. Layers that it does not run in INT8 stay in float. ``tensorrt``
            quantizes all layers that at least one of them runs in INT8.
        compute_capability: The GPU, by compute capability or name, like "8.6" or "RTX 4090", for a target
            other than ``tensorrt``. A target that has no INT8 on that GPU is refused.
        float16: Whether everything outside INT8 becomes FP16, except nodes that would lose accuracy. For
            ``rtx``, layers that are estimated to be slower in INT8 than in FP16 also become FP16. The
            estimate is for the GPU of ``compute_capability``, or else for an RTX 4090.
        float32_io: With ``float16``, whether the model's inputs and outputs stay float32.
        cut_at: Names of tensors. Only the model up to these tensors is quantized, and they become its
            outputs. The rest is written as ``<stem>.tail.onnx``, and the float model up to them as
            ``<stem>.float.onnx``.
        equalize: Calibration samples, which are read twice. With them, channels of the float model get
            similar ranges, and the model still computes the same. It is then calibrated anew with the table's
            method (see :func:`trtint8.equalization.equalize.equalize`). If equalization gains nothing, the
            model is not changed.
        rounding: Calibration samples, of which at most 256 are read. With them, biases are corrected by the
            mean error of each layer, and weights are rounded so that layers' outputs change least. Every
            fourth sample is used for that. The others judge the result: without a clear gain on these nothing
            is changed.
        spend: 0 puts layers in INT8 that the table leaves in float because that gains accuracy. By default
            they stay in float, for the share of the time that :func:`trtint8.calibrate` was allowed.
        batch_size: Samples per batch of ``equalize`` and ``rounding``.
        limit: Use only this many samples of ``equalize`` and ``rounding``.
        preprocessing: How raw images become inputs.
        skip_bad: Leave out the files of a folder that cannot be read, such as damaged images, with their
            labels, and warn of them by name. By default the first such file is an error.
        progress: Show a progress bar on a terminal while calibrating.
        example_inputs: What the forward of a ``torch.nn.Module`` takes; see :func:`model_inputs`.

    Returns:
        The files, and what is in them.

    Raises:
        TrtInt8Error: What :func:`trtint8.quantize` raises; or an ``OutputError``, where a file cannot be
            written or is one that is read.

    Examples:
        >>> trtint8.write_quantized("model.onnx", "table.json", "int8.onnx", keep_float=["/fc/*"])
        <QuantizedFiles: 'int8.onnx', 8 of 9 layers in INT8, for tensorrt>
    """
    from trtint8.built_files import files_of_cut, float_file_of

    asked = _asked(keep_float, keep_int8, target, compute_capability, float16, float32_io)
    data_options = _data_options(
        equalize is None and rounding is None, batch_size, limit, preprocessing, skip_bad
    )
    path = check_writable(check_model_name(output))
    beside = () if equalize is None else (float_file_of(path), table_file_of(path))
    for file in beside:
        check_writable(file, named=False)
    cut_files = files_of_cut(path) if cut_at else None
    written = {*beside, *(cut_files or ())}
    refuse_overwriting([path, *written], [model, table, equalize, rounding])
    prepared = prepare(load_float_model(open_module(model, example_inputs)))
    cut = cut_model(prepared, cut_at) if cut_at else None
    if cut:
        prepared = prepare(cut.head)
    refuse_losing(path, sorted(written))
    work = _Work(prepared, as_table(table).of_part(prepared.fingerprint, prepared.cut_from).spending(spend))
    del prepared
    quantized = work.quantize(asked, equalize, rounding, data_options, progress)
    equalized = work.equalized
    with written_together(path) as staged:
        if cut and cut_files:
            save_model(cut.tail, staged(cut_files[1]))
        if cut or equalized:
            save_model(work.float_model.graph_model, staged(float_file_of(path)))
        if equalized:
            # Also if nothing was equalized: the preparation has changed what the file holds.
            provenance = replace(work.table.provenance, model=fingerprint(work.float_model.graph_model))
            replace(work.table, provenance=provenance).save(staged(table_file_of(path)))
        save_model(quantized.graph_model, staged(path))
    return QuantizedFiles(
        path,
        asked.target.name,
        quantized,
        equalized,
        work.rounded,
        float_file_of(path) if cut or equalized else None,
        table_file_of(path) if equalized else None,
        cut_files[1] if cut_files else None,
        work.table.float_layers,
    )


def _asked(
    keep_float: Sequence[str],
    keep_int8: Sequence[str],
    target: TargetName,
    compute_capability: str | None,
    float16: bool,
    float32_io: bool,
) -> QuantizeOptions:
    refuse_without_float16(float16, float32_io, keep_int8)
    if compute_capability is None:
        chosen = target_named(target)
    else:
        chosen = target_named(target, capability_of(compute_capability))
        chosen = at_costs_of(chosen, gpus_of([compute_capability]))
    return QuantizeOptions(keep_float, keep_int8, chosen, float16, float32_io)


def _data_options(
    without_samples: bool,
    batch_size: int | None,
    limit: int | None,
    preprocessing: Preprocessing | None,
    skip_bad: bool,
) -> DataOptions:
    """How samples are read; refuses what says so where there are none."""
    data_options = DataOptions(batch_size, limit, preprocessing=preprocessing, skip_bad=skip_bad)
    if without_samples and any((batch_size, limit, preprocessing, skip_bad)):
        raise ModelError(
            f"{Argument('batch_size')}, {Argument('limit')}, {Argument('preprocessing')} and "
            f"{Argument('skip_bad')} say how samples are read; "
            f"add {Argument('equalize', 'DATA')} or {Argument('rounding', 'DATA')}"
        )
    return data_options


@dataclass
class _Work:
    """A float model on its way to Q/DQ pairs; nothing else refers to it, so that it goes once it is replaced.

    Attributes:
        float_model: The model, prepared; equalized where that was asked for.
        table: Its ranges.
        equalized: What was equalized; None where nothing was.
        rounded: How biases were corrected and weights rounded; None where that was not asked for.
    """

    float_model: Model
    table: CalibrationTable
    equalized: Equalized | None = None
    rounded: Compensation | None = None

    def quantize(
        self,
        asked: QuantizeOptions,
        equalize: DataSource | None,
        rounding: DataSource | None,
        data_options: DataOptions,
        progress: bool,
    ) -> Quantized:
        # What runs models is loaded here, because most calls need none of it.
        if equalize is not None:
            from trtint8.calibration import tensors_needed
            from trtint8.equalization.equalize import equalize_and_calibrate

            data_options = data_options.calibrated(self.table.provenance.inputs, "the table")
            needed = tensors_needed(asked.float16)
            made = equalize_and_calibrate(
                self.float_model, self.table, equalize, data_options, needed, progress=progress
            )
            self.float_model, self.table, self.equalized = made.model, made.table, made.equalized
        changed = self.float_model
        if rounding is not None:
            from trtint8.tuning.remedies.held_out import compensate

            data_options = data_options.calibrated(self.table.provenance.inputs, "the table")
            placement = asked.place(changed, self.table)
            compensated = compensate(changed, self.table, placement, rounding, data_options, again=False)
            changed, self.rounded = compensated.model, compensated.compensation
        return quantized_model(changed, self.table, asked)
