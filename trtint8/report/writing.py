"""Makes a report from files, and from a run of both models where there is data, and writes one HTML file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from calibrators import records
from calibrators.checks import PATH_TYPES, FilePath, check_ending, refuse_empty_path, several
from calibrators.data.batches import warning_of_inputs
from calibrators.data.images.preprocessing import Preprocessing
from calibrators.data.inputs import DataOptions, LabelSource
from calibrators.data.opening import DataSource
from calibrators.errors import Argument, CalibrationDataError, ModelError, TableError, UnsupportedError
from calibrators.files import check_writable, refuse_overwriting, write_atomically
from calibrators.imports import install_command
from trtint8.arithmetic.simulation import Integers
from trtint8.models.outputs.joined import output_parts
from trtint8.models.session import open_model
from trtint8.quantization.config import Arithmetic, ArithmeticName, arithmetic_named
from trtint8.report.comparison import RunComparison
from trtint8.report.files import ReportFiles, find_report_files, load_original, refuse_given
from trtint8.runtime.bindings import LoadingOptions
from trtint8.validation.accuracy import VALIDATED
from trtint8.validation.opening import Reference, Setting, open_validated

if TYPE_CHECKING:
    from trtint8.report.worst import Worst


def check_page_name(path: FilePath) -> Path:
    """Refuses a name for a page that does not end as that of one, before any work is done for it.

    Raises:
        OutputError: The name is empty, does not end in .html or .htm, or is such an ending alone.
    """
    return check_ending(path, "a page", (".html", ".htm"))


def write_report(
    sources: Sequence[FilePath],
    output: FilePath,
    *,
    model: FilePath | None = None,
    data: DataSource | None = None,
    labels: LabelSource | None = None,
    class_names: FilePath | Sequence[str] | None = None,
    allow_host_code: bool = False,
    plugins: Sequence[FilePath] = (),
    batch_size: int | None = None,
    limit: int | None = None,
    preprocessing: Preprocessing | None = None,
    skip_bad: bool = False,
    arithmetic: ArithmeticName | None = None,
) -> Path:
    """Writes one self-contained HTML page on one INT8 model: accuracy, layers, tensors and samples.

    Args:
        sources: The folder that ``trtint8 build`` wrote to; or an engine, whose files beside it are also
            read; or single files: a Q/DQ model, a calibration table, and the JSON of sensitivity, accuracy,
            audit, bench and tuning.
        output: The HTML file.
        model: The float model.
        data: Held-out data. The page shows its samples with the largest differences. Needs ``model``.
        labels: Labels that do not come with the data.
        class_names: Names of the classes in the order of their indices, or a text file with one per line.
        allow_host_code: Whether code that an engine contains may run; see :meth:`Engine.load`.
        plugins: Paths of shared libraries with the plugins that engines use.
        batch_size: Samples per batch.
        limit: Use only this many samples.
        preprocessing: How raw images become inputs.
        skip_bad: Leave out the files of a folder that cannot be read, such as damaged images, with their
            labels, and warn of them by name. By default the first such file is an error.
        arithmetic: Computes INT8 with the integers of a backend, as in :func:`validate`. It takes the float
            model with the table, or the Q/DQ model if there is no table. By default the Q/DQ model runs as it
            is.

    Returns:
        ``output``.

    Raises:
        TrtInt8Error: Always one of its subclasses, whose message says in one sentence what to do.

    Examples:
        >>> trtint8.write_report(["model.engine"], "report.html", model="model.onnx")
        PosixPath('report.html')
    """
    data_options = DataOptions(
        batch_size, limit, preprocessing=preprocessing, labels=labels, skip_bad=skip_bad
    )
    loading = LoadingOptions(allow_host_code, plugins)
    backend = None if arithmetic is None else arithmetic_named(arithmetic)
    if data is None:
        given: dict[str, object] = {"class_names": class_names or None, "labels": labels, "limit": limit}
        given |= {"batch_size": batch_size, "preprocessing": preprocessing, "skip_bad": skip_bad or None}
        refuse_given({**given, "arithmetic": backend}, "data")
    page = _page()
    from trtint8.report.facts import gather

    output = check_writable(check_page_name(output))
    if not isinstance(model, (str, os.PathLike, type(None))):
        raise ModelError(f"a report reads its model from a file, and got {type(model).__name__}; give a path")
    refuse_empty_path("the model", model, ModelError)
    files = find_report_files(several(sources))
    refuse_overwriting([output], [*files.read, model, data, data_options.labels, class_names])
    worst: Worst | None = None
    if data is not None:
        worst = _worst(files, model, data, data_options, class_names, loading, backend)
    report = gather(files, model=Path(model) if model else None, worst=worst)
    # Names in files may hold halves of characters, which no page can.
    return write_atomically(output, page.render(report).encode(errors="replace"))


def write_comparison(comparison: RunComparison, output: FilePath) -> Path:
    """Writes one self-contained HTML page with several runs side by side.

    Args:
        comparison: What the page shows.
        output: The HTML file.

    Returns:
        ``output``.

    Raises:
        UnsupportedError: The extra ``trtint8[report]`` is not installed.
        TableError: The first argument is not a comparison.
        OutputError: The page cannot be written, is one of the files that were compared, or its name does not
            end in .html or .htm.

    Examples:
        >>> comparison = trtint8.compare_runs(["entropy/model.engine", "mse/model.engine"])
        >>> trtint8.write_comparison(comparison, "comparison.html")
        PosixPath('comparison.html')
    """
    if not isinstance(comparison, RunComparison):
        raise TableError(
            f"a page is made of what compare_runs() returns, and got {type(comparison).__name__}; "
            "compare the runs first"
        )
    output = check_writable(check_page_name(output))
    refuse_overwriting([output], comparison.files)
    return write_atomically(output, _page().render_comparison(comparison).encode(errors="replace"))


def _worst(
    files: ReportFiles,
    model: FilePath | None,
    data: DataSource,
    options: DataOptions,
    class_names: FilePath | Sequence[str] | None,
    loading: LoadingOptions,
    arithmetic: Arithmetic | None,
) -> Worst:
    """Runs both models on the data and finds the worst samples."""
    from trtint8.report.worst import find_worst

    integers = None if arithmetic is None else Integers(arithmetic, files.table)
    validated: FilePath | None = files.paths.get("qdq") or files.paths.get("engine")
    if integers is not None:
        validated = files.paths.get("qdq") if files.table is None else model
    if model is None:
        raise ModelError(
            f"{Argument('data', '...')} shows the worst samples, which needs the float model too; give "
            f"{Argument('model', '...')}"
        )
    if validated is None and integers is not None:
        raise TableError(
            f"the arithmetic '{integers.arithmetic.name}' takes ranges from a calibration table or a Q/DQ "
            "model; give one of them among the files to report on"
        )
    if validated is None:
        raise ModelError(
            f"{Argument('data', '...')} shows the worst samples, which needs the Q/DQ model or the engine; "
            "give one of them"
        )
    reference = Reference.of(load_original(model))
    original, declared = reference.model, reference.declared
    what = "the model that is reported on"
    options = options.calibrated(files.calibrated_inputs, what)
    batches = reference.open_data(data, options)
    name = files.called if integers is None else VALIDATED
    with (
        open_validated(
            name, validated, Setting(original.inputs, declared, loading, integers=integers)
        ) as int8,
        warning_of_inputs(files.calibrated_inputs, what, batches) as (watched,),
    ):
        # An engine gives only what is picked.
        gives_sources = int8.further == declared.further
        return find_worst(
            int8,
            open_model(original, int8.further).run,
            (*declared.shapes, *int8.further),
            declared.parts if gives_sources else output_parts(original.graph_model),
            original.inputs,
            watched,
            preprocessing=options.applied,
            class_names=_class_names(class_names),
        )


#: The largest file with class names that is read, in bytes.
_MOST_BYTES_OF_NAMES = 1 << 20


def _class_names(source: FilePath | Sequence[str] | None) -> tuple[str, ...]:
    if source is None:
        return ()
    if not isinstance(source, PATH_TYPES):
        return tuple(source)
    with records.reading(f"the class names '{source}'", CalibrationDataError):
        data = records.read_bytes(source, _MOST_BYTES_OF_NAMES)
    try:
        lines = records.decode_text(data).splitlines()
    except UnicodeDecodeError as error:
        raise CalibrationDataError(f"cannot read the class names '{source}': {error}") from error
    names = [line.strip() for line in lines]
    while names and not names[-1]:
        names.pop()
    return tuple(names)


def _page() -> ModuleType:
    """The module that needs the extra ``report``; it is asked for before any work is done."""
    try:
        from trtint8.report import page
    except ImportError as error:
        raise UnsupportedError(
            f"a report needs '{error.name}', which is not installed: {install_command('report')}"
        ) from error
    return page
