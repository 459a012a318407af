"""What is deployed, all that a deployment needs to know of it, and texts for the languages of deployments.

That is an engine, or a model for which an engine is built where it will run. Another TensorRT runs other
layers in INT8 and wants other forms of them, so pairs are placed anew for it.

Names of tensors and of their dimensions come from a model or a sidecar, which may be anyone's, and may hold
anything. In a deployed file they stand inside a literal of its language, and nowhere else.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NewType

import onnx_ir as ir

from calibrators.checks import FilePath, check_path, positive_integer, warn_user
from calibrators.data.images.files import MOST_PIXELS
from calibrators.data.images.preprocessing import RESIZING, Preprocessing, check_preprocessing
from calibrators.data.images.true_boxes import class_names
from calibrators.data.inputs import shape_text
from calibrators.errors import (
    Argument,
    CalibrationDataError,
    EngineError,
    TableError,
    UnsupportedError,
    counted,
)
from calibrators.files import is_file
from calibrators.operators import operator_of
from calibrators.tables.ranges import TableSource, as_table
from calibrators.tables.table import CalibrationTable
from calibrators.tensorrt.flavor import title_of
from trtint8.builder.build import with_equal_forms
from trtint8.builder.dynamic_ranges import model_tensors, propagate
from trtint8.calibration import float_tensors
from trtint8.engine.file import EngineInfo, TensorSpec, read_engine_info, read_engine_table
from trtint8.engine.profiles import Profile, ShapeRange, complete_profile, largest_shapes
from trtint8.engine.qdq import load_engine_qdq, tensor_specs, tried_shapes
from trtint8.interop.lint import lint
from trtint8.interop.migrate import plan_migration
from trtint8.interop.pairs import reads_integers
from trtint8.interop.unquantize import as_float_model, in_float32, pair_ranges
from trtint8.models.graph import computes_in
from trtint8.models.model import (
    FLOAT_MODEL,
    WITHOUT_PAIRS,
    Model,
    calibration_of,
    forget_origin,
    inputs_of,
    load_model,
    names_model,
    prepare,
    warnings_of,
)
from trtint8.models.samples.joining import takes_joined_samples
from trtint8.models.serialization import fingerprint
from trtint8.quantization.placement import Placement, place
from trtint8.quantization.quantize import (
    QuantizeOptions,
    has_one_scale,
    quantized_model,
    with_float16,
)
from trtint8.quantization.targets import DEFAULT, TARGETS, Target, target_named
from trtint8.validation.detection.decoding import Grid, grid_of_classes
from trtint8.version import __version__

#: The file of the Q/DQ model in a deployed folder, whatever it is called beside the engine.
QDQ_FILE = "model.qdq.onnx"

#: The most letters of a model's text that names its classes: those of ImageNet take 30,000.
_MOST_NAMES = 1 << 20


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
class Detector:
    """How the outputs of a detector hold boxes.

    Attributes:
        classes: The number of classes.
        grid: How the output holds the boxes of a grid; None where it has rows of x1, y1, x2, y2, score and
            class, among which the network has chosen itself.
    """

    classes: int
    grid: Grid | None


@dataclass(frozen=True)
class DeployOptions:
    """What is asked for besides the file that is deployed.

    Attributes:
        table: The calibration table of a model, or the file that holds it; None where the engine has it.
        target: The name of the target that pairs are placed for; None for the engine's own where it can be
            used, and else ``tensorrt``.
        profiles: Shapes of the dynamic inputs of a model.
        keep_float: Names of nodes, or patterns, that stay in float where pairs are placed.
        labels: The names of the classes; None where the model may say them.
        preferred_batch_sizes: The batch sizes that Triton prefers.
    """

    table: TableSource | None = None
    target: str | None = None
    profiles: Sequence[Profile] = ()
    keep_float: Sequence[str] = ()
    labels: tuple[str, ...] | None = None
    preferred_batch_sizes: Sequence[int] = ()


@dataclass(frozen=True)
class DeploySource:
    """An engine or a model, what is known of it, and the files beside it.

    Attributes:
        engine: The file that was given: the engine, or a model.
        info: What the engine's sidecar says, or the same of a model.
        qdq_model: The Q/DQ model that the engine was built from, or is to be built from; None where none was
            kept.
        table: The calibration table; None where nothing was calibrated.
        preprocessing: How raw images become what it is fed; None where that is not known.
        asked: What was asked for.
        plan: The engine file; None where a model was given, or where the engine is of no use for the target.
        placed: What was placed anew, in words; None where the model is as it was.
    """

    engine: Path
    info: EngineInfo
    qdq_model: Model | None
    table: CalibrationTable | None
    preprocessing: Preprocessing | None
    asked: DeployOptions = DeployOptions()
    plan: Path | None = None
    placed: str | None = None

    @property
    def name(self) -> Code:
        """The model's name: the engine's, with letters that every tool and every language takes."""
        return Code(re.sub(r"[^A-Za-z0-9_.-]", "_", self.engine.stem).lstrip(".-") or "model")

    @property
    def target(self) -> Target:
        """What pairs are placed for where they are placed anew."""
        return DEFAULT if self.asked.target is None else target_named(self.asked.target)

    @property
    def is_rtx(self) -> bool:
        """Whether TensorRT for RTX built the engine, whose plans the full TensorRT does not load."""
        return not target_named(self.info.built_with.quantization_target).loads_plans

    @property
    def is_model(self) -> bool:
        """True if a model was given, which no TensorRT has built yet."""
        return names_model(self.engine)

    @property
    def has_types_in_graph(self) -> bool:
        """True if the Q/DQ model has FP16 in it, so that TensorRT has to take types from the graph."""
        return self.qdq_model is not None and computes_in(self.qdq_model.graph_model, ir.DataType.FLOAT16)

    @property
    def origin(self) -> Code:
        """What the deployment was made from, in words."""
        if self.is_model:
            return Code(f"the model {markdown_code(self.engine.name)}")
        return Code(f"an engine of {self.tensorrt}")

    @cached_property
    def float_model(self) -> Model | None:
        """The prepared float model; None where none can be had from what was given."""
        if self.qdq_model is None:
            return None
        if self.is_model and not self._is_quantized:
            return prepare(self.qdq_model)
        return None if self._has_pairs_of_others else as_float_model(self.qdq_model, self._origin())

    @property
    def _has_pairs_of_others(self) -> bool:
        """True if another tool has placed the pairs, with which the network may have been trained."""
        # Models of 0.2 do not name their float model. An engine with a table had pairs placed by it.
        has_table = not self.is_model and self.info.table_fingerprint is not None
        model = self.qdq_model
        return (
            model is not None
            and model.is_quantized
            and not (has_table or FLOAT_MODEL in model.graph_model.metadata_props)
        )

    @property
    def _is_quantized(self) -> bool:
        """True if the model has been quantized, with pairs or without a layer that got some."""
        model = self.qdq_model
        return model is not None and (model.is_quantized or WITHOUT_PAIRS in model.graph_model.metadata_props)

    def _origin(self) -> str | None:
        """The fingerprint of the float model; None where the quantized one has it.

        A model that was equalized names the float model before that. Its table is known by the samples.
        """
        if not self.is_model:
            return self.info.model_fingerprint
        if self.table is None or self.qdq_model is None:
            return None
        known = self.table.provenance
        is_of_table = calibration_of(self.qdq_model.graph_model) == (known.data, known.samples)
        return known.model if is_of_table else None

    @cached_property
    def labels(self) -> tuple[str, ...] | None:
        """The names of the classes: those that were given, else those in the model; None where neither is.

        Models that ultralytics exports have them as the text of a dict, ``{0: 'person', ...}``
        (docs.ultralytics.com/modes/export).
        """
        if self.asked.labels is not None or self.qdq_model is None:
            return self.asked.labels
        text = self.qdq_model.graph_model.metadata_props.get("names", "")
        try:
            return class_names(ast.literal_eval(text[:_MOST_NAMES]), "the model")
        except (CalibrationDataError, ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return None

    @property
    def scores(self) -> TensorSpec | None:
        """The output that has one score for each class of each sample; None where there is no such one."""
        names, outputs = self.labels, self.info.outputs
        found = [spec for spec in outputs if names and len(spec.shape) == 2 and spec.shape[1] == len(names)]
        return found[0] if len(found) == 1 else None

    @property
    def detector(self) -> Detector | None:
        """How the only output holds boxes; None where it does not, or the number of classes is not known."""
        names, outputs = self.labels, self.info.outputs
        if names is None or len(outputs) != 1 or outputs[0].dtype != "float32" or len(outputs[0].shape) != 3:
            return None
        nodes = self.qdq_model.graph_model.graph if self.qdq_model else ()
        # The graph itself sorts or suppresses boxes.
        if outputs[0].shape[2] == 6 and any(node.op_type in ("TopK", "NonMaxSuppression") for node in nodes):
            return Detector(len(names), None)
        grid = grid_of_classes(outputs[0].shape, len(names))
        return Detector(len(names), grid) if grid is not None else None

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

    def check_engine(self, runner: str) -> None:
        """Refuses an engine for another target than the one that is named.

        Args:
            runner: What would load the engine.

        Raises:
            UnsupportedError: It is such an engine, or what else was asked for has no effect.
        """
        own = self.info.built_with.quantization_target
        if self.asked.target not in (None, own):
            raise UnsupportedError(
                f"{runner} loads the engine as it is, and '{self.engine}' is for the target '{own}', not "
                f"'{self.asked.target}'; build an engine for that target"
            )
        self._refuse_other_builds()

    def for_full_tensorrt(self, runner: str) -> DeploySource:
        """The same for the full TensorRT, which loads no engine of TensorRT for RTX and wants other forms.

        Args:
            runner: What will load the engine.

        Raises:
            UnsupportedError: The target is none that the runner has, or there is no model to build another
                engine from.
            TrtInt8Error: Pairs cannot be placed: see :func:`trtint8.quantization.quantize.quantized_model`.
        """
        target = self.asked.target
        if not self.target.loads_plans:
            *others, last = (one.name for one in TARGETS.values() if one.loads_plans)
            raise UnsupportedError(
                f"{runner} loads plans of the full TensorRT and the target is '{target}'; give "
                f"{', '.join(others)} or {last}"
            )
        own = self.info.built_with.quantization_target
        if not self.is_model and not self.is_rtx and target in (None, own):
            self._refuse_other_builds()
            return self
        if self.qdq_model is None:
            raise UnsupportedError(
                f"'{self.engine}' is an engine of {self.tensorrt}, and {runner} is to load one of the full "
                f"TensorRT{f' for the target {target}' if target else ''}; it has no Q/DQ model beside it to "
                f"build another one from: give the float model and {Argument('table')}"
            )
        if self._has_pairs_of_others:
            return self._with_its_pairs(self.qdq_model)
        asks = target or self.asked.table is not None or has_one_scale(self.qdq_model.graph_model)
        if self.is_model and self._is_quantized and not asks:
            return self
        return self._placed_anew()

    def _with_its_pairs(self, model: Model) -> DeploySource:
        """The same with the pairs that another tool has placed, in the types of the target."""
        _refuse_without_effect(
            f"'{model.name}' holds Q/DQ pairs and is deployed with them",
            "the float model",
            target=self.is_model and self.asked.target,
            table=self.asked.table is not None,
            keep_float=self.asked.keep_float,
        )
        graph_model = model.graph_model
        if self.has_types_in_graph and not self.is_model:
            graph_model = in_float32(model)
            forget_origin(graph_model)
            if self.target.types_in_graph:
                graph_model, _ = with_float16(
                    graph_model, self.target, float32_io=True, peaks={}, name=model.name
                )
        graph_model = with_equal_forms(graph_model)
        if graph_model is not model.graph_model:
            model = Model(graph_model, model.name, fingerprint(graph_model))
        if found := lint(model):
            warn_user(
                f"'{model.name}' has {counted(len(found), 'place')} that TensorRT refuses or runs in float, "
                f"such as '{found[0].node}': {found[0].message}; 'trtint8 lint' shows them, and with --fix "
                "mends them"
            )
        return replace(self, qdq_model=model, plan=None).typed_as_model()

    def _refuse_other_builds(self) -> None:
        _refuse_without_effect(
            f"'{self.engine}' is deployed as it was built",
            "the model in place of the engine",
            profiles=self.asked.profiles,
            keep_float=self.asked.keep_float,
            table=self.asked.table is not None,
        )

    def _placed_anew(self) -> DeploySource:
        """The same with pairs placed for the target, from the float model and its ranges."""
        target, given, prepared = self.target, self.qdq_model, self.float_model
        assert given is not None and prepared is not None
        if not any(operator_of(node).is_weighted for node in prepared.graph_model.graph):  # nothing to place
            return replace(self, qdq_model=given.part(prepared.graph_model), plan=None).typed_as_model()
        table, kept = self.table, self._kept_float(given, prepared)
        # Others are told of FP16 by options of trtexec.
        float16 = target.types_in_graph
        asked = QuantizeOptions((*self.asked.keep_float, *kept), (), target, float16, float16)
        if table is None:
            table, asked = _with_ranges_of_pairs(given, prepared, asked)
        largest = largest_shapes(self.info.profiles, prepared.inputs, table.provenance.input_sizes)
        made = quantized_model(prepared, table, asked, largest)
        quantized = len(made.placement.quantized_nodes)
        placed = replace(
            self,
            qdq_model=Model(made.graph_model, given.name, fingerprint(made.graph_model)),
            table=table,
            plan=None,
            placed=f"Q/DQ pairs were placed for the target `{target.name}`: {quantized} of "
            f"{quantized + len(made.placement.float_nodes)} weighted layers are in INT8. `trtint8 validate "
            f"{QDQ_FILE} DATA --reference FLOAT.onnx` says what that costs; figures of another build do not.",
        )
        return placed.typed_as_model()

    def typed_as_model(self) -> DeploySource:
        """The same with the types of the Q/DQ model, which another build takes, and not the engine's."""
        assert self.qdq_model is not None
        graph = self.qdq_model.graph_model.graph
        dtypes = {spec.name: spec.dtype for spec in tensor_specs((*graph.inputs, *graph.outputs))}

        def typed(specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
            return tuple(replace(spec, dtype=dtypes.get(spec.name, spec.dtype)) for spec in specs)

        info = replace(self.info, inputs=typed(self.info.inputs), outputs=typed(self.info.outputs))
        return replace(self, info=info)

    def _kept_float(self, given: Model, prepared: Model) -> list[str]:
        """The nodes that stay in float for every target, and those of an engine whose causes are unknown.

        A model does not say why a node has no pairs. It was kept for accuracy if it would get some otherwise.
        """
        if not self.is_model:
            causes = self.info.float_causes
            lasting = ("keep_float", "accuracy", "no_pairs", None)
            names = [name for name, _ in self.info.float_nodes if causes.get(name) in lasting]
            weighted = {node.name for node in prepared.graph_model.graph if operator_of(node).is_weighted}
            return [name for name in names if name in weighted]
        if not self._is_quantized:
            return []
        in_int8 = {node.name for node in in_float32(given).graph if any(map(reads_integers, node.inputs))}
        usual = _with_pairs(place(prepared.graph_model))
        if self.has_types_in_graph:  # others may be slower in INT8 than in FP16
            faster = _with_pairs(place(prepared.graph_model, target=TARGETS["rtx"], float16=True))
            if has_one_scale(given.graph_model) or in_int8 <= faster:
                usual &= faster
        return sorted(usual - in_int8)

    def qdq_files(self) -> dict[str, Model]:
        """The Q/DQ model by the name of its file; empty where there is none."""
        return {QDQ_FILE: self.qdq_model} if self.qdq_model else {}

    def missing_ranges(self) -> tuple[int, CalibrationTable] | None:
        """Counts the tensors that TensorRT would find no range of, where it builds the float model by ranges.

        Returns:
            How many there are, and the table with the ranges that follow from those that it has, such as of a
            tensor that only moves values. None where there is no table, or no float model to look at.
        """
        if self.table is None or (prepared := self.float_model) is None:
            return None
        wanted = set(float_tensors(prepared))
        tensors = model_tensors(prepared.graph_model, wanted)
        ranges = dict(self.table.amax)
        known = propagate(tensors, {name: amax for name, amax in ranges.items() if amax > 0})
        ranges |= {name: amax for name, amax in known.items() if name in wanted and name not in ranges}
        return len(wanted - ranges.keys()), replace(self.table, amax=ranges)

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
            "classes": self.labels,
            "image_input": self.image_input.name if self.preprocessing and self.image_input else None,
            "preprocessing": asdict(self.preprocessing) if self.preprocessing else None,
            "created_by": f"trtint8 {__version__}",
        }
        return json_document(document)


