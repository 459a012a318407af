"""A configuration of DeepStream's nvinfer.

Its properties are those of "Gst-nvinfer File Configuration Specifications" in NVIDIA's documentation
(docs.nvidia.com/metropolis/deepstream/dev-guide/text/DS_plugin_gst-nvinfer.html). Sources that DeepStream
installs say what that page leaves open: gstnvinfer.cpp pads with black, and takes the nearest pixels where no
filter is named (NvBufSurfTransform_Inter in nvbufsurftransform.h).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from calibrators.checks import warn_user
from calibrators.data.images.preprocessing import PADDING, Preprocessing
from calibrators.data.inputs import shape_text
from calibrators.errors import Argument, UnsupportedError, counted
from calibrators.tables.formats import tensorrt_cache
from calibrators.tables.table import CalibrationTable
from trtint8.deployment.content import (
    Files,
    build_script,
    labels_file,
    paragraphs,
    plan_text,
    readme,
    template,
)
from trtint8.deployment.source import Code, DeploySource, Detector, c_bool, fits_key_file
from trtint8.engine.file import TensorSpec
from trtint8.models.model import Model
from trtint8.validation.detection.decoding import LONGEST_SHARE

#: How far the factors of two channels may be apart before DeepStream's one factor counts as different.
_TOLERANCE = 1e-6

#: The version that a cache names where the engine's says nothing of DeepStream's: TensorRT 8.6.1.
_OLD_VERSION = "8601"


@dataclass(frozen=True)
class Scaling:
    """What nvinfer does to a pixel: ``factor * (x - offset)``.

    Attributes:
        factor: One factor for all channels.
        offsets: One offset per channel.
        deviation: How far the factors that the channels should have are from ``factor``, as a share of it.
    """

    factor: float
    offsets: tuple[float, float, float]
    deviation: float

    @classmethod
    def of(cls, wanted: Preprocessing) -> Scaling:
        """The nearest to ``(x * scale - mean) / std``."""
        each = [wanted.scale / std for std in wanted.std]
        factor = sum(each) / len(each)
        means = wanted.mean if len(wanted.mean) > 1 else wanted.mean * 3
        first, second, third = (mean / wanted.scale for mean in means)
        return cls(factor, (first, second, third), max(abs(one / factor - 1) for one in each))


def deepstream_files(source: DeploySource) -> Files:
    """The configuration, the engine, and the calibration file where there is a table.

    Args:
        source: The engine.

    Raises:
        UnsupportedError: nvinfer cannot feed the engine, or cannot load it and there is no Q/DQ model to
            build another one from.

    Warns:
        UserWarning: nvinfer makes other images of frames than the calibration had, or tensors have no range.
    """
    spec = _image(source)
    _check_preprocessing(source.preprocessing)
    source = source.for_full_tensorrt("DeepStream")
    qdq = source.qdq_files()
    files: dict[str, str | Path | Model] = dict(qdq)
    if qdq:
        files["build_plan.sh"] = build_script(source, "model.plan")
    if source.plan is not None:
        files["model.plan"] = source.plan
    found = source.missing_ranges()
    if source.table is not None:
        missing, table = found or (0, source.table)
        if missing:
            warn_user(
                f"{counted(missing, 'tensor')} of the model have no range in 'calibration.cache', and "
                "TensorRT runs what is around them in FP16 or FP32 where it builds the float model with it; "
                "for ranges of all tensors calibrate that float model with 'trtint8 calibrate', and give the "
                f"new {Argument('table')}"
            )
        files["calibration.cache"] = calibration_cache(table, _cache_version(source))
    if source.labels:
        if broken := [name for name in source.labels if ";" in name]:
            raise UnsupportedError(
                f"nvinfer ends the name of a class at a ';', and one is {broken[0]!r:.80}; give others with "
                f"{Argument('class_names')}"
            )
        files["labels.txt"] = labels_file(source, ";" if source.scores else "\n")
    else:
        warn_user(
            "how many classes there are is not known, so nvinfer leaves the outputs as they are "
            f"(network-type=100); give {Argument('class_names')} for boxes or classes"
        )
    if source.detector:
        files["nvdsinfer_parser.cpp"] = parser(source.detector)
    return {
        **files,
        "config_infer.txt": nvinfer_config(source, spec),
        "README.md": readme(
            "deepstream/README.md.in",
            source,
            plan=plan_text(source, "deepstream"),
            outputs=_outputs_text(source),
            calibration=_calibration_text(source, found),
            differences=_differences_text(source.preprocessing),
        ),
    }


def _check_preprocessing(wanted: Preprocessing | None) -> None:
    """Refuses what no factor and offsets of nvinfer give, and warns of what nvinfer does otherwise."""
    if wanted is None:
        warn_user(
            "how raw images become what the network takes is not known, so nvinfer feeds pixels from 0 to "
            f"255 as they are; give {Argument('preprocessing')} unless the network takes such pixels"
        )
        return
    scaling = Scaling.of(wanted)
    # "Float, >0.0" and "all values >= 0" are the ranges of these properties in the documentation. Where the
    # factor is not above 0, nvdsinfer_context_impl.cpp uses neither of them, without a word.
    if scaling.factor <= 0 or min(scaling.offsets) < 0:
        raise UnsupportedError(
            "nvinfer multiplies by a factor above 0 and subtracts offsets of 0 or more, which gives no "
            f"images as of the calibration ({wanted}): the factor would be {scaling.factor:g} and the least "
            f"offset {min(scaling.offsets):g}; deploy for Triton, or make such a step part of the network"
        )
    for difference in _differences(wanted):
        warn_user(f"{difference}; 'README.md' in the folder says what to do about that")


def _differences(wanted: Preprocessing) -> list[str]:
    """What nvinfer does to frames otherwise than the calibration did to images."""
    found = []
    if wanted.letterbox:
        found.append(f"nvinfer pads frames with black, and the calibration did with the value {PADDING}")
    if isinstance(wanted.resize, int) or wanted.crop not in (None, wanted.resize):
        found.append(
            "nvinfer resizes whole frames to the network's size, whatever their aspect ratio, and the "
            f"calibration did it otherwise ({wanted})"
        )
    deviation = Scaling.of(wanted).deviation
    if deviation > _TOLERANCE:
        found.append(
            "nvinfer has one factor for all channels, and the standard deviations of the calibration differ "
            f"({wanted}): images are scaled by the mean of the factors, up to {100 * deviation:.2g} % off"
        )
    return found


def nvinfer_config(source: DeploySource, spec: TensorSpec) -> Code:
    """The configuration file of nvinfer.

    Args:
        source: The engine.
        spec: The input that takes the images.
    """
    wanted = source.preprocessing or Preprocessing(scale=1.0)
    order = 0 if wanted.layout == "NCHW" else 1
    sizes = _image_sizes(source, spec)
    channels, height, width = sizes if order == 0 else (sizes[2], *sizes[:2])
    colors = 2 if channels == 1 else (0 if wanted.channels == "RGB" else 1)
    scaling = Scaling.of(wanted)
    offsets = scaling.offsets[: 1 if channels == 1 else 3]  # nvinfer refuses another number of them
    batching = source.batching
    batch = batching.largest if batching else spec.shape[0]
    lines = [
        "# Paths are those of the folder of this file.",
        "[property]",
        "gpu-id=0",
        "gie-unique-id=1",
        "process-mode=1",
        "model-engine-file=model.plan",
        *(["int8-calib-file=calibration.cache"] if source.table is not None else []),
        "# 1 is INT8.",
        "network-mode=1",
        f"batch-size={batch if isinstance(batch, int) else 1}",
        f"infer-dims={channels};{height};{width}",
        f"network-input-order={order}",
        f"model-color-format={colors}",
        "# y = net-scale-factor * (x - offsets)",
        f"net-scale-factor={scaling.factor:.9g}",
        f"offsets={';'.join(f'{offset:.9g}' for offset in offsets)}",
        *(
            ["maintain-aspect-ratio=1", "symmetric-padding=1"]
            if wanted.letterbox
            else ["maintain-aspect-ratio=0"]
        ),
        "# 1 is bilinear.",
        "scaling-filter=1",
        f"output-blob-names={';'.join(output.name for output in source.info.outputs)}",
        *_output_properties(source),
    ]
    return Code("\n".join(lines) + "\n")


def _image_sizes(source: DeploySource, spec: TensorSpec) -> tuple[int | str | None, ...]:
    """The sizes of one image; of open ones those that the first profile is tuned for."""
    profile = source.info.profiles[0] if source.info.profiles else {}
    return tuple(profile[spec.name].opt if spec.name in profile else spec.shape)[1:]


def _output_properties(source: DeploySource) -> list[str]:
    """What becomes of the outputs: boxes, a class, or the values as they are."""
    detector, names = source.detector, source.labels
    if detector is not None:
        # nms-iou-threshold belongs to cluster-mode 2; 4 leaves the boxes as the network has chosen them.
        suppression = ["cluster-mode=4"] if detector.grid is None else ["cluster-mode=2"]
        return [
            "# 0 is a detector. The parser has to be compiled: README.md says how.",
            "network-type=0",
            f"num-detected-classes={detector.classes}",
            "labelfile-path=labels.txt",
            "parse-bbox-func-name=NvDsInferParseTrtInt8",
            "custom-lib-path=libnvdsinfer_parser.so",
            *suppression,
            "[class-attrs-all]",
            "pre-cluster-threshold=0.25",
            *([] if detector.grid is None else ["nms-iou-threshold=0.45"]),
        ]
    if source.scores is not None and len(source.info.outputs) == 1:
        return [
            "# 1 is a classifier; a class counts whose value is larger than the threshold.",
            "network-type=1",
            "classifier-threshold=0",
            "labelfile-path=labels.txt",
        ]
    return [
        "# 100 leaves the outputs as they are, in the metadata of each frame; 0 is a detector, 1 a",
        "# classifier, 2 a segmentation, each of which takes further properties.",
        "network-type=100",
        "output-tensor-meta=1",
        *(
            [f"# labels.txt has the names of the {len(names)} classes, for what decodes the outputs."]
            if names
            else []
        ),
    ]


def parser(detector: Detector) -> Code:
    """A function that nvinfer calls for boxes, in C++."""
    grid = detector.grid
    return template(
        "deepstream/nvdsinfer_parser.cpp.in",
        rows=c_bool(grid is None or not grid.boxes_last),
        objectness=c_bool(grid is not None and grid.objectness),
        corners=c_bool(grid is None),
        classes=detector.classes,
        longest_share=Code(f"{LONGEST_SHARE:.1f}F"),
    )


def _outputs_text(source: DeploySource) -> Code:
    """What nvinfer does with the outputs, and what is missing for more."""
    if source.detector is not None:
        return paragraphs("deepstream/detector.md.in", classes=source.detector.classes)
    if source.scores is not None and len(source.info.outputs) == 1:
        return Code(
            "nvinfer takes the largest value of the output for the class of a frame (`network-type=1`). "
            "`labels.txt` has the names of the classes on one line, as nvinfer reads those of a classifier. "
            "nvinfer compares the values with `classifier-threshold`, as if they were probabilities."
        )
    known = f"`labels.txt` has the names of the {len(source.labels)} classes. " if source.labels else ""
    reason = (
        "The outputs are in none of the layouts that this folder could have a decoder for"
        if source.labels
        else "How many classes there are is not known; `--classes FILE` of `trtint8 deploy` says it"
    )
    return Code(
        "The outputs are attached to each frame as they are (`network-type=100`, `output-tensor-meta=1`). "
        f"{known}{reason}. For a detector set `network-type=0`, `num-detected-classes`, `labelfile-path`, "
        "and `parse-bbox-func-name` and `custom-lib-path` of a function that decodes these outputs. For a "
        "classifier set `network-type=1`, `classifier-threshold` and `labelfile-path`."
    )


def calibration_cache(table: CalibrationTable, version: str) -> str:
    """The table as TensorRT's calibration cache, which DeepStream reads.

    Args:
        table: The table.
        version: The TensorRT that the header names, in digits; TensorRT compares it with its own.
    """
    scales = {name: float(table.scale(name)) for name in table.amax}
    # DeepStream's calibrator is this one, whatever the method of the table.
    cache = tensorrt_cache.TensorrtCache(version, "EntropyCalibration2", scales)
    return tensorrt_cache.render(cache).decode()


def _cache_version(source: DeploySource) -> str:
    """The version in the header of a cache: that of the engine's TensorRT, as TensorRT writes it."""
    return _OLD_VERSION if source.plan is None else str(source.info.built_with.version_number)


