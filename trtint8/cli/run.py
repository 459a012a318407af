"""`trtint8 run`."""

from __future__ import annotations

import argparse
import io
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators.data.batches import Batches
from calibrators.data.feeds import batch_rows
from calibrators.data.inputs import InputSpec, shape_text
from calibrators.data.opening import open_data
from calibrators.data.preflight import Preflight
from calibrators.errors import CalibrationDataError
from calibrators.files import check_writable, refuse_overwriting, write_atomically
from calibrators.progress import progress_bar
from trtint8.cli.arguments import refuse_overwriting_arguments
from trtint8.cli.data_options import DATA_HELP, add_data_options, add_loading_options, data_options_from
from trtint8.cli.output import print_json, print_table
from trtint8.cli.own_data import data_from
from trtint8.engine.file import TensorSpec, sidecar_path
from trtint8.engine.inputs import input_specs
from trtint8.runtime.engine import Engine

EXAMPLE = "example:\n  trtint8 run resnet50.engine images.npz -o outputs.npz --batch-size 8"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.add_argument("engine", metavar="ENGINE")
    parser.add_argument("data", metavar="DATA", help=DATA_HELP)
    parser.add_argument("-o", "--output", required=True, metavar="OUT.npz", help="keys are output names")
    parser.add_argument("--device", type=int, default=0, metavar="N", help="the GPU's index; default 0")
    add_loading_options(parser)
    parser.add_argument("--json", action="store_true", help="print a summary as JSON")
    add_data_options(parser, states=False)


def run(options: argparse.Namespace) -> None:
    """Runs the engine on all data and writes its outputs."""
    output = check_writable(options.output)
    refuse_overwriting_arguments([output], options)
    refuse_overwriting([output], [sidecar_path(options.engine)])
    with Engine.load(
        options.engine,
        device=options.device,
        plugins=options.plugin,
        allow_host_code=options.allow_host_code,
    ) as engine:
        inputs = input_specs(engine.inputs)
        batches = open_data(data_from(options.data, options), inputs, data_options_from(options))
        outputs = _run(engine, inputs, batches)
    write_atomically(output, _archive(outputs))
    if options.json:
        summary = {name: _summary(array) for name, array in outputs.items()}
        print_json({"written": str(output), "outputs": summary})
        return
    rows = [(name, *_described(array)) for name, array in outputs.items()]
    print_table(f"Written to {output}", ("output", "type", "shape", "least", "largest"), rows)


def _run(engine: Engine, inputs: tuple[InputSpec, ...], batches: Batches) -> dict[str, NDArray[Any]]:
    preflight = Preflight(inputs, batches.name_of)
    parts: dict[str, list[NDArray[Any]]] = {spec.name: [] for spec in engine.outputs}
    rows: list[int | None] = []
    with progress_bar("Running", batches.num_samples) as advance:
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


def _joined(
    spec: TensorSpec, arrays: list[NDArray[Any]], rows: list[int | None], batch: set[str]
) -> NDArray[Any]:
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


def _writable(array: NDArray[Any]) -> NDArray[Any]:
    """An array of a type that NumPy itself has, and can write; BF16 and FP8 become float32."""
    return array if array.dtype.isbuiltin == 1 else array.astype(np.float32)


def _archive(outputs: Mapping[str, NDArray[Any]]) -> bytes:
    """The arrays as a .npz."""
    buffer = io.BytesIO()
    # Not numpy.savez: its own parameters are names that an output could have, and NumPy 1 has fewer of them.
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in outputs.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.save(member, array, allow_pickle=False)
    return buffer.getvalue()


def _summary(array: NDArray[Any]) -> dict[str, Any]:
    extent = {"min": array.min().item(), "max": array.max().item()} if array.size else {}
    return {"shape": array.shape, "dtype": str(array.dtype), **extent}


def _described(array: NDArray[Any]) -> tuple[str, str, str, str]:
    extent = (f"{array.min():.6g}", f"{array.max():.6g}") if array.size else ("", "")
    return str(array.dtype), shape_text(array.shape), *extent
