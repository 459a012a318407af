"""The engine file, and the JSON sidecar that says what is in it and which table and inputs belong to it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np

from calibrators import records
from calibrators.checks import FilePath, check_path
from calibrators.data.inputs import CalibratedInputs, InputSpec, shape_text
from calibrators.display.cards import html_table
from calibrators.errors import Argument, EngineError, advice, megabytes, titled
from calibrators.files import is_file, kind_by_ending, write_atomically, written_together
from calibrators.records import Count, Line, PositiveCount, Sha256, Text
from calibrators.tables.table import CalibrationTable
from calibrators.tensorrt.flavor import Flavor, FlavorName, title_of
from trtint8.engine.kernels import PartTotal, part_totals, total_traffic
from trtint8.engine.layers import LayerReport
from trtint8.engine.profiles import ShapeRange, profile_rows
from trtint8.version import __version__

_FORMAT_VERSION = 1

#: The largest plan that is read, in bytes: more than fits a GPU.
_MOST_BYTES = 256 << 30

# The forms of what a sidecar holds. A regular expression ends in \Z: a line break may stand behind ``$``.

#: A GPU's compute capability, like "8.6"; or "current".
Capability = Annotated[str, msgspec.Meta(pattern=r"^([0-9]{1,3}\.[0-9]{1,3}|current)\Z")]

#: A TensorRT's version, like "10.9.0.34" or "10.0.0b6"; or "unknown", of bindings without one.
TensorrtVersion = Annotated[str, msgspec.Meta(pattern=r"^(unknown|[0-9][0-9A-Za-z.+-]{0,63})\Z")]

#: NumPy's name of an element type, those of ml_dtypes among them, like "float32" or "float8_e4m3fn".
DType = Annotated[
    str, msgspec.Meta(pattern=r"^(bool|object|(u?int|b?float|complex)[0-9]{1,3}(_e[0-9]m[0-9][a-z]{0,4})?)\Z")
]

#: What identifies a model or a table: hexadecimal digits, 64 where trtint8 computed it.
Fingerprint = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{0,64}\Z")]

#: How the name of a file beside an engine ends, like "table.json".
_FileEnd = Annotated[str, msgspec.Meta(pattern=r"^[a-z]{1,16}(\.[a-z]{1,16}){0,2}\Z")]

#: The GPUs that an engine runs on besides that which built it.
_Compatibility = Annotated[str, msgspec.Meta(pattern=r"^(ampere_plus|same_compute_capability)\Z")]

#: The name of a Q/DQ model beside an engine: no path, and not hidden.
_MODEL_NAME = re.compile(r"[^./\\:\x00-\x1f\x7f][^/\\:\x00-\x1f\x7f]{0,250}\.onnx")


@dataclass(frozen=True)
class TensorSpec:
    """One input or output of an engine.

    Attributes:
        name: Name of the input or output.
        dtype: NumPy's name of the element type.
        shape: The dimensions; a dynamic one is a str, or None where it has no name.
    """

    name: Text
    dtype: DType
    shape: tuple[Count | Text | None, ...]


@dataclass(frozen=True, repr=False)
class EngineInfo(records.Result):
    """What is known of an engine in addition to its plan.

    Attributes:
        flavor: "tensorrt" or "rtx".
        tensorrt_version: The version that built it. The same version has to run it.
        compute_capabilities: The GPUs that it was built for, like ("8.6",), or ("current",) for the GPU that
            built it.
        inputs: The engine's inputs.
        outputs: The engine's outputs.
        profiles: The optimization profiles; empty where all inputs are static.
        layers: The engine's layers; None where the builder did not list them.
        quantized_nodes: Names of the ONNX nodes that were meant to run in INT8.
        float_nodes: Names of the nodes that multiply matrices and stay in float, each with the reason; empty
            on the implicit route, where TensorRT decides.
        float_causes: Name of each of these nodes to the cause for programs, which :class:`Decision` lists;
            empty in files of version 0.2 and older.
        modules: Name of each weighted node to the path of the module of PyTorch that it comes from, if known;
            empty in files of version 0.2 and older.
        weights_bytes: Size of the weights, in bytes; None where the builder did not report it.
        model_fingerprint: Identifies the ONNX model that it came from.
        route: "explicit" (Q/DQ in the graph) or "implicit" (calibrators and dynamic ranges).
        missing_ranges: Tensors without a dynamic range, each with the layer that makes it. The layers around
            them do not run in INT8.
        shared_scales: Groups of scales in the Q/DQ model that are equal and must stay equal, by name.
        hardware_compatibility: "ampere_plus", "same_compute_capability", or None if only the GPU that built
            it can run it.
        version_compatible: Whether newer TensorRT versions can run it.
        table_fingerprint: Identifies the calibration table; None where none was used.
        method: How the ranges were found, like "entropy"; None where nothing was calibrated.
        changed_weights: What was done to the float model's weights before it was quantized, in order. The
            Q/DQ model has the changed weights. Empty in files of earlier versions.
        qdq_model: File name of the Q/DQ model beside it, if there is one.
        qdq_fingerprint: Identifies that model; None if there is none, and in files of trtint8 0.1.
        written: SHA-256 of the files beside it that builds have written and that belong to it, by the ends of
            their names, like "table.json". The hash of a large model includes its weights. Empty in files of
            trtint8 0.1.
        kernels: The engine's kernels by part, with the bytes that they read and write per inference; empty
            where the builder did not list them, and in files written by trtint8 0.1.
        joins_samples: Whether samples may be joined along axis 0 of the inputs: every output then has a row
            for each sample that does not depend on the others. None if that could not be tried, and in files
            of earlier versions.
        calibrated_inputs: The inputs of the calibration; None if they are not known, and in files of version
            0.2 and older.
        warnings: What the calibration and the build warned of; empty in files of version 0.2 and older.
        plan_sha256: SHA-256 of the plan; :func:`save_engine` fills it in.
        created_by: The trtint8 that wrote it.
        format_version: Version of the sidecar's format.
    """

    flavor: FlavorName
    tensorrt_version: TensorrtVersion
    compute_capabilities: tuple[Capability, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    profiles: tuple[Mapping[Text, ShapeRange], ...]
    layers: LayerReport | None
    quantized_nodes: tuple[Text, ...]
    weights_bytes: Count | None
    model_fingerprint: Fingerprint
    route: Literal["explicit", "implicit"] = "explicit"
    missing_ranges: tuple[tuple[Text, Text], ...] = ()
    float_nodes: tuple[tuple[Text, Text], ...] = ()
    float_causes: Mapping[Text, Text] = field(default_factory=dict)
    modules: Mapping[Text, Text] = field(default_factory=dict)
    shared_scales: tuple[tuple[Text, ...], ...] = ()
    hardware_compatibility: _Compatibility | None = None
    version_compatible: bool = False
    table_fingerprint: Fingerprint | None = None
    method: Text | None = None
    changed_weights: tuple[Text, ...] = ()
    qdq_model: str | None = None
    qdq_fingerprint: Fingerprint | None = None
    written: Mapping[_FileEnd, Sha256] = field(default_factory=dict)
    kernels: tuple[PartTotal, ...] = ()
    joins_samples: bool | None = None
    calibrated_inputs: CalibratedInputs | None = None
    warnings: tuple[Text, ...] = ()
    plan_sha256: Sha256 = ""
    created_by: Line = f"trtint8 {__version__}"
    format_version: PositiveCount = _FORMAT_VERSION

    def __repr__(self) -> str:
        return f"<EngineInfo: {info_summary(self)}>"

    def _repr_html_(self) -> str:
        return html_table(info_summary(self), ("what", "found"), info_rows(self))

    @property
    def built_with(self) -> Flavor:
        """The TensorRT that built it. It does not have to be installed."""
        return Flavor(self.flavor, self.tensorrt_version)

    @property
    def parts(self) -> tuple[PartTotal, ...]:
        """The engine's kernels by part; empty where the builder did not list them."""
        return self.kernels or (part_totals(self.layers) if self.layers else ())

    def title(self, node: str) -> str:
        """Returns the name of a node, and its module."""
        return titled(node, self.modules.get(node, ""))

    @property
    def in_int8(self) -> bool:
        """Whether a layer is in INT8, as far as is known."""
        counted = self.int8_layers
        return bool(counted[0] if counted else self.quantized_nodes)

    @property
    def int8_layers(self) -> tuple[int, int] | None:
        """The number of weighted nodes in INT8, and of all weighted nodes; None if that is not known.

        It is not known if TensorRT compiles parts of the network as a whole. The second number includes nodes
        that were left in float, except on the implicit route, where these are not known. Nodes that became
        constants do not count.
        """
        if self.layers is None:
            return None
        summary = self.layers.weighted_summary(self.quantized_nodes)
        if self.layers.compiles_parts and "unknown" in summary:
            return None
        weighted = len(self.quantized_nodes) + len(self.float_nodes) - len(summary.get("folded", []))
        return len(summary.get("INT8", [])), weighted