def _refuse_without_effect(subject: str, instead: str, **given: object) -> None:
    """Refuses what is given and would be ignored, of what is deployed as it is."""
    if names := [Argument(name) for name, value in given.items() if value]:
        raise UnsupportedError(f"{subject}, so {names[0]} has no effect; leave it out, or give {instead}")


def _with_pairs(placement: Placement) -> set[str]:
    """Names of the nodes that read pairs."""
    return {one.node for one in placement.decisions if one.quantized}


def read_source(
    engine: FilePath,
    preprocessing: Preprocessing | None,
    asked: DeployOptions = DeployOptions(),  # frozen
) -> DeploySource:
    """Reads an engine's sidecar and finds the files beside it, or reads a model.

    Args:
        engine: The engine file, or a model, whose name ends in .onnx.
        preprocessing: How raw images become what the engine is fed; that of the calibration where None.
        asked: What is asked for besides.

    Raises:
        EngineError: The engine or its sidecar is unusable, or a file beside it is missing or of another
            engine.
        ModelError: The model is unusable.
        BuildError: A profile does not fit the model, or one is needed.
        CalibrationDataError: Preprocessing is given, and no input takes what it makes, or its crop is larger
            than what it resizes to; or a preferred batch size is no positive number.
        TableError: The table is unusable, or a float model has none.
    """
    check_preprocessing(preprocessing)
    check_path("the engine", engine, EngineError)
    for size in asked.preferred_batch_sizes:
        positive_integer("preferred_batch_sizes", size)
    path, table = Path(engine), None if asked.table is None else as_table(asked.table)
    if names_model(path):
        source = _model_source(path, table, preprocessing, asked)
    else:
        info = read_engine_info(path)
        table = table or read_engine_table(path, info)
        source = DeploySource(path, info, _qdq_model_of(path, info), table, preprocessing, asked, path)
    if source.info.calibrated_inputs is not None:
        preprocessing = source.info.calibrated_inputs.chosen(preprocessing, f"'{path}'")
        source = replace(source, preprocessing=preprocessing)
    if preprocessing is not None:
        _check_images_fit(source.info, source.image_input, preprocessing)
    if asked.labels is not None and source.scores is None and source.detector is None:
        outputs = ", ".join(f"'{one.name}' {shape_text(one.shape)}" for one in source.info.outputs)
        warn_user(
            f"no output of '{path}' ({outputs}) has a score for each of the {len(asked.labels)} classes in "
            f"{Argument('class_names')}, or boxes of them in a known layout, so nothing decodes the outputs; "
            "check the number of names, or if it is right, decode the outputs in your program"
        )
    return source


