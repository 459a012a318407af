"""Builds engines of one model in FP32, FP16 and INT8, and puts what they do side by side."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from calibrators.data.inputs import InputSpec
from calibrators.errors import UnsupportedError
from calibrators.tables.table import CalibrationTable
from calibrators.tensorrt import flavor as flavors
from calibrators.tensorrt.flavor import Flavor, Target
from trtint8.auditing.gpus import Gpu
from trtint8.auditing.results import Audit, AuditedEngine
from trtint8.auditing.roofline import estimate_engine
from trtint8.auditing.verdict import judge
from trtint8.auditing.work import at_shapes, count_work
from trtint8.builder.build import build_engine
from trtint8.builder.compute_capabilities import nearest_capability
from trtint8.builder.options import BuildOptions
from trtint8.engine.profiles import Profile, complete_profile
from trtint8.models.model import Model, prepare, runnable
from trtint8.quantization.float16.convert import to_float16
from trtint8.quantization.quantize import quantize_graph


@dataclass(frozen=True)
class AuditOptions:
    """How the engines are built.

    Attributes:
        target: Which TensorRT builds.
        profile: Shapes of dynamic inputs, of which the optimal ones are taken.
        keep_float: Names of nodes, or patterns, that stay in float.
        build: All other options of the builds; its ``fp16`` has no effect.
        progress: Whether a progress bar is shown for every build.
    """

    target: Target = "auto"
    profile: Profile | None = None
    keep_float: Sequence[str] = ()
    build: BuildOptions = dataclasses.field(default_factory=BuildOptions)
    progress: bool = True


def audit_model(model: Model, table: CalibrationTable, gpu: Gpu, options: AuditOptions) -> Audit:
    """Builds the engines and estimates their times.

    The engines are built for the optimal shapes alone, so that every tensor has known dimensions. One for a
    range of shapes may have a few kernels more.

    Args:
        model: A float model.
        table: Its calibration table.
        gpu: The GPU that times are estimated for.
        options: How the engines are built.

    Returns:
        The engines, side by side.

    Raises:
        ModelError: The model is unusable.
        TableError: The table is of another model, or lacks a range.
        BuildError: TensorRT refuses the model, or the profile does not fit.
        UnsupportedError: This TensorRT does not list the layers of an engine.
        GpuUnavailableError: This TensorRT needs a GPU to build.
    """
    flavor = flavors.load(options.target)
    profile = complete_profile(options.profile or {}, model.inputs)
    fixed = at_shapes(prepare(model), {name: shapes.opt for name, shapes in profile.items()})
    work = count_work(fixed.graph_model)
    capability = nearest_capability(flavor, gpu.compute_capability)
    build = _Builds(flavor, fixed, work.multiply_adds, gpu, capability, options)
    quantized = quantize_graph(fixed, table, options.keep_float)[0]
    engines = (
        build.engine("FP32", fixed.graph_model, table, fp16=False),
        build.engine("FP16", fixed.graph_model, table, fp16=True),
        build.engine("INT8", quantized, table, fp16=False),
        build.engine("INT8+FP16", quantized, table, fp16=True),
    )
    verdict = judge(engines, gpu.name, work.multiply_adds)
    return Audit(
        model=model.name,
        gpu=gpu,
        flavor=flavor.name,
        tensorrt_version=flavor.version,
        compute_capability=capability or "current",
        shapes={spec.name: _sizes(spec) for spec in fixed.inputs},
        engines=engines,
        verdict=verdict.sentence,
        reasons=verdict.reasons,
        uncounted=work.uncounted,
        model_fingerprint=model.fingerprint,
        table_fingerprint=table.fingerprint,
    )


@dataclass(frozen=True)
class _Builds:
    """What the builds of one audit share."""

    flavor: Flavor
    model: Model
    work: Mapping[str, int]
    gpu: Gpu
    capability: str | None
    options: AuditOptions

    def engine(
        self, precision: str, graph_model: ir.Model, table: CalibrationTable, *, fp16: bool
    ) -> AuditedEngine:
        """Builds one engine and estimates its time."""
        typed_by_graph = self.flavor.strongly_typed_only
        if fp16 and typed_by_graph:
            name = self.model.name
            graph_model = to_float16(graph_model, float32_io=True, peaks=table.peaks, name=name)[0]
        with runnable(graph_model) as serialized:
            built = build_engine(
                serialized,
                self.model.inputs,
                flavor=self.flavor,
                compute_capabilities=[self.capability] if self.capability else [],
                options=dataclasses.replace(self.options.build, fp16=None if typed_by_graph else fp16),
                int8=precision.startswith("INT8"),
                progress=self.options.progress,
            )
        if built.report is None:
            raise UnsupportedError(
                f"{self.flavor} does not list the layers of its engines, which an audit is made of; take "
                "TensorRT for RTX, or detailed profiling verbosity"
            )
        return estimate_engine(precision, built.report, self.work, self.gpu, built.weights_bytes)


def _sizes(spec: InputSpec) -> tuple[int, ...]:
    """The dimensions of an input, all of which are fixed."""
    return tuple(size for size in spec.shape or () if isinstance(size, int))
