"""Options that every verb with a data set has: batches, and how images become inputs."""

from __future__ import annotations

import argparse
from typing import Any, Literal, get_args

from calibrators.data.images.preprocessing import Preprocessing
from calibrators.data.inputs import DataOptions
from calibrators.errors import CalibrationDataError
from calibrators.histograms.thresholds import Method
from calibrators.ray.cluster import RayExecutor

#: What data may be, for the help of a verb.
DATA_HELP = (
    "an .npz, a folder of images or arrays, random:COUNT, or MODULE:FUNCTION, which returns a data loader"
)


def add_data_options(parser: argparse.ArgumentParser, *, states: bool = True) -> None:
    """Adds the options to a verb's parser.

    Args:
        parser: The verb's parser.
        states: Whether there is a float model to record states with.
    """
    group = parser.add_argument_group("data")
    group.add_argument("--batch-size", type=int, metavar="N", help="samples per batch")
    group.add_argument(
        "--limit",
        type=int,
        metavar="N",
        help="use only the first N samples; of sub-folders that are classes, one of each class in turn",
    )
    group.add_argument(
        "--batch-axis",
        action="append",
        default=[],
        metavar="NAME=K",
        help="of an .npz: the samples of this input lie along axis K, and each is fed by itself; repeatable",
    )
    if states:
        group.add_argument(
            "--state",
            action="append",
            default=[],
            metavar="INPUT=OUTPUT",
            help="the data holds sequences of steps, and this input is fed what this output was at the step "
            "before: the float model is run along them, from zeros or from the data's INPUT; repeatable",
        )
    else:
        parser.set_defaults(state=[])
    add_image_options(parser, "images (.npz with uint8 images, or folders)")


def add_image_options(parser: argparse.ArgumentParser, title: str) -> None:
    """Adds the options that say how images become inputs, under a title."""
    group = parser.add_argument_group(title)
    group.add_argument("--preprocess", metavar="FILE", help="a .toml or .json file with the options below")
    group.add_argument("--mean", metavar="R,G,B", help="subtracted from the channels after scaling")
    group.add_argument("--std", metavar="R,G,B", help="by which the channels are divided after that")
    group.add_argument("--scale", metavar="X", help="by which pixels are multiplied first; default 1/255")
    group.add_argument("--layout", choices=("NCHW", "NHWC"), help="default NCHW")
    group.add_argument("--channels", choices=("RGB", "BGR"), help="default RGB")
    group.add_argument("--resize", metavar="N or H,W", help="shorter side, or height and width")
    group.add_argument("--crop", metavar="H,W", help="centre crop after resizing")
    group.add_argument(
        "--letterbox",
        metavar="N or H,W",
        help="instead: resized to fit into this size, and padded to it with grey, as YOLO detectors have it",
    )


def add_method_option(parser: argparse.ArgumentParser) -> None:
    """Adds ``--method``."""
    parser.add_argument(
        "--method", choices=get_args(Method), default="auto", help="how ranges are chosen; default auto"
    )


def add_worker_options(parser: argparse.ArgumentParser, threads: str = "ONNX Runtime's choice") -> None:
    """Adds ``--threads``, ``--ray`` and ``--num-gpus``.

    Args:
        parser: The verb's parser.
        threads: The default number of threads, in words.
    """
    parser.add_argument(
        "--threads", type=int, metavar="N", help=f"threads per operator; default {threads}, over Ray 1"
    )
    parser.add_argument(
        "--ray",
        nargs="?",
        const="",
        metavar="ADDRESS",
        help="share the work out over Ray: the cluster there, else the one that Ray finds, else this "
        "machine; --threads is then the number per worker",
    )
    parser.add_argument(
        "--num-gpus",
        type=float,
        metavar="N",
        help="over Ray: GPUs per worker, which may be a fraction; default 0",
    )


def add_loading_options(parser: argparse.ArgumentParser) -> None:
    """Adds ``--allow-host-code`` and ``--plugin``, for the verbs that load engines."""
    parser.add_argument(
        "--allow-host-code",
        action="store_true",
        help="run the code that a version-compatible engine contains; for engines that you trust",
    )
    parser.add_argument(
        "--plugin",
        action="append",
        default=[],
        metavar="FILE.so",
        help="a library of plugins that the engine was built with; repeatable",
    )


def executor_from(options: argparse.Namespace) -> Literal["local"] | RayExecutor:
    """Where the options say that models run.

    Raises:
        CalibrationDataError: GPUs per worker are given, and Ray is not used.
    """
    if options.ray is not None:
        return RayExecutor(options.ray or None, num_gpus=options.num_gpus or 0)
    if options.num_gpus is not None:
        raise CalibrationDataError("--num-gpus is for workers of Ray; add --ray, or leave it out")
    return "local"


def data_options_from(options: argparse.Namespace) -> DataOptions:
    """How the options say that data is read.

    Raises:
        CalibrationDataError: A value is malformed.
    """
    return DataOptions(
        batch_size=options.batch_size,
        limit=options.limit,
        preprocessing=preprocessing_from(options),
        labels=getattr(options, "labels", None),
    )


def preprocessing_from(options: argparse.Namespace) -> Preprocessing | None:
    """The preprocessing that the options declare; None where they declare none.

    Raises:
        CalibrationDataError: A value is malformed, or both a file and options are given.
    """
    given: dict[str, Any] = {}
    for name in ("mean", "std"):
        if (text := getattr(options, name)) is not None:
            given[name] = tuple(_number(name, part) for part in text.split(","))
    if options.scale is not None:
        numerator, _, denominator = options.scale.partition("/")
        divisor = _number("scale", denominator or "1")
        if not divisor:
            raise CalibrationDataError(f"--scale: '{options.scale}' divides by zero; write 1/255 or a number")
        given["scale"] = _number("scale", numerator) / divisor
    if options.resize is not None:
        sizes = tuple(_integer("resize", part) for part in options.resize.split(","))
        given["resize"] = sizes[0] if len(sizes) == 1 else sizes
    if options.crop is not None:
        given["crop"] = tuple(_integer("crop", part) for part in options.crop.split(","))
    if options.letterbox is not None:
        sizes = tuple(_integer("letterbox", part) for part in options.letterbox.split(","))
        given["letterbox"] = sizes * 2 if len(sizes) == 1 else sizes
    given |= {name: value for name in ("layout", "channels") if (value := getattr(options, name)) is not None}
    if options.preprocess is not None and given:
        raise CalibrationDataError(f"give --preprocess or --{next(iter(given))}, not both")
    if options.preprocess is not None:
        return Preprocessing.load(options.preprocess)
    return Preprocessing(**given) if given else None


def _number(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise CalibrationDataError(f"--{option}: '{text}' is not a number") from None


def _integer(option: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise CalibrationDataError(f"--{option}: '{text}' is not an integer") from None