def _model_source(
    path: Path, table: CalibrationTable | None, preprocessing: Preprocessing | None, asked: DeployOptions
) -> DeploySource:
    """A model, described as an engine is that no TensorRT has built yet."""
    model = load_model(path)
    if table is None and not model.is_quantized:
        raise TableError(
            f"'{model.name}' holds no Q/DQ pairs, and its ranges are needed; give {Argument('table')}"
        )
    sizes = table.provenance.input_sizes if table else {}
    profiles = [complete_profile(profile, model.inputs, sizes) for profile in asked.profiles or [{}]]
    graph = model.graph_model.graph
    profiles = [profile for profile in profiles if profile]
    info = EngineInfo(
        flavor="tensorrt",
        tensorrt_version="unknown",
        compute_capabilities=("current",),
        inputs=tensor_specs(graph.inputs),
        outputs=tensor_specs(graph.outputs),
        profiles=tuple(profiles),
        layers=None,
        quantized_nodes=(),
        weights_bytes=None,
        model_fingerprint=model.fingerprint,
        calibrated_inputs=table.provenance.inputs if table else inputs_of(model),
        joins_samples=takes_joined_samples(
            model.graph_model, model.inputs, tried_shapes(profiles, model.inputs)
        ),
    )
    return DeploySource(path, info, model, table, preprocessing, asked)


