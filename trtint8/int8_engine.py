"""The main job: a float ONNX model and sample inputs in, an INT8 engine and the files beside it out.

Where the ranges of an engine come from: samples, a table, a calibrator, or set by hand.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeAlias, cast, get_args

import onnx_ir as ir

from calibrators.checks import FilePath, check_choice, keeping_warnings, several, warn_user
from calibrators.data.inputs import DataOptions
from calibrators.data.opening import DataSource
from calibrators.data.samples import SampleSizes
from calibrators.data.sources.random_samples import RANDOM, warn_of_random, with_shapes
from calibrators.errors import (
    Argument,
    BuildError,
    CalibrationDataError,
    ModelError,
    TableError,
    TrtInt8Error,
    UnsupportedError,
    as_argument,
    enumerated,
    such_as,
)
from calibrators.histograms.thresholds import Method
from calibrators.progress import job
from calibrators.run import RunOptions
from calibrators.tables.choice import SPEND
from calibrators.tables.ranges import is_table, noise_warning, table_among, warn_of_losses
from calibrators.tables.table import CalibrationTable
from calibrators.tensorrt import flavor as flavors
from calibrators.tensorrt.calibrator import AnyCalibrator, Calibrator, as_any_calibrator
from calibrators.tensorrt.calibrators import calibrator_class
from calibrators.tensorrt.flavor import Target
from trtint8.auditing.gpus import Gpu, at_costs_of, capability_of, gpus_of
from trtint8.builder.build import Build, BuiltEngine, with_equal_forms
from trtint8.builder.config import BuildOptions
from trtint8.builder.implicit import ImplicitInt8, check_io_names
from trtint8.builder.refusals import (
    Route,
    choose_route,
    is_calibrator,
    quantization_target,
    refuse_branches,
    refuse_int8_blocks,
    refuse_renamed_inputs,
    refuse_unimplemented,
    refuse_unsupported,
)
from trtint8.built_files import BuildResult, BuiltFiles, cache_file_of, check_files_beside, check_output
from trtint8.calibration import CalibrationOptions, Observed, calibrate_model, float_tensors, tensors_needed
from trtint8.engine.layers import LayerReport
from trtint8.engine.profiles import Profile, complete_profile, largest_shapes, optimal_shapes
from trtint8.interop.unquantize import as_float_model, float_nodes, quantized_nodes
from trtint8.models.graph import by_name
from trtint8.models.model import (
    FLOAT_MODEL,
    WITHOUT_PAIRS,
    Model,
    ModelSource,
    has_pairs,
    load_model,
    prepare,
    warn_of_runtime_nodes,
)
from trtint8.models.serialization import runnable
from trtint8.models.states import with_recorded_states
from trtint8.quantization.placement import place
from trtint8.quantization.qdq import scale_name
from trtint8.quantization.quantize import QuantizeOptions, quantized_model, tensor_names, with_float16
from trtint8.quantization.targets import Target as QuantizationTarget
from trtint8.tuning.measured import expect
from trtint8.tuning.remedies.held_out import Compensated, Compensation, compensate
from trtint8.tuning.stopwatch import Expectation


@dataclass(frozen=True)
class Int8Options:
    """What to build; :class:`BuildOptions` says how TensorRT builds it.

    Attributes:
        route: ``explicit``, ``implicit`` or ``auto``.
        target: Which TensorRT builds.
        profiles: Shapes of dynamic inputs; defaults are those of :func:`complete_profile`.
        compute_capabilities: GPUs to build for, like "8.6" or "RTX 4090"; TensorRT for RTX only.
        keep_float: Names of nodes, or patterns, that stay in float.
        keep_int8: Names of nodes, or patterns, that are put in INT8 even if that is estimated to be slower.
        rounding: Whether biases are corrected and weights rounded adaptively where that gains on samples
            that it was not made with; nothing is where there are no samples or TensorRT rounds the weights.

    Raises:
        UnsupportedError: There is no such route.
        BuildError: ``profiles`` is a single profile, or no list of them.
    """

    route: Route = "auto"
    target: Target = "auto"
    profiles: Sequence[Profile] = ()
    compute_capabilities: Sequence[str] = ()
    keep_float: Sequence[str] = ()
    keep_int8: Sequence[str] = ()
    rounding: bool = True

    def __post_init__(self) -> None:
        check_choice("route", self.route, get_args(Route))
        if isinstance(self.profiles, Mapping):
            raise BuildError(
                f"{Argument('profiles')} is a dict; give a list of optimization profiles, each a dict from "
                "the name of an input to its ShapeRange"
            )
        given: object = self.profiles
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise BuildError(
                f"{Argument('profiles')} is {self.profiles!r:.80}; give a list of optimization profiles"
            )
        # They are gone through several times, and a generator is used up by the first.
        object.__setattr__(self, "profiles", tuple(self.profiles))
        for name in ("keep_float", "keep_int8"):
            object.__setattr__(self, name, tuple(several(getattr(self, name))))


def build_from_sources(
    model: ModelSource,
    sources: RangeSources,
    output: FilePath,
    wanted: Int8Options,
    options: BuildOptions,
    tail: ir.Model | None = None,
) -> BuildResult:
    """Builds an engine and writes it with the files that belong beside it.

    Args:
        model: A float model, or one with Q/DQ pairs, which is built as it is. One in memory is written beside
            the engine.
        sources: Where ranges come from.
        output: The engine file.
        wanted: What to build.
        options: How TensorRT builds it.
        tail: Where ``model`` is the first part of another one, the rest, which is written beside the engine.

    Returns:
        What was written, and what it is.

    Raises:
        TrtInt8Error: Always one of its subclasses, whose message says in one sentence what to do.
    """
    with keeping_warnings() as said:
        output = check_output(output, model, sources.calibration, keeps_table=not sources.manual)
        flavor = flavors.load(wanted.target)
        loaded = load_model(model)
        if loaded is not model:  # else it was warned of
            warn_of_runtime_nodes(loaded)
        making = _checked(model, loaded, sources, output, flavor, wanted, options, tail)
        with job(enabled=sources.progress):
            product = making.implicit() if making.is_implicit else making.explicit()
        expected = making.expected(product)
        if expected is not None and expected.is_slower and making.chooses_types and not making.is_implicit:
            product, expected = making.in_fp16(product), None
        return replace(product.save(output, loaded, model, tail, said), expected=expected)


def _checked(
    model: ModelSource,
    loaded: Model,
    sources: RangeSources,
    output: Path,
    flavor: flavors.Flavor,
    wanted: Int8Options,
    options: BuildOptions,
    tail: ir.Model | None,
) -> _Int8Build:
    """What is known of a build before anything is calibrated; refuses what can be refused at once."""
    finished = loaded.is_quantized or _has_no_layer_in_int8(loaded, sources)
    # A finished model keeps its types unless that is asked for: nothing tells how large its values become.
    half = not finished if options.fp16 is None else options.fp16
    types_in_graph = flavor.strongly_typed_only and half
    refuse_renamed_inputs(loaded)
    given = is_calibrator(sources.calibration, flavor)
    _refuse_without_effect(loaded, sources, wanted, calibrator=given)
    if wanted.keep_int8 and options.fp16 is False:
        raise ModelError(
            f"{Argument('keep_int8')} names layers that would be in FP16 otherwise; leave out "
            f"{Argument('fp16', 'False')}"
        )
    asked = "explicit" if finished and wanted.route == "auto" else wanted.route
    implicit = choose_route(asked, sources.calibration, flavor, loaded) == "implicit"
    check_files_beside(
        output,
        loaded,
        model,
        sources.calibration,
        None if sources.manual else table_among(sources.calibration),
        implicit=implicit,
        cached=implicit and not given and sources.calibrator is not None,
        changed=types_in_graph or not finished,
        calibrated=not finished,
        tail=tail,
    )
    capabilities = [capability_of(gpu) for gpu in wanted.compute_capabilities]
    build = Build(flavor, loaded.inputs, wanted.profiles, capabilities, options, sources.progress)
    outputs = [value.name or "" for value in loaded.graph_model.graph.outputs]
    check_io_names([*(spec.name for spec in loaded.inputs), *outputs], options)
    calibration = with_recorded_states(sources.calibration, loaded)
    sources = replace(sources, calibration=_shaped(calibration, loaded, wanted.profiles))
    return _Int8Build(build, loaded, sources, output, wanted, types_in_graph, finished, implicit)


def nothing_in_int8(report: LayerReport | None, wanted: Sequence[str]) -> str | None:
    """What to say of an engine of the implicit route that has no layer in INT8; None where there is nothing.

    Args:
        report: The engine's layers; None where they are not known.
        wanted: The weighted nodes that were to be in INT8.
    """
    if report is None or not wanted or report.weighted_summary(wanted).get("INT8"):
        return None
    return (
        f"none of the {len(wanted)} weighted layers is seen to run in INT8: on the implicit route TensorRT "
        "takes FP16 or FP32 where it finds them faster, and in parts that it compiles as a whole, like "
        "attention; the explicit route puts layers into INT8 all the same"
    )


def _has_no_layer_in_int8(loaded: Model, sources: RangeSources) -> bool:
    """True if a model was quantized, no layer of it is in INT8, and nothing is given to quantize it again.

    Warns:
        UserWarning: That is so.
    """
    given = sources.calibration is not None or sources.manual
    if given or WITHOUT_PAIRS not in loaded.graph_model.metadata_props:
        return False
    warn_user(
        f"'{loaded.name}' was quantized without any layer in INT8, so the engine has none; the command that "
        "quantized it warns of the reason",
        note=True,
    )
    return True


def _refuse_without_effect(
    loaded: Model, sources: RangeSources, wanted: Int8Options, *, calibrator: bool
) -> None:
    """Refuses what would be ignored: ranges of a model that has them, and how samples are read without any.

    Args:
        loaded: The model that was given.
        sources: Where ranges come from.
        wanted: What to build.
        calibrator: Whether they come from a calibrator that was given.

    Raises:
        CalibrationDataError: Something was given that has no effect.
    """
    given: dict[str, object] = {
        "method": sources.method != "auto",
        "preprocessing": sources.data.preprocessing,
        "batch_size": sources.data.batch_size,
        "limit": sources.data.limit,
        "skip_bad": sources.data.skip_bad,
    }
    if loaded.is_quantized or calibrator or sources.calibration is None:
        given["spend"] = sources.spend is not None
    if loaded.is_quantized:
        given = {
            "calibration data, or a table,": sources.calibration is not None,
            "dynamic_ranges": sources.manual,
            "keep_float": wanted.keep_float,
            "keep_int8": wanted.keep_int8,
        } | given
        place = f"'{loaded.name}' holds Q/DQ pairs and is built as it is"
        advice = "leave it out, or give the float model"
    elif calibrator:
        place = "the ranges are those of a calibrator"
        advice = "give it to the calibrator, or give samples in the calibrator's place"
    elif sources.calibrates:
        return
    elif sources.calibration is not None:
        place = "the ranges are those of a table"
        advice = "leave it out, or give samples; 'trtint8 table set --method' gives ranges by another method"
    else:
        place, advice = "there are no samples to calibrate with", "leave it out, or give samples"
    for name, value in given.items():
        if value:
            raise CalibrationDataError(f"{place}, so {as_argument(name)} has no effect; {advice}")


@dataclass(frozen=True)
class _Int8Build:
    """What the two routes to an engine need besides the build: the ways to ranges.

    Attributes:
        build: How the engine is built.
        loaded: The model that was given.
        sources: Where ranges come from.
        output: The engine file.
        wanted: What to build.
        types_in_graph: Whether the graph, and not TensorRT, decides which layers are in FP16.
        finished: Whether the model is built as it is.
        is_implicit: Whether calibrators and dynamic ranges give the ranges, and not pairs in the graph.
    """

    build: Build
    loaded: Model
    sources: RangeSources
    output: Path
    wanted: Int8Options
    types_in_graph: bool
    finished: bool
    is_implicit: bool

    @functools.cached_property
    def prepared(self) -> Model:
        """The float model, prepared."""
        return prepare(self.loaded)

    @functools.cached_property
    def target(self) -> QuantizationTarget:
        """What Q/DQ pairs are placed for, at the costs of the GPUs that count."""
        return at_costs_of(quantization_target(self.build.flavor, self.build.options), self._gpus())

    @property
    def chooses_types(self) -> bool:
        """True if a layer is in INT8 only where it is faster there."""
        costs = self.target.costs_with_float16
        return bool(costs) and self.types_in_graph and not (self.finished or self.wanted.keep_int8)

    def explicit(self) -> BuiltFiles:
        """Builds from Q/DQ pairs in the graph."""
        if self.finished:
            refuse_int8_blocks(self.loaded)
            graph_model = self.loaded.graph_model
            if self.types_in_graph:
                graph_model, _ = with_float16(
                    graph_model, self.target, float32_io=True, peaks={}, name=self.loaded.name
                )
            in_float = float_nodes(graph_model)
            return BuiltFiles(
                self._run(graph_model, None),
                graph_model,
                quantized_nodes(graph_model),
                None,
                self.build.options,
                float_nodes=in_float,
                float_causes={name: "no_pairs" for name, _ in in_float},
            )
        prepared = self.prepared
        # A pattern that does not fit fails here, and not after minutes of calibration.
        self._asked.place(prepared)
        tensors = float_tensors(prepared)
        if unknown := [name for name in self.sources.manual if name not in tensors]:
            raise TableError(
                f"a dynamic range is given for '{unknown[0]}', which is no floating-point tensor of the "
                f"model; it has {such_as(tensors)}"
            )
        if self.sources.calibrates:
            refuse_unsupported(prepared, self.build)
        table = self.sources.table(prepared, tensors_needed(self.types_in_graph))
        self._warn_of_noise(table)
        return self._with_pairs(table, self._asked)

    def in_fp16(self, files: BuiltFiles) -> BuiltFiles:
        """Builds the network in FP16 in place of an engine that takes longer with layers in INT8."""
        assert files.table is not None  # ranges of the layers
        return self._with_pairs(files.table, replace(self._asked, slower=files.wanted))

    @property
    def _asked(self) -> QuantizeOptions:
        wanted = self.wanted
        return QuantizeOptions(
            wanted.keep_float, wanted.keep_int8, self.target, self.types_in_graph, float32_io=True
        )

    def _with_pairs(self, table: CalibrationTable, asked: QuantizeOptions) -> BuiltFiles:
        prepared, profiles, sizes = self.prepared, self.wanted.profiles, table.provenance.input_sizes
        largest = largest_shapes(profiles, prepared.inputs, sizes)
        optimal = optimal_shapes(profiles, prepared.inputs, sizes)
        compensated, again = Compensated(prepared, None), bool(asked.slower)
        if self.wanted.rounding and self.sources.calibrates and not again:
            data = cast("DataSource", self.sources.calibration)
            placement = asked.place(prepared, table, largest, optimal)
            compensated = compensate(prepared, table, placement, data, self.sources.data, again=True)
        made = quantized_model(compensated.model, table, asked, largest, optimal)
        placement = made.placement
        if not again:
            warn_of_losses(table, placement.tensors)
            if unused := [name for name in self.sources.manual if name not in placement.tensors]:
                warn_user(
                    f"no Q/DQ pair goes to {enumerated(map(repr, unused))}: the dynamic range has no effect "
                    "there",
                    note=True,
                )
        return BuiltFiles(
            self._run(made.graph_model, prepared, sizes=sizes),
            made.graph_model,
            placement.quantized_nodes,
            table,
            self.build.options,
            tuple(tuple(map(scale_name, group)) for group in placement.shared),
            float_nodes=placement.float_nodes,
            float_causes=placement.float_causes,
            rounded=compensated.compensation,
        )

    def implicit(self) -> BuiltFiles:
        """Builds with calibrators and dynamic ranges."""
        prepared = self.prepared
        graph_model = prepared.graph_model
        placement = place(graph_model, self.wanted.keep_float)
        keep_float = tuple(by_name(graph_model.graph, several(self.wanted.keep_float)))
        calibrator, table = self._calibrator(prepared), None
        # A calibrator's build parses the model before it calibrates, and a second builder costs TensorRT
        # seconds: 8.6 loads its kernels for every one.
        if self.sources.calibrates and calibrator is None:
            refuse_unsupported(prepared, self.build)
        sizes: Mapping[str, SampleSizes] = calibrator.input_sizes() if calibrator else {}
        if calibrator is not None and self.sources.manual:
            # TensorRT does not say which of the two wins, so its calibration becomes a table first.
            given = ImplicitInt8(calibrator, keep_float=keep_float, model=prepared.fingerprint)
            self._run(graph_model, prepared, given, sizes=sizes)
            if calibrator.table is None:
                raise UnsupportedError(
                    f"{Argument('dynamic_ranges')} cannot be put over the ranges of this calibrator, which "
                    "keeps no table; give one of calibrators.tensorrt"
                )
            table = calibrator.table.override(self.sources.manual)
            calibrator = None
        elif calibrator is None:
            table = self.sources.table(prepared, "all")
            self._warn_of_noise(table)
            warn_of_losses(table, table.amax)
            sizes = table.provenance.input_sizes
            table.check_model(prepared.fingerprint, (), tensor_names(graph_model))
        if table and table.layers_in_float:
            placement = place(graph_model, self.wanted.keep_float, float_layers=table.layers_in_float)
            known = {node.name for node in graph_model.graph}
            own = [name for name in table.layers_in_float if name in known and not re.search("[*?]", name)]
            keep_float = tuple(dict.fromkeys((*keep_float, *own)))
        built = self._run(
            graph_model,
            prepared,
            ImplicitInt8(
                calibrator,
                table.amax if table else {},
                frozenset(self.sources.manual),
                keep_float,
                prepared.fingerprint,
            ),
            sizes=sizes,
        )
        if calibrator is not None:
            table = calibrator.table
        if warning := nothing_in_int8(built.report, placement.quantized_nodes):
            warn_user(warning, note=True)
        return BuiltFiles(
            built,
            graph_model,
            placement.quantized_nodes,
            table,
            self.build.options,
            implicit=True,
            rounded=Compensation(reason="TensorRT rounds them on the implicit route"),
        )

    def expected(self, files: BuiltFiles) -> Expectation | None:
        """How long the engine takes beside FP16; see :func:`trtint8.tuning.measured.expect`.

        Returns:
            The times; None where the engine has no layer in INT8, or nothing can be said of it.
        """
        options = self.build.options
        if not files.wanted or options.strip_plan or options.dla_core is not None:
            return None
        float_model = functools.partial(self._float_model, files.table)
        # The engine is built; what cannot be said of it is no reason to fail.
        with contextlib.suppress(TrtInt8Error):
            return expect(self.build, files.built, files.graph_model, float_model, self._gpus())
        return None

    def _float_model(self, table: CalibrationTable | None) -> tuple[Model, Mapping[str, float]] | None:
        """The float model, prepared, and how large its tensors become; None where it is not known."""
        if not self.finished:
            return self.prepared, table.peaks if table else {}
        if FLOAT_MODEL not in self.loaded.graph_model.metadata_props:
            return None
        prepared = as_float_model(self.loaded)
        # How large values become is not known; in a comparison of times, FP16 may hold them.
        return prepared, dict.fromkeys(tensor_names(prepared.graph_model), 1.0)

    def _gpus(self) -> tuple[Gpu, ...]:
        """The GPUs whose figures count: those that are named, or else this machine's, if there is one."""
        gpus = self.wanted.compute_capabilities
        if not gpus and "current" not in self.build.compute_capabilities:
            return ()
        return gpus_of(gpus or self.build.compute_capabilities, self.build.options.device)

    def _warn_of_noise(self, table: CalibrationTable) -> None:
        """Warns of ranges that leave the outputs noisy, unless layers are to stay in float."""
        if not self.wanted.keep_float and (warning := noise_warning(table.choice, table.float_layers)):
            warn_user(warning)

    def _calibrator(self, prepared: Model) -> AnyCalibrator | None:
        """The calibrator that is passed to TensorRT; None where ranges are known or found on the CPU."""
        calibration = self.sources.calibration
        if is_calibrator(calibration, self.build.flavor):
            return as_any_calibrator(calibration)
        name, data = self.sources.calibrator, self.sources.data
        if name is None:
            return None
        warn_of_random(calibration)
        return calibrator_class(name, self.build.flavor)(
            calibration,
            prepared.inputs,
            cache=cache_file_of(self.output),
            stale="recalibrate",
            device=self.build.options.device,
            progress=self.sources.progress,
            batch_size=data.batch_size,
            limit=data.limit,
            preprocessing=data.preprocessing,
            skip_bad=data.skip_bad,
        )

    def _run(
        self,
        graph_model: ir.Model,
        prepared: Model | None,
        implicit: ImplicitInt8 | None = None,
        *,
        sizes: Mapping[str, SampleSizes] | None = None,
    ) -> BuiltEngine:
        """Builds an engine.

        Args:
            graph_model: What is built.
            prepared: The float model that it was made of; None where there is none.
            implicit: The ranges of the implicit route.
            sizes: Input name to the sizes that the calibration samples had, where they are known.

        Raises:
            BuildError: TensorRT fails; where its parser refuses nodes of the float model, all are named, and
                where its builder does, or fails in branches or loops, one of them.
        """
        options, graph = self.build.options, graph_model.graph
        layer_precisions, output_types = (
            {name: kind for pattern, kind in given.items() for name in by_name(graph, [pattern])}
            for given in (options.layer_precisions, options.output_types)
        )
        build = replace(
            self.build,
            options=replace(options, layer_precisions=layer_precisions, output_types=output_types),
        )
        try:
            with runnable(with_equal_forms(graph_model)) as serialized:
                # Without pairs or ranges, as where no layer can be in INT8, TensorRT 8 refuses the flag.
                return build.run(serialized, implicit, int8=has_pairs(graph_model), sizes=sizes)
        except BuildError as error:
            # Its message has one of the refused nodes, and not where the model could be cut.
            if prepared is not None:
                refuse_unsupported(prepared, self.build)
                refuse_unimplemented(prepared, self.build.flavor, str(error))
            refuse_branches(graph_model, str(error))
            raise


