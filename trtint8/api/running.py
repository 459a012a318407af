"""The public call that runs an engine on a whole data set, and joins its outputs along the samples.

It starts without what reads and judges models.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence

import numpy as np

from calibrators.checks import FilePath
from calibrators.data.batches import Batches, warning_of_inputs
from calibrators.data.feeds import Array, NamedArrays, batch_rows
from calibrators.data.images.preprocessing import Preprocessing
from calibrators.data.inputs import DataOptions, InputSpec, shape_text
from calibrators.data.opening import DataSource, open_data
from calibrators.data.samples import Preflight
from calibrators.errors import CalibrationDataError
from calibrators.files import check_writable, refuse_overwriting, write_atomically
from calibrators.progress import progress_bar
from trtint8.engine.file import TensorSpec, input_specs, sidecar_path
from trtint8.runtime.engine import Engine


def run_on_data(
    engine: Engine, inputs: tuple[InputSpec, ...], batches: Batches, *, progress: bool
) -> dict[str, Array]:
    """Runs an engine on all samples.

    Args:
        engine: The engine.
        inputs: What it is fed.
        batches: The samples.
        progress: Whether a progress bar is shown on a terminal.

    Returns:
        The name of each output to what it is for all samples, of a type that NumPy itself has.

    Raises:
        CalibrationDataError: The samples are unusable, or an output cannot be joined along them.
    """
    preflight = Preflight(inputs, batches.name_of)
    parts: dict[str, list[Array]] = {spec.name: [] for spec in engine.outputs}
    rows: list[int | None] = []
    with progress_bar("Running", batches.num_samples, enabled=progress) as advance:
        for feed in batches:
            before = preflight.samples
            preflight.observe(feed)
            rows.append(batch_rows(feed))
            for name, array in engine.infer(feed).items():
                parts[name].append(array)
            advance(preflight.samples - before)
    preflight.finish()
    known = engine.info or engine  # only a sidecar has the names of dimensions
    firsts = (spec.shape[0] for spec in known.inputs if spec.shape)
    batch = {dim for dim in firsts if isinstance(dim, str)}
    specs = {spec.name: spec for spec in known.outputs}
    return {name: _writable(_joined(specs[name], arrays, rows, batch)) for name, arrays in parts.items()}


def _joined(spec: TensorSpec, arrays: list[Array], rows: list[int | None], batch: set[str]) -> Array:
    """What an output is for all batches, joined along the axis of the samples.

    Args:
        spec: The output.
        arrays: What it is for each batch.
        rows: How many samples each batch has; None where that is not known.
        batch: What the first dimensions of the inputs are called, as far as they have names.
    """
    if len(arrays) == 1:
        return arrays[0]
    if not arrays[0].ndim:
        raise CalibrationDataError(
            f"output '{spec.name}' is one value per batch, and the data has {len(arrays)} batches, which one "
            "array cannot hold; run them one by one"
        )
    axes = [axis for axis, dim in enumerate(spec.shape) if dim in batch]
    if not axes and all(count in (None, len(array)) for count, array in zip(rows, arrays, strict=True)):
        axes = [0]
    if len(axes) != 1:
        raise CalibrationDataError(
            f"output '{spec.name}', {shape_text(spec.shape)}, has {'several axes' if axes else 'no axis'} of "
            "samples along which its batches could be joined; run them one by one"
        )
    try:
        return np.concatenate(arrays, axes[0])
    except ValueError as error:
        raise CalibrationDataError(
            f"output '{spec.name}' has batches of different shapes ({error}), which one array cannot hold; "
            "run them one by one"
        ) from error


def _writable(array: Array) -> Array:
    """An array of a type that NumPy itself has, and can write; BF16 and FP8 become float32."""
    return array if array.dtype.isbuiltin == 1 else array.astype(np.float32)


def archive(outputs: NamedArrays) -> bytes:
    """Returns arrays as a .npz.

    Args:
        outputs: The arrays by their names.
    """
    buffer = io.BytesIO()
    # Not numpy.savez: its own parameters are names that an output could have, and NumPy 1 has fewer of them.
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in outputs.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.save(member, array, allow_pickle=False)
    return buffer.getvalue()


def run_engine(
    engine: FilePath,
    data: DataSource,
    *,
    output: FilePath | None = None,
    device: int = 0,
    allow_host_code: bool = False,
    plugins: Sequence[FilePath] = (),
    batch_size: int | None = None,
    limit: int | None = None,
    preprocessing: Preprocessing | None = None,
    progress: bool = True,
) -> dict[str, Array]:
    """Runs an engine on a data set.

    Args:
        engine: The engine file.
        data: What :func:`calibrate` takes.
        output: An ``.npz`` file to write, whose keys are names of outputs.
        device: Index of the GPU.
        allow_host_code: Whether code that an engine contains may run; see :meth:`Engine.load`.
        plugins: Paths of shared libraries with the plugins that engines use.
        batch_size: Samples per batch.
        limit: Use only this many samples.
        preprocessing: How raw images become inputs.
        progress: Show a progress bar on a terminal.

    Returns:
        Output name to the output for all samples, joined along their axis. Types that NumPy lacks, such as
        BF16, become float32.

    Raises:
        GpuUnavailableError: There is no usable GPU.
        EngineError: The engine file is unusable.
        CalibrationDataError: The data does not fit the engine, or the batches of an output cannot be joined.
        OutputError: The file cannot be written.

    Examples:
        >>> outputs = trtint8.run_engine("model.engine", "heldout.npz", output="outputs.npz")
        >>> outputs["logits"].shape
        (597, 10)
    """
    path = None if output is None else check_writable(output)
    if path is not None:
        refuse_overwriting([path], [engine, data, sidecar_path(engine)])
    with Engine.load(engine, device=device, plugins=plugins, allow_host_code=allow_host_code) as loaded:
        inputs = input_specs(loaded.inputs)
        data_options = DataOptions(batch_size, limit, preprocessing=preprocessing)
        what = f"the engine '{engine}'"
        calibrated = loaded.info.calibrated_inputs if loaded.info else None
        data_options = data_options.calibrated(calibrated, what)
        batches = open_data(data, inputs, data_options)
        with warning_of_inputs(calibrated, what, batches) as (watched,):
            outputs = run_on_data(loaded, inputs, watched, progress=progress)
    if path is not None:
        write_atomically(path, archive(outputs))
    return outputs