def info_summary(info: EngineInfo) -> str:
    """The TensorRT, the GPUs and the layers in INT8 of an engine, on one line."""
    counted = info.int8_layers
    layers = f", {counted[0]} of {counted[1]} weighted layers in INT8" if counted else ""
    return (
        f"{title_of(info.flavor)} {info.tensorrt_version} for {', '.join(info.compute_capabilities)}{layers}"
    )


def engine_rows(info: EngineInfo) -> list[tuple[str, str]]:
    """What is in an engine, as rows of a table for a person."""
    rows = [
        *profile_rows(info.profiles),
        *_layer_rows(info),
        *_kernel_rows(info.parts if info.layers else (), dynamic=bool(info.profiles)),
        *_float_rows(info.float_nodes),
        *_range_rows(info.missing_ranges),
    ]
    if info.weights_bytes is not None:
        rows.append(("weight memory", f"{info.weights_bytes / 1e3:,.1f} kB"))
    return rows


def info_rows(info: EngineInfo) -> list[tuple[str, str]]:
    """What is known of an engine, as rows of a table for a notebook."""
    sides = [("input", spec) for spec in info.inputs] + [("output", spec) for spec in info.outputs]
    rows = [(f"{side} '{spec.name}'", f"{spec.dtype} {shape_text(spec.shape)}") for side, spec in sides]
    rows += [*engine_rows(info), ("route", info.route), ("method", info.method or "none")]
    if info.calibrated_inputs is not None:
        rows.append(("preprocessing", str(info.calibrated_inputs)))
    return rows