def _with_ranges_of_pairs(
    quantized: Model, prepared: Model, asked: QuantizeOptions
) -> tuple[CalibrationTable, QuantizeOptions]:
    """The ranges that a model's pairs have; layers that would read a tensor without one stay in float."""
    ranges = pair_ranges(quantized.graph_model)
    while True:
        placement = asked.place(prepared)
        plan = plan_migration(prepared.graph_model, placement, ranges)
        unsolved = set(plan.unsolved)
        if not unsolved:
            return CalibrationTable({**ranges, **plan.fills}, warnings=warnings_of(quantized)), asked
        readers = {edge.node for edge in placement.activations if edge.tensor in unsolved}
        asked = replace(asked, keep_float=(*asked.keep_float, *sorted(readers)))


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
    size = wanted.letterbox or wanted.crop or wanted.resize
    if size is None:  # the sizes are those of the raw images
        return

    def fits(heights: range, widths: range) -> bool:
        if isinstance(size, tuple):
            return size[0] in heights and size[1] in widths
        # One side gets this length, and the other one any from there on.
        pairs = ((heights, widths), (widths, heights))
        return any(size in one and size < other.stop for one, other in pairs)

    profiles = [profile.get(spec.name) for profile in info.profiles] or [None]
    axes = [wanted.layout.index(side) for side in "HW"]
    taken = [[_lengths(spec, shapes, axis) for axis in axes] for shapes in profiles]
    if any(fits(*sides) for sides in taken):
        return
    made = f"of {shape_text(size)}" if isinstance(size, tuple) else f"whose shorter side is {size}"
    ends = ([[side[end] for side in sides] for end in (0, -1)] for sides in taken)
    sizes = " or ".join(" to ".join(dict.fromkeys(map(shape_text, pair))) for pair in ends)
    raise CalibrationDataError(
        f"preprocessing makes images {made}, and the engine takes '{spec.name}' of {sizes} (height x width); "
        f"correct {RESIZING}"
    )


def _lengths(spec: TensorSpec, shapes: ShapeRange | None, axis: int) -> range:
    size = spec.shape[axis]
    if isinstance(size, int):
        return range(size, size + 1)
    return range(1, MOST_PIXELS + 1) if shapes is None else range(shapes.min[axis], shapes.max[axis] + 1)


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


def c_bool(value: bool) -> Code:
    """Returns a truth value in C++."""
    return Code("true" if value else "false")


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