def _image(source: DeploySource) -> TensorSpec:
    """The input that takes images of a fixed size, as nvinfer needs it."""
    inputs = source.info.inputs
    if len(inputs) != 1:
        names = ", ".join(f"'{spec.name}'" for spec in inputs)
        raise UnsupportedError(
            f"DeepStream's nvinfer feeds one input, and the engine has {len(inputs)}: {names}; deploy it to "
            "triton and use nvinferserver"
        )
    spec = inputs[0]
    layout = source.preprocessing.layout if source.preprocessing else "NCHW"
    channels = spec.shape[layout.index("C")] if len(spec.shape) == 4 else None
    sizes = _image_sizes(source, spec)
    is_fixed = bool(sizes) and all(isinstance(size, int) for size in sizes)
    if spec.dtype != "float32" or channels not in (1, 3) or not is_fixed:
        raise UnsupportedError(
            f"DeepStream's nvinfer feeds float32 images of one size with 1 or 3 channels in {layout}, and "
            f"the input '{spec.name}' is {spec.dtype}, {shape_text(spec.shape, ' x ')}; deploy it to triton, "
            f"or give the right {Argument('layout')}"
        )
    for output in source.info.outputs:
        if not fits_key_file(output.name):
            raise UnsupportedError(
                f"the configuration of nvinfer cannot hold the name of the output {output.name!r}; export "
                "the model with another name"
            )
    return spec