def sidecar_path(path: FilePath) -> Path:
    """Where the sidecar of the engine file ``path`` stands: "X.engine.json" beside "X.engine"."""
    return Path(f"{os.fspath(path)}.json")


def save_engine(path: FilePath, plan: bytes, info: EngineInfo) -> EngineInfo:
    """Writes a plan and its sidecar.

    Args:
        path: The engine file; replaced when it exists.
        plan: The serialized engine.
        info: What is known of the engine.

    Returns:
        ``info`` with the plan's hash, as it was written.

    Raises:
        OutputError: A file cannot be written.
    """
    info = replace(info, plan_sha256=hashlib.sha256(plan).hexdigest())
    path = Path(path)
    with written_together(path) as staged:
        write_atomically(staged(sidecar_path(path)), records.render(info))
        write_atomically(staged(path), plan)
    return info


def read_engine_info(path: FilePath) -> EngineInfo:
    """Reads an engine's sidecar and makes sure that it belongs to the plan.

    Args:
        path: The engine file.

    Returns:
        What is known of the engine.

    Raises:
        EngineError: One of the two files is missing, unreadable or malformed, the sidecar is of a newer
            format, the plan is not the one that it describes, or what is given is no path.

    Examples:
        >>> info = trtint8.read_engine_info("model.engine")
        >>> info.route, info.inputs[0].name
        ('explicit', 'images')
    """
    check_path("the engine", path, EngineError)
    with _reading_engine(path):
        digest = sha256_of(path)
    info = read_sidecar(path)
    if info.plan_sha256 != digest:
        raise EngineError(
            f"the engine '{os.fspath(path)}' is not the one that its sidecar describes: it was truncated or "
            f"replaced; copy both files together, or build the engine again"
        )
    return info


_BUILD = "build an engine of it with 'trtint8 build', and give that"

#: What to do about a file that is no engine, by what it holds.
_INSTEAD = {
    "model": f"it is a model, so {_BUILD}",
    "PyTorch": f"export the network of PyTorch with torch.onnx.export, {_BUILD}",
    "TensorFlow": f"convert the network of TensorFlow with tf2onnx, {_BUILD}",
    "arrays": "it holds arrays, so "
    + advice(f"give the engine first and {Argument('data')} after it", "give an engine in its place"),
    "table": "if it is a table, "
    + advice(f"give its model, and the table as {Argument('table')}", "give an engine in its place"),
}


