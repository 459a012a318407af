"""The public calls that make an INT8 engine, and that set the ranges of a network of one's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from calibrators.checks import FilePath, several
from calibrators.data.images.preprocessing import Preprocessing
from calibrators.data.inputs import DataOptions
from calibrators.files import check_writable, refuse_overwriting
from calibrators.histograms.thresholds import Method
from calibrators.tables.ranges import DynamicRanges, read_ranges, table_among, warn_of_losses
from calibrators.tables.table import CalibrationTable
from calibrators.tensorrt.flavor import Target, flavor_of
from trtint8.builder.config import BuildOptions, given_options
from trtint8.builder.dynamic_ranges import SetRanges
from trtint8.builder.implicit import set_network_ranges
from trtint8.builder.refusals import Route
from trtint8.built_files import BuildResult, files_of_cut, qdq_file_of
from trtint8.engine.file import sidecar_path, table_file_of
from trtint8.engine.profiles import Profile
from trtint8.int8_engine import CalibrationSource, Int8Options, RangeSources, build_from_sources
from trtint8.models.model import ModelSource, load_float_model, prepare
from trtint8.models.outputs.picked import CutModel, cut_model
from trtint8.models.torch_export import AnyModel, open_module


def build_int8_engine(
    model: AnyModel,
    calibration: CalibrationSource | None,
    output: FilePath,
    *,
    method: Method = "auto",
    route: Route = "auto",
    target: Target = "auto",
    dynamic_ranges: DynamicRanges | None = None,
    profiles: Sequence[Profile] = (),
    compute_capabilities: Sequence[str] = (),
    fp16: bool | None = None,
    keep_float: Sequence[str] = (),
    keep_int8: Sequence[str] = (),
    rounding: bool = True,
    spend: float | None = None,
    cut_at: Sequence[str] = (),
    options: BuildOptions | None = None,
    batch_size: int | None = None,
    limit: int | None = None,
    preprocessing: Preprocessing | None = None,
    skip_bad: bool = False,
    progress: bool = True,
    example_inputs: object = None,
) -> BuildResult:
    """Makes an INT8 engine from a float ONNX model and sample inputs.

    Writes the engine and its sidecar ``<output>.json``. Beside them it writes the calibration table
    (``<stem>.table.json``), on the explicit route the Q/DQ model (``<stem>.qdq.onnx``), and for a
    ``torch.nn.Module`` the float model (``<stem>.float.onnx``). On the implicit route it writes TensorRT's
    own calibration cache (``<stem>.cache``), and later builds use it again while it is not stale.

    Args:
        model: A path, the serialized model or a ``ModelProto``, or a ``torch.nn.Module``. A model with Q/DQ
            pairs is built as it is.
        calibration: Sample inputs (see :func:`trtint8.calibrate`), a :class:`CalibrationTable`, the path of a
            table or of a TensorRT calibration cache, a calibrator of :mod:`calibrators.tensorrt`; None for
            a model with Q/DQ pairs, or if ``dynamic_ranges`` has all ranges that are needed.
        output: The engine file. Existing files beside it are overwritten only if an earlier build of this
            engine has written them and they were not changed since. Files of earlier builds that do not fit
            the new engine are removed.
        method: How ranges are chosen from sample inputs.
        route: ``explicit`` puts Q/DQ pairs into the graph; ``implicit`` uses the calibrators and dynamic
            ranges of TensorRT 8.5 to 10.x; ``auto`` is implicit if a calibrator is given or TensorRT is older
            than 10.1.
        target: Which TensorRT builds; ``auto`` takes the full TensorRT if it and a GPU are present, else
            TensorRT for RTX.
        dynamic_ranges: Tensor name to amax or (min, max), or a file (see
            :func:`calibrators.tables.ranges.read_ranges`); overrides what was calibrated.
        profiles: Shapes of dynamic inputs. By default the engine takes 1 to 32 samples. Other sizes that the
            model leaves open then go from the smallest to the largest size of the calibration samples.
        compute_capabilities: GPUs to build for, by compute capability or name, like "8.6" or "RTX 4090";
            TensorRT for RTX only. The estimate of which layers are faster in FP16 is for these GPUs. Without
            them it is for this machine's GPU, or else for an RTX 4090.
        fp16: Whether layers outside INT8 may run in FP16. By default they may. TensorRT up to 10 decides
            which layers do. TensorRT 11 and TensorRT for RTX take types from the graph. For them the graph is
            converted to FP16, except inputs, outputs, and nodes that would lose accuracy. By default a model
            that already has Q/DQ pairs keeps its types there. For TensorRT for RTX, layers that are estimated
            to be faster in FP16 than in INT8 are also in FP16, unless ``keep_int8`` names them: most
            convolutions of a small network.
        keep_float: Names of nodes, or patterns, that stay in float. A module of PyTorch stands for all nodes
            in it, such as ``encoder.layer.1``.
        keep_int8: Names of nodes, or patterns, that are put in INT8 even if TensorRT for RTX is estimated to
            be faster with them in FP16.
        rounding: Whether biases are corrected by the mean error of each layer, and weights are rounded so
            that layers' outputs change least. This needs the explicit route and calibration samples. It uses
            a fifth of the samples, at least 16 and at most 128. Every fourth of them changes weights. The
            changes are taken only if they help on the others.
        spend: The share of the network's estimated time, in [0, 1], that layers may take which stay in float
            because they make much of the noise; see :func:`trtint8.calibrate`. By default it is what the
            table says, and 0.01 with samples. This needs ranges that are found on the CPU.
        cut_at: Names of tensors, for models with nodes that TensorRT does not take. The engine computes the
            model up to these tensors. The rest, for ONNX Runtime, is written as ``<stem>.tail.onnx``, and the
            float model up to them as ``<stem>.float.onnx``.
        options: All other options of the build. The argument ``fp16`` takes precedence over theirs.
        batch_size: Samples per batch.
        limit: Use only this many samples.
        preprocessing: How raw images become inputs.
        skip_bad: Leave out the files of a folder that cannot be read, such as damaged images, with their
            labels, and warn of them by name. By default the first such file is an error.
        progress: Show a progress bar on a terminal.
        example_inputs: What the forward of a ``torch.nn.Module`` takes; see :func:`model_inputs`.

    Returns:
        What was written, and what it is.

    Raises:
        TrtInt8Error: Always one of its subclasses, whose message says in one sentence what to do.

    Examples:
        >>> built = trtint8.build_int8_engine("model.onnx", "calibration.npz", "model.engine")
        >>> built.engine, built.table_file
        (PosixPath('model.engine'), PosixPath('model.table.json'))
    """
    options = given_options(options)
    loaded = open_module(model, example_inputs)
    path = check_writable(output)
    written = [path, sidecar_path(path)]
    refuse_overwriting([*written, table_file_of(path), qdq_file_of(path)], [dynamic_ranges])
    if cut_at:  # the model that is built is then in memory
        refuse_overwriting([*written, *files_of_cut(path)], [loaded, calibration, dynamic_ranges])
    cut = _cut(loaded, cut_at)
    manual = read_ranges(dynamic_ranges) if dynamic_ranges is not None else {}
    data_options = DataOptions(batch_size, limit, preprocessing=preprocessing, skip_bad=skip_bad)
    return build_from_sources(
        cut.head if cut else loaded,
        RangeSources(calibration, manual, method, data_options, progress, spend),
        output,
        Int8Options(
            route,
            target,
            profiles,
            [str(one) for one in several(compute_capabilities)],
            keep_float,
            keep_int8,
            rounding,
        ),
        options if fp16 is None else replace(options, fp16=fp16),
        cut.tail if cut else None,
    )


def _cut(model: ModelSource, tensors: Sequence[str]) -> CutModel | None:
    """A model in two parts, the first of them prepared; None where it is not to be cut."""
    if not tensors:
        return None
    cut = cut_model(prepare(load_float_model(model)), tensors)
    return CutModel(prepare(cut.head), cut.tail)


def set_dynamic_ranges(
    network: object,
    ranges: CalibrationTable | DynamicRanges,
    *,
    config: object | None = None,
    keep_float: Sequence[str] | Mapping[str, str] = (),
) -> SetRanges:
    """Sets the dynamic ranges of a network in your own builder, for TensorRT 8.5 to 10.x.

    The network may be defined with TensorRT's API or parsed. Ranges that follow from the given ranges are set
    as well. An input or output of the network is INT8 if its ``dtype`` is INT8. It needs a range like any
    other tensor. If the call fails, no range is set, unless it is TensorRT that refuses a range.

    Args:
        network: The ``INetworkDefinition``, with all its layers and outputs.
        ranges: A :class:`CalibrationTable`, the path of a table or of a TensorRT calibration cache; or ranges
            by hand: tensor name to amax or (min, max), or a file of these (see
            :func:`calibrators.tables.ranges.read_ranges`). Names are those of the network's tensors. A name
            that the network does not have is ignored if it is from a table, and refused if it is given by
            hand. :meth:`CalibrationTable.override` adds ranges by hand to a table.
        config: The ``IBuilderConfig`` of the build. The flags for INT8 and for ``keep_float`` are set in it.
            Without it, set these flags yourself.
        keep_float: Names of layers, or patterns with ``*`` and ``?``, that must not run in INT8. They are in
            FP32, or, in a dict from name to precision, in "fp32", "fp16" or "bf16". A later pattern takes
            precedence over an earlier one. Outputs of the network keep their type.

    Returns:
        The ranges that were set, those that followed from them, and the tensors without a range.

    Raises:
        UnsupportedError: The network has no dynamic ranges: it is strongly typed, as all are in TensorRT 11
            and TensorRT for RTX, or holds Q/DQ layers.
        BuildError: ``network`` is not a network, has no layers, or lacks a tensor or a layer that is named;
            none of the ranges is of this network; or ``config`` is missing, or has a calibrator.
        TableError: The ranges cannot be read, or one is not a positive float32.

    Warns:
        UserWarning: A (min, max) is not symmetric, so the range gets wider; or a table has ranges that lose
            too much.

    Examples:
        >>> import tensorrt as trt
        >>> builder = trt.Builder(trt.Logger())
        >>> network, config = builder.create_network(1), builder.create_builder_config()
        >>> trt.OnnxParser(network, trt.Logger()).parse_from_file("model.onnx")
        True
        >>> done = trtint8.set_dynamic_ranges(network, "table.json", config=config)
    """
    flavor = flavor_of(network)
    table = table_among(ranges)
    if table is None:
        assert not isinstance(ranges, CalibrationTable)
        by_hand = read_ranges(ranges)
        return set_network_ranges(flavor, network, config, by_hand, by_hand.keys(), keep_float)
    done = set_network_ranges(flavor, network, config, table.amax, (), keep_float)
    warn_of_losses(table, table.amax)
    return done
