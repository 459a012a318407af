"""An engine with everything about it that a deployment needs, and texts for the languages of deployments.

Names of tensors and of their dimensions come from a model or a sidecar, which may be anyone's, and may hold
anything. In a deployed file they stand inside a literal of its language, and nowhere else.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NewType

from calibrators.checks import check_path
from calibrators.data.images.files import MOST_PIXELS
from calibrators.data.images.preprocessing import Preprocessing, check_preprocessing
from calibrators.data.inputs import shape_text
from calibrators.errors import Argument, CalibrationDataError, EngineError, UnsupportedError
from calibrators.files import is_file
from calibrators.tables.table import CalibrationTable
from calibrators.tensorrt.flavor import title_of
from trtint8.engine.file import EngineInfo, TensorSpec, read_engine_info, read_engine_table
from trtint8.engine.profiles import ShapeRange
from trtint8.engine.qdq import load_engine_qdq
from trtint8.models.model import Model
from trtint8.version import __version__

#: The file of the Q/DQ model in a deployed folder, whatever it is called beside the engine.
QDQ_FILE = "model.qdq.onnx"


@dataclass(frozen=True)
class Batching:
    """The batch sizes that an engine takes.

    Attributes:
        smallest: The smallest number of samples per inference.
        preferred: The numbers of samples per inference that the profiles are tuned for, in ascending order.
        largest: The largest number of samples per inference.
    """

    smallest: int
    preferred: tuple[int, ...]
    largest: int


@dataclass(frozen=True)
class DeploySource:
    """An engine, what its sidecar says, and the files beside it.

    Attributes:
        engine: The engine file.
        info: What its sidecar says.
        qdq_model: The Q/DQ model that it was built from; None where none was kept.
        table: The calibration table; None where nothing was calibrated.
        preprocessing: How raw images become what it is fed; None where that is not known.
    """

    engine: Path
    info: EngineInfo
    qdq_model: Model | None
    table: CalibrationTable | None
    preprocessing: Preprocessing | None

    @property
    def name(self) -> Code:
        """The model's name: the engine's, with letters that every tool and every language takes."""
        return Code(re.sub(r"[^A-Za-z0-9_.-]", "_", self.engine.stem).lstrip(".-") or "model")

    @property
    def is_rtx(self) -> bool:
        """Whether TensorRT for RTX built the engine, whose plans the full TensorRT does not load."""
        return self.info.flavor == "rtx"

    @property
    def tensorrt(self) -> Code:
        """The TensorRT that built the engine, in words; a version holds nothing that has to be escaped."""
        return Code(f"{title_of(self.info.flavor)} {self.info.tensorrt_version}")

    @property
    def batching(self) -> Batching | None:
        """The batch sizes; None where the first dimension is not a batch that all tensors share.

        Nor is it where an output has the samples along a later axis, as a network with the time first, or
        where joining samples has changed what the network makes of them.
        """
        tensors, profiles = (*self.info.inputs, *self.info.outputs), self.info.profiles
        firsts = {spec.shape[0] if spec.shape else 0 for spec in tensors}
        names = {spec.shape[0] for spec in self.info.inputs if spec.shape}
        if (
            not profiles
            or not all(profiles)
            or any(isinstance(dim, int) for dim in firsts)
            or len(names) != 1
            or self._has_samples_later(names)
            or self.info.joins_samples is False
        ):
            return None
        ranges = [list(profile.values()) for profile in profiles]
        return Batching(
            min(max(shapes.min[0] for shapes in profile) for profile in ranges),
            tuple(sorted({min(shapes.opt[0] for shapes in profile) for profile in ranges})),
            max(min(shapes.max[0] for shapes in profile) for profile in ranges),
        )

    def _has_samples_later(self, batch: set[int | str | None]) -> bool:
        """Whether names of dimensions say that the first one of an output is not the batch.

        Args:
            batch: What the first dimensions of the inputs are called.
        """
        later_in = {dim for spec in self.info.inputs for dim in spec.shape[1:]}
        firsts = {spec.shape[0] for spec in self.info.outputs if spec.shape}
        later_out = {dim for spec in self.info.outputs for dim in spec.shape[1:]}
        return any(dim is not None for dim in (firsts & later_in) | (batch & later_out))

    @property
    def image_input(self) -> TensorSpec | None:
        """The only input of rank 4, which takes images; None where there is none or several."""
        found = [spec for spec in self.info.inputs if len(spec.shape) == 4]
        return found[0] if len(found) == 1 else None

    def check_plan(self, runner: str) -> None:
        """Refuses an engine that the full TensorRT neither loads nor can build anew.

        Args:
            runner: What would load the engine.

        Raises:
            UnsupportedError: TensorRT for RTX built it, and there is no Q/DQ model.
        """
        if self.is_rtx and self.qdq_model is None:
            raise UnsupportedError(
                f"{runner} loads no engine of TensorRT for RTX, and '{self.engine}' has no Q/DQ model beside "
                "it to build another one from; build it from the float model with trtint8"
            )

    def qdq_files(self) -> dict[str, Model]:
        """The Q/DQ model by the name of its file; empty where there is none."""
        return {QDQ_FILE: self.qdq_model} if self.qdq_model else {}

    def description(self) -> Code:
        """What a program needs to know of the engine, as JSON: the file ``model.json``."""
        info = self.info
        document: dict[str, Any] = {
            "name": self.name,
            "engine": "model.engine",
            "flavor": info.flavor,
            "tensorrt_version": info.tensorrt_version,
            "compute_capabilities": info.compute_capabilities,
            "inputs": [asdict(spec) for spec in info.inputs],
            "outputs": [asdict(spec) for spec in info.outputs],
            "batching": asdict(self.batching) if self.batching else None,
            "profiles": [
                {name: asdict(shapes) for name, shapes in profile.items()} for profile in info.profiles
            ],
            "image_input": self.image_input.name if self.preprocessing and self.image_input else None,
            "preprocessing": asdict(self.preprocessing) if self.preprocessing else None,
            "created_by": f"trtint8 {__version__}",
        }
        return json_document(document)


def read_source(engine: str | os.PathLike[str], preprocessing: Preprocessing | None) -> DeploySource:
    """Reads an engine's sidecar and finds the files beside it.

    Args:
        engine: The engine file.
        preprocessing: How raw images become what the engine is fed; that of the calibration where None.

    Raises:
        EngineError: The engine or its sidecar is unusable, or a file beside it is missing or of another
            engine.
        CalibrationDataError: Preprocessing is given, and no input takes what it makes, or its crop is larger
            than what it resizes to.
        TableError: The table is unusable.
    """
    check_preprocessing(preprocessing)
    check_path("the engine", engine, EngineError)
    path = Path(engine)
    info = read_engine_info(path)
    if info.calibrated_inputs is not None:
        preprocessing = info.calibrated_inputs.chosen(preprocessing, f"the engine '{engine}'")
    source = DeploySource(path, info, _qdq_model_of(path, info), read_engine_table(path, info), preprocessing)
    if preprocessing is not None:
        _check_images_fit(info, source.image_input, preprocessing)
    return source


def _qdq_model_of(engine: Path, info: EngineInfo) -> Model | None:
    """The Q/DQ model beside an engine; None where none was kept.

    Raises:
        EngineError: It is missing, that of another engine, or a link out of the folder.
        ModelError: It is unusable.
    """
    if not info.qdq_model:
        return None
    path = engine.with_name(info.qdq_model)
    if not is_file(path):
        raise EngineError(
            f"the engine '{engine}' has no '{path.name}' beside it, which it was built from; copy it "
            "there, or build the engine again"
        )
    # Caches of downloads consist of links to a folder of their own, and there the engine is one as well.
    folders = (Path(os.path.realpath(engine.parent)), Path(os.path.realpath(engine)).parent)
    target = Path(os.path.realpath(path))
    if not any(target.is_relative_to(folder) for folder in folders):
        raise EngineError(
            f"'{path}' is a link out of the engine's folder, to '{target}'; put a copy of the model there"
        )
    return load_engine_qdq(path, info)


def _check_images_fit(info: EngineInfo, spec: TensorSpec | None, wanted: Preprocessing) -> None:
    """Refuses preprocessing that makes what an engine does not take, whatever the raw images are.

    Args:
        info: What is known of the engine.
        spec: Its input that takes images; None where there is none.
        wanted: The preprocessing.

    Raises:
        CalibrationDataError: No input takes images in that layout, the number of values for ``mean`` or
            ``std`` is not that of the channels, the crop is larger than what it is cut from, or the engine
            takes no images of the size that is made.
    """
    channels = spec.shape[wanted.layout.index("C")] if spec is not None else None
    if spec is None or not spec.dtype.startswith(("float", "bfloat")) or channels not in (1, 3):
        inputs = ", ".join(
            f"'{one.name}' ({one.dtype}, {shape_text(one.shape, ' x ')})" for one in info.inputs
        )
        raise CalibrationDataError(
            f"preprocessing makes floating-point images in {wanted.layout} with 1 or 3 channels, and "
            f"no input of the engine takes them: {inputs}; leave the preprocessing out or correct its layout"
        )
    for name, values in (("mean", wanted.mean), ("std", wanted.std)):
        if len(values) not in (1, channels):
            raise CalibrationDataError(
                f"{Argument('preprocessing')} has {len(values)} values for {name}, and the engine takes "
                f"'{spec.name}' with {channels} channel; give one value"
            )
    _check_crop(wanted)
    _check_size(info, spec, wanted)


def _check_crop(wanted: Preprocessing) -> None:
    if wanted.crop is None or wanted.resize is None:
        return
    if isinstance(wanted.resize, tuple):
        wanted.prepared_size(1, 1)  # which refuses a larger crop; images of all sizes become the same
    elif wanted.resize < min(wanted.crop):
        raise CalibrationDataError(
            f"preprocessing cannot crop {shape_text(wanted.crop)} (height x width) from images whose shorter "
            f"side is resized to {wanted.resize}; give a larger resize or a smaller crop"
        )


def _check_size(info: EngineInfo, spec: TensorSpec, wanted: Preprocessing) -> None:
    taken = _sizes_taken(info, spec, wanted.layout)
    if any(_may_make(wanted, heights, widths) for heights, widths in taken):
        return
    size = _size_made(wanted)
    made = f"of {shape_text(size)}" if size else f"whose shorter side is {wanted.resize}"
    sizes = " or ".join(_sizes_text(heights, widths) for heights, widths in taken)
    raise CalibrationDataError(
        f"preprocessing makes images {made}, and the engine takes '{spec.name}' of {sizes} (height x width); "
        "correct resize, crop or letterbox"
    )


def _size_made(wanted: Preprocessing) -> tuple[int, int] | None:
    """The height and width of all prepared images; None where these depend on the raw images."""
    size = wanted.letterbox or wanted.crop or wanted.resize
    return size if isinstance(size, tuple) else None


def _may_make(wanted: Preprocessing, heights: range, widths: range) -> bool:
    """Whether raw images of some size become images of one of these sizes."""
    size = _size_made(wanted)
    if size is not None:
        return size[0] in heights and size[1] in widths
    if not isinstance(wanted.resize, int):
        return True
    # One side gets this length, and the other one any from there on.
    shorter = wanted.resize
    return (shorter in heights and shorter < widths.stop) or (shorter in widths and shorter < heights.stop)


def _sizes_taken(info: EngineInfo, spec: TensorSpec, layout: str) -> list[tuple[range, range]]:
    """The heights and the widths that an input takes, for each profile of the engine."""
    height, width = layout.index("H"), layout.index("W")
    found = [profile.get(spec.name) for profile in info.profiles] or [None]
    return [(_lengths(spec, shapes, height), _lengths(spec, shapes, width)) for shapes in found]


def _lengths(spec: TensorSpec, shapes: ShapeRange | None, axis: int) -> range:
    size = spec.shape[axis]
    if isinstance(size, int):
        return range(size, size + 1)
    return range(1, MOST_PIXELS + 1) if shapes is None else range(shapes.min[axis], shapes.max[axis] + 1)


def _sizes_text(heights: range, widths: range) -> str:
    smallest = shape_text((heights.start, widths.start))
    largest = shape_text((heights.stop - 1, widths.stop - 1))
    return smallest if smallest == largest else f"{smallest} to {largest}"


@dataclass(frozen=True)
class Packages:
    """What ``run.py`` is installed with.

    Attributes:
        python: A Python version that all packages are for, like "3.12".
        requirements: What pip is to install.
        index: The index that has what PyPI lacks; None where PyPI has everything.
        environment: What stands before the command that calls pip.
        has_tensorrt: Whether TensorRT is among the requirements. Of version 9, PyPI has only placeholders,
            which refuse to be installed.
    """

    python: str
    requirements: tuple[str, ...]
    index: str | None = None
    environment: str = ""
    has_tensorrt: bool = True


_OTHERS = ("numpy>=1.26", "pillow>=10", "ml_dtypes>=0.4")
_CUDA_12 = "cuda-bindings>=12.8,<13"


def runtime_packages(source: DeploySource) -> Packages:
    """The packages that ``run.py`` needs: the TensorRT that built the engine, and bindings of CUDA."""
    version = _published(source.info.tensorrt_version)
    pinned = _pinned(version)
    if source.is_rtx:
        return Packages("3.12", (f"tensorrt-rtx-cu12{pinned}", _CUDA_12, *_OTHERS))
    parts = [int(part) for part in version.split(".") if part.isdigit()]
    if parts >= [10]:
        return Packages("3.12", (f"tensorrt-cu12{pinned}", _CUDA_12, *_OTHERS))
    if parts >= [9]:
        return Packages("3.10", (_CUDA_12, *_OTHERS), has_tensorrt=False)
    # The libraries of version 8 are linked with cuDNN 8, and their packages would take any. The bindings are
    # for Python up to 3.10, those of 8.6.1 up to 3.11.
    if parts >= [8, 6]:
        # PyPI has the libraries of 8.6.0, and of 8.6.1 only a package that requires those of NVIDIA's index.
        # The first release of that package fails: it calls a pip that is not there.
        pinned = "==8.6.1.post1" if version == "8.6.1" else pinned
        needed = (f"tensorrt{pinned}", "nvidia-cudnn-cu12<9", _CUDA_12, *_OTHERS)
        # Otherwise the package runs ps, which small images lack, to decide whether to call a pip of its own.
        alone = "NVIDIA_TENSORRT_DISABLE_INTERNAL_PIP=1 "
        return Packages("3.10", needed, "https://pypi.nvidia.com", alone)
    return Packages(
        "3.10", (f"tensorrt{pinned}", "nvidia-cudnn-cu11<9", "cuda-bindings>=11.8.6,<12", *_OTHERS)
    )


def _published(version: str) -> str:
    """The part of a TensorRT's version that its package on PyPI has; empty where the version is not known."""
    found = re.match(r"[0-9]+(\.[0-9]+)*((a|b|rc)[0-9]+)?(\.post[0-9]+)?(\.dev[0-9]+)?", version)
    return found[0] if found else ""