def instead_of_engine(path: FilePath) -> str:
    """Returns what to do about a file that is no engine by its ending; an empty text where it may be one.

    Args:
        path: The file.
    """
    return _INSTEAD.get(kind_by_ending(path), "")


def read_sidecar(path: FilePath) -> EngineInfo:
    """Reads an engine's sidecar, whatever has become of the plan.

    Args:
        path: The engine file.

    Returns:
        What is known of the engine.

    Raises:
        EngineError: The sidecar is missing, unreadable, malformed or of a newer format.
    """
    sidecar = sidecar_path(path)
    try:
        document = records.read(sidecar)
    except FileNotFoundError:
        if instead := instead_of_engine(path):
            raise EngineError(f"'{os.fspath(path)}' is not a TensorRT engine; {instead}") from None
        raise EngineError(
            f"the engine '{os.fspath(path)}' has no sidecar '{sidecar.name}' beside it; copy both files, or "
            f"build the engine with trtint8"
        ) from None
    except (OSError, records.RecordError) as error:
        raise EngineError(
            f"the sidecar '{sidecar}' cannot be read ({error}); build the engine again"
        ) from error
    version = document.get("format_version") if isinstance(document, dict) else None
    if isinstance(version, int) and version > _FORMAT_VERSION:
        raise EngineError(
            f"the sidecar '{sidecar}' has format {version}, and this trtint8 reads up to {_FORMAT_VERSION}; "
            f"upgrade trtint8"
        )
    wrong = f"the sidecar '{sidecar}' is not one that trtint8 wrote"
    with records.decoding(wrong, EngineError, "build the engine again"):
        info = records.to_record(document, EngineInfo, exact=True)
        _check_profiles(info)
        _check_model_name(info.qdq_model, Path(path))
    return info


def _check_model_name(name: str | None, engine: Path) -> None:
    """Refuses the name of a Q/DQ model that may be a path, or the name of something else.

    Raises:
        RecordError: Says what is wrong.
    """
    # The engine's own name may be any that a file can have, and then so is that of the model beside it.
    if not (name is None or name == f"{engine.stem}.qdq.onnx" or _MODEL_NAME.fullmatch(name)):
        raise records.RecordError(f"the Q/DQ model {name!r:.80} is no plain name of an .onnx file")


def _check_profiles(info: EngineInfo) -> None:
    """Refuses profiles that do not fit the inputs, which no build leaves.

    Raises:
        RecordError: Says what is wrong.
    """
    ranks = {spec.name: len(spec.shape) for spec in info.inputs}
    for name, shapes in (item for profile in info.profiles for item in profile.items()):
        rank = ranks.get(name) or len(shapes.opt)  # an input of unknown rank has an empty shape here
        lengths = {len(shapes.min), len(shapes.opt), len(shapes.max)}
        if lengths != {rank} or (rank == 0 and name not in ranks):
            raise records.RecordError(f"the profile of '{name:.80}' is {shapes!s:.80}, which fits no input")


def read_plan(path: FilePath) -> bytes:
    """Reads the plan in an engine file.

    Raises:
        EngineError: The file cannot be read, is no regular file, or is larger than any plan.
    """
    with _reading_engine(path):
        return records.read_bytes(path, _MOST_BYTES)


def check_engine_file(path: FilePath) -> None:
    """Refuses an engine that has no file.

    Args:
        path: The engine file.

    Raises:
        EngineError: There is no such file.
    """
    with _reading_engine(path):
        Path(path).stat()


@contextlib.contextmanager
def _reading_engine(path: FilePath) -> Iterator[None]:
    try:
        yield
    except (OSError, records.RecordError, MemoryError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error) or "it does not fit into memory"
        raise EngineError(
            f"the engine '{os.fspath(path)}' cannot be read ({reason}); give the path of an engine file"
        ) from error


def sha256_of(*paths: FilePath) -> str:
    """Computes the SHA-256 of what files hold, one behind another.

    Raises:
        OSError: A file cannot be read, or is no regular file.
    """
    digest = hashlib.sha256()
    for path in paths:
        with records.open_file(path) as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


#: How many tensors without a range are named; the sidecar names all of them.
_MOST_MISSING = 20

