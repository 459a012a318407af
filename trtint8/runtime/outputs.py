"""Where the outputs of an inference go: arrays that the caller gives, on the host or on the GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from calibrators.cuda.dlpack import Dlpack
from calibrators.data.inputs import shape_text
from calibrators.errors import CalibrationDataError
from trtint8.engine.file import TensorSpec
from trtint8.runtime.arrays import CudaArray, DeviceInput, HostArray, as_input

#: Output name to the array that it is written to.
Outputs: TypeAlias = Mapping[str, HostArray | CudaArray | Dlpack]


@dataclass(frozen=True)
class Targets:
    """Checked arrays that outputs are written to.

    Attributes:
        host: Output name to a NumPy array.
        device: Output name to an array on the GPU.
    """

    host: Mapping[str, NDArray[Any]]
    device: Mapping[str, DeviceInput]

    @property
    def aligned(self) -> dict[str, int]:
        """Output name to the device addresses that TensorRT can write to."""
        return {name: target.pointer for name, target in self.device.items() if target.aligned}

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Refuses an array that has not the shape of its output.

        Raises:
            CalibrationDataError: The shapes differ.
        """
        target = self.host.get(name, self.device.get(name))
        if target is not None and target.shape != shape:
            raise CalibrationDataError(
                f"output '{name}' has shape {shape_text(shape)} and the array for it "
                f"{shape_text(target.shape)}; give an array of the output's shape"
            )


def as_targets(outputs: Mapping[str, Any], specs: Sequence[TensorSpec], stream: int) -> Targets:
    """Checks arrays that outputs are to be written to.

    Args:
        outputs: Output name to array, writable and C-contiguous.
        specs: The engine's outputs.
        stream: Handle of the stream that writes.

    Returns:
        The arrays.

    Raises:
        CalibrationDataError: The engine has no such output, or an array has another dtype or rank, cannot be
            written to, or is not contiguous.
    """
    known = {spec.name: spec for spec in specs}
    host: dict[str, NDArray[Any]] = {}
    device: dict[str, DeviceInput] = {}
    for name, value in outputs.items():
        if name not in known:
            raise CalibrationDataError(
                f"the engine has no output '{name}'; it has {', '.join(map(repr, known))}"
            )
        if isinstance(value, np.ndarray) and not (value.flags.c_contiguous and value.flags.writeable):
            raise CalibrationDataError(
                f"the array for output '{name}' is read-only or not contiguous; give one from numpy.empty"
            )
        array = as_input(value, known[name], stream, kind="output")
        if isinstance(array, DeviceInput):
            device[name] = array
        elif array is value:
            host[name] = array
        else:
            raise CalibrationDataError(
                f"a {type(value).__name__} for output '{name}' cannot be written to; give a NumPy array or "
                "an array on the GPU"
            )
    return Targets(host, device)