def _pinned(version: str) -> str:
    """What of a requirement stands behind the name of the package."""
    if not version:
        return ""
    is_whole = version.count(".") >= 3 or not version.replace(".", "").isdigit()
    return f"=={version}" if is_whole else f"=={version}.*"


def requirements_file(source: DeploySource) -> str:
    """The packages in pip's own form: the file ``requirements.txt``."""
    packages = runtime_packages(source)
    lines = [f"# For Python {packages.python}."]
    if not packages.has_tensorrt:
        lines.append(f"# PyPI has no {source.tensorrt}: install the one that built the engine.")
    if packages.index is not None:
        lines.append(f"--extra-index-url {packages.index}")
    return "\n".join([*lines, *packages.requirements]) + "\n"


#: Text in the language of the file that it goes into. Templates take nothing else.
Code = NewType("Code", str)


def c_literal(text: str) -> Code:
    """Returns a string literal of C++, which is one of protobuf's text format too.

    Args:
        text: Any text. What is not printable ASCII stands in octal, byte by byte of UTF-8, and so does ``?``,
            which begins a trigraph in old C++.
    """
    return Code('"' + "".join(map(_c_letter, text.encode())) + '"')


def _c_letter(byte: int) -> str:
    letter = chr(byte)
    if letter in '"\\':
        return f"\\{letter}"
    return letter if 32 <= byte < 127 and letter != "?" else f"\\{byte:03o}"