#: How many reasons for staying in float are given; the sidecar has that of every node.
_MOST_REASONS = 5

#: What is said where an engine's layers are not listed, whichever of both it was.
NOT_LISTED = "not listed: profiling verbosity was not 'detailed', the default, or this TensorRT lists none"

#: What rows are called of weighted nodes that no layer of an engine computes.
_NO_PRECISION = {"unknown": "not in the engine's list", "folded": "constants in the engine"}


def _layer_rows(info: EngineInfo) -> list[tuple[str, str]]:
    """In which precisions weighted nodes run, and of which profile the rows of kernels are that follow.

    Args:
        info: What is known of the engine.
    """
    layers, wanted, in_int8 = info.layers, info.quantized_nodes, info.int8_layers
    if layers is None:
        return [("weighted layers in INT8", NOT_LISTED)]
    summary = layers.weighted_summary(wanted)
    seen = len(summary.get("INT8", ()))
    partly = f"{seen} seen; TensorRT tells nothing of parts that it compiled as a whole"
    others = {name: nodes for name, nodes in summary.items() if name != "INT8" and nodes}
    return [
        ("weighted layers in INT8", "{} of {}".format(*in_int8) if in_int8 else partly),
        *(
            (_NO_PRECISION.get(name, f"in {name}"), ", ".join(info.title(node) for node in nodes))
            for name, nodes in others.items()
        ),
        *([] if layers == layers.of_first_profile else [("kernels and bytes", "those of profile 0")]),
    ]


def _kernel_rows(parts: Sequence[PartTotal], *, dynamic: bool) -> list[tuple[str, str]]:
    """What kernels are for, and what they read and write.

    Args:
        parts: The kernels by part.
        dynamic: Whether shapes are dynamic.
    """
    if not parts:
        return []
    traffic = total_traffic(part.traffic for part in parts)
    if traffic is not None:
        moved = f"{megabytes(traffic.read)} read, {megabytes(traffic.written)} written"
    elif dynamic:
        moved = "not known for dynamic shapes; 'trtint8 audit' gives them at the optimal ones"
    else:
        moved = "not known, because the builder does not list all shapes and types"
    number = sum(part.kernels for part in parts)
    return [
        ("kernels", f"{number}: {', '.join(f'{part.kernels} {part.part}' for part in parts)}"),
        ("bytes per inference", moved),
    ]


def _float_rows(nodes: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """How many nodes stay in float, and why.

    Args:
        nodes: The name of each, with the reason.
    """
    if not nodes:
        return []
    reasons = Counter(reason for _, reason in nodes).most_common(_MOST_REASONS)
    return [
        ("nodes that stay in float", str(len(nodes))),
        *((f"  {count} of them", reason) for reason, count in reasons),
    ]


def _range_rows(missing: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Which tensors have no range.

    Args:
        missing: The name of each, with the layer that makes it.
    """
    if not missing:
        return []
    named = missing[:_MOST_MISSING]
    return [
        ("tensors without a range", str(len(missing))),
        *((f"  '{tensor}'", f"of layer '{layer}'") for tensor, layer in named),
    ]


def table_file_of(engine: Path) -> Path:
    """The calibration table beside an engine file."""
    return engine.with_name(f"{engine.stem}.table.json")


def read_engine_table(engine: Path, info: EngineInfo) -> CalibrationTable | None:
    """Reads the table that an engine was built with.

    Args:
        engine: The engine file.
        info: What its sidecar says.

    Returns:
        The table; None where the engine was built without one, or none stands beside it.

    Raises:
        EngineError: The table beside the engine is another one.
        TableError: The table is unusable.
    """
    path = table_file_of(engine)
    if info.table_fingerprint is None or not is_file(path):
        return None
    table = CalibrationTable.load(path)
    if table.fingerprint != info.table_fingerprint:
        raise EngineError(
            f"'{path}' is not the table that the engine was built with; move it away, or build the engine "
            "from it"
        )
    return table


def input_specs(specs: Iterable[TensorSpec]) -> tuple[InputSpec, ...]:
    """Converts the inputs of an engine to the form that data sources need.

    Args:
        specs: The engine's inputs.

    Returns:
        Name, dtype and shape of every input.
    """
    return tuple(InputSpec(spec.name, np.dtype(spec.dtype), spec.shape) for spec in specs)