def _shaped(
    calibration: CalibrationSource | None, loaded: Model, profiles: Sequence[Profile]
) -> CalibrationSource | None:
    """What ranges are calibrated from; random samples get the optimal shapes of the first profile."""
    if not isinstance(calibration, str) or not calibration.startswith(RANDOM) or not profiles:
        return calibration
    profile = complete_profile(profiles[0], loaded.inputs)
    return with_shapes(calibration, loaded.inputs, {name: sizes.opt for name, sizes in profile.items()})


#: Methods to TensorRT's calibrators; the others are calibrated on the CPU. TensorRT has no choice by what
#: ranges cost the network, so there ``auto`` is the calibrator that NVIDIA recommends for convolutions.
_CALIBRATORS = {
    "auto": "EntropyCalibrator2",
    "entropy": "EntropyCalibrator2",
    "minmax": "MinMaxCalibrator",
    "percentile": "LegacyCalibrator",
}


class TensorRtCalibrator(Protocol):
    """A calibrator of TensorRT's own interface, which a user has written."""

    def get_batch_size(self) -> int:
        """Samples per batch."""
        ...

    def read_calibration_cache(self) -> bytes | None:
        """The calibration cache, where there is one."""
        ...


#: What ranges are calibrated from.
CalibrationSource: TypeAlias = DataSource | CalibrationTable | Calibrator | TensorRtCalibrator


