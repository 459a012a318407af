"""An engine with everything about it that a deployment needs."""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from calibrators.checks import check_path
from calibrators.data.images.preprocessing import Preprocessing, check_preprocessing
from calibrators.errors import EngineError, UnsupportedError
from calibrators.files import is_file
from calibrators.tables.table import CalibrationTable
from calibrators.tensorrt.flavor import title_of
from trtint8.deployment.escapes import Code, json_document
from trtint8.deployment.image_fit import check_images_fit
from trtint8.engine.file import EngineInfo, TensorSpec, read_engine_info
from trtint8.engine.qdq import load_engine_qdq
from trtint8.engine.table import read_engine_table
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
        preprocessing: How raw images become what the engine is fed.

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
    source = DeploySource(path, info, _qdq_model_of(path, info), read_engine_table(path, info), preprocessing)
    if preprocessing is not None:
        check_images_fit(info, source.image_input, preprocessing)
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
