"""Opens the models that are validated: engines on the GPU, and models in ONNX Runtime.

Samples are given in the element types that a model takes, and INT8 outputs are read as floats. Where it costs
nothing, it is found out which engine and which float model a comparison is of.

ONNX Runtime has hardly any kernels for FP16 on a CPU. It computes such operators in FP32, and leaves out the
casts between them, so that a value beyond FP16's largest number goes from one to the next as if nothing were
wrong. A GPU makes it infinite. So the float model of an FP16 model runs beside it, and tells how large the
tensors become.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators.checks import PATH_TYPES, refuse_empty_path, warn_user
from calibrators.cuda import gpu_names, gpu_problem
from calibrators.data.batches import Batches, observed
from calibrators.data.feeds import Array, FeedDict, is_float
from calibrators.data.inputs import DataOptions, InputSpec
from calibrators.data.opening import DataSource, open_data
from calibrators.errors import (
    Argument,
    CalibrationDataError,
    EngineError,
    GpuUnavailableError,
    ModelError,
    counted,
)
from calibrators.files import is_file
from calibrators.host.session import in_thread
from calibrators.tensorrt import flavor as flavors
from trtint8.arithmetic.simulation import IntegerRuns, Integers
from trtint8.arithmetic.storage import InnerTensor, further_outputs, inner_tensors
from trtint8.builder.build import Build, BuiltEngine, with_equal_forms
from trtint8.builder.config import BuildOptions
from trtint8.engine.file import EngineInfo, TensorSpec, read_engine_info, read_engine_table
from trtint8.engine.qdq import load_engine_qdq
from trtint8.interop.integer_models import expand_static, integer_operators
from trtint8.models.graph import computes_in, graph_values, take_name, value_names
from trtint8.models.model import Model, ModelSource, load_model, names_model, prepare
from trtint8.models.outputs.picked import (
    computed_among,
    computes_all,
    find_shown_picks,
    picks_of_plugins,
    runnable_part,
    with_outputs,
)
from trtint8.models.passes.simplify import InferShapesPass
from trtint8.models.serialization import runnable
from trtint8.models.session import ModelSession, StoppableRuns, open_graph_model, open_model
from trtint8.models.states import with_recorded_states
from trtint8.runtime.bindings import NO_CODE, LoadingOptions
from trtint8.runtime.engine import Engine
from trtint8.validation.accuracy import ValidatedModel
from trtint8.validation.comparison import OpenModels
from trtint8.validation.metrics import Metric
from trtint8.validation.output_shapes import DeclaredOutputs
from trtint8.validation.tensors import pick_tensors, reasons_for_absence, values_per_sample

_HALF, _FLOAT = ir.DataType.FLOAT16, ir.DataType.FLOAT

_LARGEST = float(np.finfo(np.float16).max)


def half_tensors(graph_model: ir.Model) -> tuple[str, ...]:
    """Names of the tensors that a model holds in FP16 at some place.

    Args:
        graph_model: The model; not changed.

    Returns:
        Names in FP16, and of what a Cast makes FP16.
    """
    if not computes_in(graph_model, _HALF):
        return ()
    inferred = graph_model.clone()
    InferShapesPass()(inferred)
    found = [value.name for value in graph_values(inferred.graph) if value.dtype == _HALF]
    found += [
        node.inputs[0].name
        for node in inferred.graph
        if node.op_type == "Cast" and node.inputs[0] is not None and node.outputs[0].dtype == _HALF
    ]
    return tuple(dict.fromkeys(name for name in found if name))


@contextlib.contextmanager
def warning_of_overflow(
    half: Mapping[str, Collection[str]], reference: Model, batches: Batches, threads: int | None
) -> Iterator[Batches]:
    """Warns, when the samples were read, of tensors that do not fit the FP16 that models hold them in.

    Args:
        half: Names of models in results to the tensors that they hold in FP16 while ONNX Runtime runs them.
        reference: The float model.
        batches: The samples.
        threads: Threads of ONNX Runtime; its choice where None.

    Yields:
        The same samples, for one pass in this process.

    Warns:
        UserWarning: A tensor goes beyond FP16's largest number in the float model.
    """
    asked = {name for names in half.values() for name in names}
    magnitudes = _Magnitudes.open(reference, asked, threads) if asked else None
    if magnitudes is None:
        yield batches
        return
    yield observed(batches, magnitudes)
    for model, names in half.items():
        beyond = [name for name in names if magnitudes.found.get(name, 0.0) > _LARGEST]
        if beyond:
            others = f", and {counted(len(beyond) - 1, 'other tensor')}" if len(beyond) > 1 else ""
            reaches = f"{magnitudes.found[beyond[0]]:.6g}{others}"
            warn_user(
                f"{model} holds '{beyond[0]}' in FP16, and the float model's reaches {reaches}: a GPU makes "
                f"what is beyond {_LARGEST:.0f} infinite, and ONNX Runtime on a CPU, which computes FP16 in "
                "FP32, does not; keep it in FP32"
            )


class _Magnitudes:
    """Runs a float model for the largest magnitudes of some tensors.

    Attributes:
        found: Name of a tensor to its largest magnitude so far.
    """

    def __init__(self, session: ModelSession, names: Sequence[str]) -> None:
        self._session, self._names = session, names
        self.found = dict.fromkeys(names, 0.0)

    @classmethod
    def open(cls, reference: Model, asked: Collection[str], threads: int | None) -> _Magnitudes | None:
        """Opens the model with a maximum behind each tensor; None where it computes none of them."""
        graph_model = prepare(reference).graph_model.clone()
        graph = graph_model.graph
        values = [value for value in graph_values(graph) if value.name in asked and value.dtype == _FLOAT]
        if not values:
            return None
        taken = value_names(graph)
        outputs = []
        for value in values:
            absolute = ir.Node("", "Abs", [value])
            largest = ir.Node("", "ReduceMax", [absolute.outputs[0]], [ir.AttrInt64("keepdims", 0)])
            for node in (absolute, largest):
                node.outputs[0].name = take_name(f"{value.name}_{node.op_type}", taken)
                graph.append(node)
            largest.outputs[0].type, largest.outputs[0].shape = ir.TensorType(_FLOAT), ir.Shape(())
            outputs.append(largest.outputs[0])
        del graph.outputs[:]
        graph.outputs.extend(outputs)
        session = open_graph_model(graph_model, threads=threads, used_up=True)
        return cls(session, [value.name or "" for value in values])

    def observe(self, feed: FeedDict) -> None:
        """Runs the model on a batch; one that does not fit is refused where it is compared."""
        with contextlib.suppress(CalibrationDataError):
            for name, largest in zip(self._names, self._session.run(feed), strict=True):
                # Of no elements it is minus infinity, and no number is larger than NaN.
                self.found[name] = max(self.found[name], float(largest))


#: Outputs of so many bytes are made before they are asked for; those of the first batch in any case.
_KEPT = 16 << 20


class RunningReference:
    """A reference that runs in another thread until others are ready to be compared with it.

    It is a context manager, and ends that run where the comparison fails before it has begun.

    Args:
        open_session: Opens the model; called at once.
    """

    def __init__(self, open_session: Callable[[], ModelSession]) -> None:
        self._opening = in_thread(open_session)
        self._runs: StoppableRuns | None = None
        self._ahead: Future[None] | None = None
        self._is_asked = False
        self._feeds: dict[int, FeedDict] = {}
        self._outputs: dict[int, list[Array]] = {}

    def __enter__(self) -> RunningReference:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._is_asked = True
        if kind is not None and self._runs is not None:
            self._runs.stop()

    def session(self) -> ModelSession:
        """The open model.

        Raises:
            ModelError: ONNX Runtime refuses the model.
        """
        return self._opening.result()

    def run_ahead(self, feeds: Sequence[FeedDict]) -> None:
        """Begins to run the model on the first batches, in their order.

        Args:
            feeds: The batches, which the same objects will ask for again. What is wrong with them is said
                then.
        """
        self._feeds = {id(feed): feed for feed in feeds}
        self._ahead = in_thread(self._run_ahead)

    def run(self, feed: FeedDict) -> list[Array]:
        """Runs the model on a batch, if that was not done ahead. Nothing is run ahead from then on.

        Args:
            feed: Input name to array.

        Returns:
            The outputs.

        Raises:
            CalibrationDataError: ONNX Runtime fails on the batch.
        """
        if self._ahead is not None:
            self._is_asked = True
            self._ahead.result()
        self._feeds.pop(id(feed), None)
        outputs = self._outputs.pop(id(feed), None)
        return self.session().run(feed) if outputs is None else outputs

    def _run_ahead(self) -> None:
        session, made = self.session(), 0
        self._runs = StoppableRuns()
        for key, feed in self._feeds.items():
            if self._is_asked or made > _KEPT:
                return
            with contextlib.suppress(CalibrationDataError):
                self._outputs[key] = outputs = session.run(feed, stoppable=self._runs)
                made += sum(output.nbytes for output in outputs)


@dataclass(frozen=True)
class Reference:
    """A float model as others are compared with it.

    Attributes:
        model: The model, without plugins of TensorRT at its end.
        declared: What it declares of its outputs, and which of them plugins compute; and which tensors inside
            are compared.
    """

    model: Model
    declared: DeclaredOutputs

    @classmethod
    def of(cls, whole: Model, tensors: Sequence[str] = (), *, shows: bool = False) -> Reference:
        """A model that may end in plugins.

        Args:
            whole: The model; not changed.
            tensors: Names of tensors inside that are compared as well, or patterns with ``*`` and ``?``.
            shows: Whether changes of what the model picks are counted, by the tensors that show it.

        Raises:
            ModelError: It has plugins elsewhere, or a pattern matches no floating-point tensor.
        """
        left_out = picks_of_plugins(whole)
        model = runnable_part(whole, left_out)
        graph_model = model.graph_model
        declared = DeclaredOutputs.of(graph_model, left_out)
        if shows:
            declared = replace(declared, shown=find_shown_picks(graph_model))
        inside = pick_tensors(model, tensors) if tensors else {}
        further = further_outputs(graph_model, (*declared.further, *declared.shown_inside), inside)
        absent = reasons_for_absence(graph_model, inside)
        return cls(model, replace(declared, inside=inside, further=further, absent=absent))

    def open_data(self, data: DataSource, options: DataOptions, threads: int | None = None) -> Batches:
        """Opens data for all models.

        Args:
            data: Samples, or sequences whose states the model records.
            options: How the data is read.
            threads: Threads per operator while states are recorded; ONNX Runtime's choice where None.

        Raises:
            CalibrationDataError: The data does not fit the model.
        """
        inputs, shapes = self.model.inputs, self.model.output_shapes
        if self.declared.inside:
            shapes = (*shapes, (None, values_per_sample(self.model, self.declared.inside)))
        recorded = with_recorded_states(data, self.model, threads)
        return open_data(recorded, inputs, options.on_cpu(inputs, shapes))


@dataclass(frozen=True)
class Setting:
    """What is the same for all models that are compared.

    Attributes:
        inputs: The inputs of the reference.
        declared: What the reference declares of its outputs. A model in ONNX Runtime gives the tensors that
            they are picked from too, if it computes all of them.
        loading: How engines are loaded.
        metrics: What to measure. None measures the usual metrics that apply to the model and the data.
        threads: Threads for a model in ONNX Runtime; ONNX Runtime's choice where None.
        rows: How many samples the batches usually have.
        integers: How the first model, a float model, is computed in integers; None where it is run as it is.
    """

    inputs: tuple[InputSpec, ...]
    declared: DeclaredOutputs
    loading: LoadingOptions = NO_CODE
    metrics: Sequence[Metric] | None = None
    threads: int | None = None
    rows: int = 1
    integers: Integers | None = None


@contextlib.contextmanager
def open_models(
    models: Mapping[str, ModelSource], reference: RunningReference, setting: Setting
) -> Iterator[OpenModels]:
    """Opens models and their reference.

    Args:
        models: Models or paths of engine files, by their names in results.
        reference: The FP32 model, which may still be opening; its last outputs are the tensors that others
            are picked from.
        setting: What is the same for all of them.

    Yields:
        All models, ready to run.

    Raises:
        CalibrationDataError: A metric is unknown.
        ModelError: The inputs or outputs of a model are not the reference's.
        GpuUnavailableError: A model is an engine without a Q/DQ model beside it, and there is no GPU.
    """
    read = {name: model if engine_path(model) else load_model(model) for name, model in models.items()}
    reference.session()  # what is wrong with it is said first
    with contextlib.ExitStack() as stack:
        validated, own = [], setting
        for name, model in read.items():
            validated.append(stack.enter_context(open_validated(name, model, own)))
            own = replace(setting, integers=None)
        yield OpenModels(validated, reference.run, setting.inputs, setting.metrics, setting.declared)


@contextlib.contextmanager
def open_validated(name: str, model: ModelSource, setting: Setting) -> Iterator[ValidatedModel]:
    """Opens one model or engine to be compared with a reference.

    An engine runs on the GPU where there is one; elsewhere the Q/DQ model beside it is run in its place.
    Inputs are converted to the model's own types; see :func:`~trtint8.validation.opening.as_fed`.

    Args:
        name: The model's name in results.
        model: A model, or the path of an engine file.
        setting: What is the same for all models that are compared.

    Yields:
        The open model.

    Raises:
        ModelError: The model's inputs or outputs are not the reference's.
        EngineError: The Q/DQ model beside the engine is another one than it was built from.
        GpuUnavailableError: The model is an engine without a Q/DQ model beside it, and there is no GPU.
    """
    plan = engine_path(model)
    if plan and gpu_problem() is None:
        with _open_engine(name, plan, setting) as validated:
            yield validated
        return
    substitute = _qdq_model_of(plan) if plan else None
    loaded = runnable_part(substitute or load_model(model), setting.declared.left_out)
    if setting.integers is None:
        whose = f"the engine's {{}} '{substitute.name}'" if substitute else "the {}"
        yield _open_model(name, loaded, whose, setting)
        return
    declared = setting.declared
    runs = IntegerRuns(
        loaded,
        setting.integers,
        declared.sources,
        tuple(declared.inside),
        shown=declared.shown_inside,
        threads=setting.threads,
    )
    yield _validated(
        setting,
        loaded.inputs,
        runs.outputs,
        ValidatedModel(
            name,
            runs.run,
            runs.description,
            runs.further,
            runs.inside,
            "a kernel there computes it inside",
            in_integers=runs.found,
        ),
    )


@contextlib.contextmanager
def _open_engine(name: str, plan: Path, setting: Setting) -> Iterator[ValidatedModel]:
    """Opens an engine on the GPU; it is built anew where tensors inside it are compared."""
    declared, loading = setting.declared, setting.loading
    if declared.left_out.outputs:
        raise ModelError(
            f"the engine '{plan}' gives what plugins compute, {', '.join(declared.left_out.outputs)}, which "
            "ONNX Runtime cannot for the float model; validate the Q/DQ model that the engine was made from"
        )
    debug = _debug_build(plan, declared, loading) if declared.inside else None
    source: Path | bytes = debug.built.plan if debug else plan
    further = debug.further if debug else ()
    with Engine.load(source, plugins=loading.plugins, allow_host_code=loading.allow_host_code) as engine:
        names = [spec.name for spec in engine.outputs if spec.name not in further]
        scales = _int8_scales(engine, plan)

        def infer(feed: FeedDict) -> list[Array]:
            outputs = engine.infer(feed)
            return [as_floats(output, outputs[output], scales) for output in (*names, *further)]

        description = f"the engine on {gpu_names()[0]}"
        if debug:
            description = (
                f"the engine built anew on {gpu_names()[0]} with {counted(len(further), 'tensor')} as "
                "outputs, which may change what is fused"
            )
        inside = debug.inside if debug else {}
        found = ValidatedModel(name, infer, description, further, inside)
        yield _validated(setting, engine.inputs, names, found, scales)


def _open_model(name: str, loaded: Model, whose: str, setting: Setting) -> ValidatedModel:
    """Opens a model in ONNX Runtime; ``whose`` says what it is, with a place for its kind."""
    declared, threads, rows = setting.declared, setting.threads, setting.rows
    # A GPU computes what Q/DQ pairs do in float, not what ONNX Runtime's kernels for integer operators do.
    graph_model, operators = loaded.graph_model, integer_operators(loaded.graph_model)
    if operators:
        graph_model = expand_static(graph_model, loaded.name)
        left = integer_operators(graph_model)
        description = _describe_integer_model(whose.format("model"), operators, left)
    elif loaded.is_quantized:
        description = whose.format("Q/DQ model") + " as fake quantization in ONNX Runtime"
    else:
        description = whose.format("model") + " in ONNX Runtime"
    half = half_tensors(graph_model)
    if half:
        description += ", which computes FP16 in FP32 on a CPU"
    if declared.left_out.outputs:
        description += ", up to its plugins of TensorRT"
    sources = declared.sources if computes_all(graph_model, declared.sources) else ()
    own = inner_tensors(graph_model) if declared.inside else {}
    inside = {tensor: own[tensor] for tensor in declared.inside if tensor in own}
    shown = computed_among(graph_model, declared.shown_inside)
    further = further_outputs(graph_model, (*sources, *shown), inside)
    if operators:
        opened = open_graph_model(graph_model, further, threads=threads, rows=rows)
    else:
        opened = open_model(loaded, further, threads=threads, rows=rows)
    return _validated(
        setting,
        loaded.inputs,
        [output for output in opened.output_names if output not in further],
        ValidatedModel(name, opened.run, description, further, inside, half=half),
    )


@dataclass(frozen=True)
class DebugBuild:
    """An engine that gives tensors inside it as outputs.

    Attributes:
        built: The engine.
        inside: Name of each tensor that is compared, and that it has, to where it is.
        further: Names of the outputs that it has besides those of the model.
    """

    built: BuiltEngine
    inside: Mapping[str, InnerTensor]
    further: tuple[str, ...]


def debug_build(qdq: Model, info: EngineInfo, wanted: Iterable[str], loading: LoadingOptions) -> DebugBuild:
    """Builds an engine anew, from its Q/DQ model, with tensors inside as outputs.

    Args:
        qdq: The Q/DQ model that the engine was built from.
        info: What its sidecar says.
        wanted: Names of the tensors.
        loading: How engines are loaded.

    Raises:
        BuildError: TensorRT fails.
        UnsupportedError: The TensorRT that built the engine is not installed.
    """
    graph_model = qdq.graph_model
    own = inner_tensors(graph_model)
    inside = {name: own[name] for name in wanted if name in own}
    further = further_outputs(graph_model, (), inside)
    with runnable(with_equal_forms(with_outputs(graph_model, further))) as serialized:
        built = Build(
            flavors.load(info.flavor),
            qdq.inputs,
            info.profiles,
            options=BuildOptions(plugins=loading.plugins),
            progress=False,
        ).run(serialized, int8=qdq.is_quantized)
    return DebugBuild(built, inside, further)


def _debug_build(plan: Path, declared: DeclaredOutputs, loading: LoadingOptions) -> DebugBuild:
    info = read_engine_info(plan)
    if info.qdq_model is None or not is_file(plan.with_name(info.qdq_model)):
        raise EngineError(
            f"the engine '{plan}' has no Q/DQ model beside it to build it from again with its tensors; "
            f"give the Q/DQ model, or leave {Argument('tensors')} out"
        )
    qdq = load_engine_qdq(plan.with_name(info.qdq_model), info)
    return debug_build(qdq, info, declared.inside, loading)


def _describe_integer_model(model: str, integers: Sequence[str], left: Sequence[str]) -> str:
    """Says how a model with integer operators is run, for the summary."""
    expanded = [name for name in integers if name not in left]
    parts = []
    if expanded:
        parts.append(f"{', '.join(expanded)} expanded to Q/DQ pairs, as fake quantization")
    if left:
        parts.append(f"{', '.join(left)} in integer kernels")
    return f"{model} with {' and '.join(parts)}, in ONNX Runtime"


def engine_path(model: ModelSource) -> Path | None:
    """The path of an engine; None for a model."""
    refuse_empty_path("the model", model, ModelError)
    path = Path(model) if isinstance(model, PATH_TYPES) else None
    return path if path and not names_model(path) else None


def _qdq_model_of(engine: Path) -> Model:
    """The Q/DQ model that an engine was built from."""
    info = read_engine_info(engine)
    if info.qdq_model is None:
        raise GpuUnavailableError(
            f"'{engine}' has no Q/DQ model beside it to run in its place without a GPU, and "
            f"{gpu_problem()}; validate it on a machine with a GPU"
        )
    qdq_model = engine.with_name(info.qdq_model)
    if not is_file(qdq_model):
        raise EngineError(
            f"the engine '{engine}' has no '{qdq_model.name}' beside it, which it was built from and which "
            "runs in its place without a GPU; copy it there, or validate on a machine with a GPU"
        )
    return load_engine_qdq(qdq_model, info)


def _int8_scales(engine: Engine, plan: Path) -> dict[str, np.float32]:
    """The scales of an engine's INT8 inputs and outputs that are floating-point in the model.

    Args:
        engine: The engine.
        plan: The path of its file.
    """
    names = [spec.name for spec in (*engine.inputs, *engine.outputs) if spec.dtype == "int8"]
    table = read_engine_table(plan, engine.info) if names and engine.info else None
    # A table has ranges of floating-point tensors only.
    return {name: table.scale(name) for name in names if name in table.amax} if table else {}


def _validated(
    setting: Setting,
    inputs: Iterable[InputSpec | TensorSpec],
    names: Sequence[str],
    found: ValidatedModel,
    scales: Mapping[str, np.float32] = MappingProxyType({}),
) -> ValidatedModel:
    """A model that takes and gives what the reference does.

    Args:
        setting: What is the same for all models.
        inputs: The model's inputs.
        names: Names of the model's outputs, in its own order.
        found: The model as it is: it takes feeds of its own input types, and gives its outputs in the order
            of ``names``.
        scales: The scales of inputs that are INT8 where the reference's are floating-point.

    Raises:
        ModelError: The model's inputs or outputs are not the reference's.
    """
    output_names = tuple(setting.declared.shapes)
    dtypes = {spec.name: np.dtype(spec.dtype) for spec in inputs}
    # An engine may list its outputs in another order than the model that it was built from.
    for kind, own, wanted in (
        ("inputs", [*dtypes], [spec.name for spec in setting.inputs]),
        ("outputs", names, output_names),
    ):
        if set(own) != set(wanted):
            raise ModelError(
                f"the {kind} of {found.name} are {', '.join(own)}, the reference's {', '.join(wanted)}; "
                "compare with the model that it was made from"
            )

    def run_converted(feed: FeedDict) -> list[Array]:
        arrays = found.run(as_fed(feed, dtypes, scales))
        given = dict(zip((*names, *found.further), arrays, strict=True))
        return [given[output] for output in (*output_names, *found.further)]

    return replace(found, run=run_converted)


_INT8 = np.iinfo(np.int8)


def as_fed(
    feed: FeedDict, dtypes: Mapping[str, np.dtype[Any]], scales: Mapping[str, np.float32]
) -> dict[str, Array]:
    """Converts the inputs of a reference to the types that a model takes.

    Args:
        feed: Input name to array, in the types of the reference.
        dtypes: Input name to the model's type. Floating-point values are rounded to it, because that rounding
            is part of what the model costs, and integers keep their value.
        scales: Input or output name to its scale. An engine may take INT8 where the reference takes
            floating-point values: the integers are the values divided by the scale.

    Returns:
        The feed; arrays of other kinds than the model's are left as they are, for the model to refuse.

    Raises:
        CalibrationDataError: An integer does not fit the model's type, or the scale of an INT8 input is not
            known.
    """
    return {name: _fed(name, array, dtypes[name], scales.get(name)) for name, array in feed.items()}


def as_floats(name: str, output: Array, scales: Mapping[str, np.float32]) -> Array:
    """An INT8 output as the floating-point values that it stands for; other outputs as they are.

    Args:
        name: The output's name.
        output: The output.
        scales: Input or output name to its scale, of those that are INT8 in the engine alone.
    """
    return output.astype(np.float32) * scales[name] if name in scales else output


def _fed(name: str, array: Array, dtype: np.dtype[Any], scale: np.float32 | None) -> Array:
    if array.dtype == dtype:
        return array
    if array.dtype.kind in "iu" and dtype.kind in "iu":
        return _cast(name, array, dtype)
    if is_float(array.dtype) and dtype == np.int8:
        return _quantized(name, array, scale)
    # BF16 is of no kind that NumPy knows.
    if is_float(array.dtype) and dtype.kind not in "iub":
        return array.astype(dtype)
    return array


def _cast(name: str, array: Array, dtype: np.dtype[Any]) -> Array:
    converted = array.astype(dtype)
    if not np.array_equal(converted, array):
        raise CalibrationDataError(
            f"input '{name}' is {dtype} in the model, and its {array.dtype} values, from {array.min()} to "
            f"{array.max()}, do not fit; give values that {dtype} holds"
        )
    return converted


def _quantized(name: str, array: Array, scale: np.float32 | None) -> NDArray[np.int8]:
    if scale is None:
        raise CalibrationDataError(
            f"input '{name}' is int8 in the engine, and the scale that makes int8 of {array.dtype} values is "
            "not known; put the calibration table that the engine was built with, which has a range of it, "
            f"beside the engine, or build without {Argument('io_types', '', 'build_int8_engine')} for it"
        )
    return np.clip(np.rint(array / scale), _INT8.min, _INT8.max).astype(np.int8)