@dataclass(frozen=True)
class RangeSources:
    """Where ranges come from.

    Attributes:
        calibration: Sample inputs, a table, the path of a table or of a TensorRT calibration cache, or a
            calibrator; None where ``manual`` covers what is needed.
        manual: Tensor name to amax; overrides what was calibrated.
        method: How ranges are chosen from sample inputs.
        data: How sample inputs are read.
        progress: Whether progress is shown on a terminal.
        spend: The share of the time that layers may take which stay in float for accuracy; None for what a
            table says, or the usual share.
    """

    calibration: CalibrationSource | None
    manual: Mapping[str, float]
    method: Method
    data: DataOptions
    progress: bool
    spend: float | None = None

    @property
    def calibrates(self) -> bool:
        """Whether ranges are to be calibrated, which takes long."""
        return self.calibration is not None and not is_table(self.calibration)

    @property
    def calibrator(self) -> str | None:
        """TensorRT's calibrator for sample inputs; None where ranges are known, or found on the CPU."""
        return _CALIBRATORS.get(self.method) if self.calibrates else None

    def table(self, prepared: Model, tensors: Observed) -> CalibrationTable:
        """The ranges from a table, from calibration on the CPU, or set by hand."""
        table = table_among(self.calibration)
        if table is not None:
            table = table.of_part(prepared.fingerprint, prepared.cut_from).spending(self.spend)
        elif self.calibration is not None:
            # It is no calibrator: with one the route is implicit, and this is not called.
            data = cast("DataSource", self.calibration)
            options = CalibrationOptions(self.method, tensors, SPEND if self.spend is None else self.spend)
            table = calibrate_model(prepared, data, options, self.data, RunOptions(progress=self.progress))
        elif self.manual:
            table = CalibrationTable({})
        else:
            raise CalibrationDataError(
                f"nothing to take ranges from: give sample inputs, a table or {Argument('dynamic_ranges')}"
            )
        return table.override(self.manual) if self.manual else table