def json_document(value: object) -> Code:
    """Returns a JSON document, in ASCII and with a line break at its end."""
    return Code(json.dumps(value, indent=2) + "\n")


def shell_words(words: Iterable[str]) -> Code:
    """Returns a command of a shell, in which every word is quoted where it has to be."""
    return Code(" ".join(map(shlex.quote, words)))


def fits_command(text: str) -> bool:
    """True if a text can be a part of a program's argument that is written on one line."""
    return text.isprintable()


def fits_key_file(text: str) -> bool:
    """True if a text can be a value in a list of GLib's key files, which other readers understand alike.

    GLib separates by ``;``, reads escapes that begin with a backslash and trims values, and some readers of
    such files replace what follows ``%``.
    """
    return bool(text) and text == text.strip() and text.isprintable() and not set(text) & set(";\\%")


def markdown_code(text: str) -> Code:
    """Returns a code span of Markdown that is safe in a cell of a table as well.

    Args:
        text: Any text. What is not printable is shown as an escape of Python, as are backticks, which would
            end the span, bars, which would end the cell, and backslashes, which some readers obey in cells.
    """
    return Code(f"`{''.join(map(_markdown_letter, text)) or ' '}`")


def _markdown_letter(letter: str) -> str:
    if letter.isprintable() and letter not in "`|\\":
        return letter
    code = ord(letter)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