def _differences_text(wanted: Preprocessing | None) -> Code:
    """What of the preprocessing nvinfer does otherwise."""
    found = [] if wanted is None else _differences(wanted)
    if not found:
        return Code("")
    parts = [f"**{difference[0].upper()}{difference[1:]}.**" for difference in found]
    return Code(
        f"{' '.join(parts)} Gst-nvdspreprocess with a function of your own gives exactly the images of the "
        "calibration. Or calibrate and validate with preprocessing that nvinfer has: images resized to the "
        "network's size, and one standard deviation for all channels."
    )


def _calibration_text(source: DeploySource, found: tuple[int, CalibrationTable] | None) -> Code:
    """What the cache holds; ``found`` is what :meth:`DeploySource.missing_ranges` gives."""
    if source.table is None:
        reason = (
            "no table was given: `trtint8 deploy` takes it as `--table`"
            if source.is_model
            else "the engine was built without a calibration table"
        )
        return Code(f"There is no `calibration.cache`, because {reason}.")
    missing, table = found or (None, source.table)
    if missing is None:
        words = "Whether these are all tensors is not known, because there is no float model to compare with."
    elif not missing:
        words = (
            "These are all floating-point tensors of the model, after constants and batch normalization are "
            "folded into its layers."
        )
    else:
        words = (
            f"**{counted(missing, 'tensor')} of the model have no range in it**, and TensorRT runs what is "
            "around them in FP16 or FP32. `trtint8 calibrate` of the float model makes a table of all "
            "tensors, which `trtint8 deploy` takes as `--table`."
        )
    return paragraphs(
        "deepstream/calibration.md.in",
        tensors=len(table.amax),
        missing=Code(words),
        version=Code(_cache_version(source)),
    )
