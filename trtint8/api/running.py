"""The public call that runs an engine, which starts without what reads and judges models."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from calibrators.data.images.preprocessing import Preprocessing
from calibrators.data.inputs import DataOptions
from calibrators.data.opening import DataSource, open_data
from calibrators.files import check_writable, refuse_overwriting, write_atomically
from trtint8.engine.file import input_specs, sidecar_path
from trtint8.runtime.engine import Engine
from trtint8.runtime.run import archive, run_on_data


def run_engine(
    engine: str | os.PathLike[str],
    data: DataSource,
    *,
    output: str | os.PathLike[str] | None = None,
    device: int = 0,
    allow_host_code: bool = False,
    plugins: Sequence[str | os.PathLike[str]] = (),
    batch_size: int | None = None,
    limit: int | None = None,
    preprocessing: Preprocessing | None = None,
    progress: bool = True,
) -> dict[str, NDArray[Any]]:
    """Runs an engine on a data set.

    Args:
        engine: The engine file.
        data: What :func:`calibrate` takes.
        output: An ``.npz`` file to write, whose keys are names of outputs.
        device: Index of the GPU.
        allow_host_code: Whether code that the engine contains may run; see :meth:`Engine.load`.
        plugins: Paths of shared libraries with the plugins that the engine uses.
        batch_size: Samples per batch.
        limit: Use only this many samples.
        preprocessing: How raw images become what the engine is fed.
        progress: Show a progress bar on a terminal.

    Returns:
        The name of each output to what it is for all samples, joined along their axis. Types that NumPy
        itself lacks, such as BF16, become float32.

    Raises:
        GpuUnavailableError: There is no usable GPU.
        EngineError: The engine file is unusable.
        CalibrationDataError: The data does not fit the engine, or the batches of an output cannot be joined.
        OutputError: The file cannot be written.
    """
    path = None if output is None else check_writable(output)
    if path is not None:
        refuse_overwriting([path], [engine, data, sidecar_path(engine)])
    with Engine.load(engine, device=device, plugins=plugins, allow_host_code=allow_host_code) as loaded:
        inputs = input_specs(loaded.inputs)
        data_options = DataOptions(batch_size, limit, preprocessing=preprocessing)
        outputs = run_on_data(loaded, inputs, open_data(data, inputs, data_options), progress=progress)
    if path is not None:
        write_atomically(path, archive(outputs))
    return outputs
