"""Builds engines of one model in several forms, and estimates their times on a GPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from calibrators.data.inputs import InputSpec
from calibrators.data.samples import SampleSizes
from calibrators.errors import UnsupportedError
from calibrators.tensorrt import flavor as flavors
from calibrators.tensorrt.flavor import Flavor, Target
from trtint8.auditing.gpus import Gpu
from trtint8.auditing.results import AuditedEngine
from trtint8.auditing.roofline import estimate_engine
from trtint8.auditing.work import Work, at_shapes, count_work
from trtint8.builder.build import build_engine
from trtint8.builder.compute_capabilities import nearest_capability
from trtint8.builder.options import BuildOptions
from trtint8.builder.routes import quantization_target
from trtint8.engine.profiles import Profile, complete_profile
from trtint8.models.model import Model
from trtint8.models.serialization import runnable
from trtint8.quantization.quantize import with_float16
from trtint8.quantization.targets import Target as QuantizationTarget


@dataclass(frozen=True)
class EstimatorOptions:
    """How engines are built.

    Attributes:
        target: Which TensorRT builds.
        profile: Shapes of dynamic inputs, of which the optimal ones are taken.
        build: All other options of the builds; its ``fp16`` has no effect.
        progress: Whether a progress bar is shown for every build.
    """

    target: Target = "auto"
    profile: Profile | None = None
    build: BuildOptions = dataclasses.field(default_factory=BuildOptions)
    progress: bool = True


@dataclass(frozen=True)
class Estimator:
    """What all builds of one model for one GPU share.

    Attributes:
        flavor: The TensorRT that builds.
        model: The prepared float model, whose inputs have the optimal shapes alone, so that the builder lists
            every dimension. An engine for a range of shapes may have a few kernels more.
        work: The model's multiply-adds.
        gpu: The GPU that times are estimated for.
        compute_capability: What engines are built for; None where TensorRT builds only for the GPU on which
            it runs.
        options: How engines are built.
    """

    flavor: Flavor
    model: Model
    work: Work
    gpu: Gpu
    compute_capability: str | None
    options: EstimatorOptions

    @classmethod
    def open(
        cls, prepared: Model, sizes: Mapping[str, SampleSizes], gpu: Gpu, options: EstimatorOptions
    ) -> Estimator:
        """Prepares builds.

        Args:
            prepared: From :func:`trtint8.models.model.prepare`; not changed.
            sizes: Input name to the sizes that samples had, which a dynamic input gets where the profile
                leaves it out; may lack inputs.
            gpu: The GPU that times are estimated for.
            options: How engines are built.

        Raises:
            BuildError: The profile does not fit the model.
            UnsupportedError: This TensorRT is not installed.
        """
        flavor = flavors.load(options.target)
        profile = complete_profile(options.profile or {}, prepared.inputs, sizes)
        fixed = at_shapes(prepared, {name: shapes.opt for name, shapes in profile.items()})
        capability = nearest_capability(flavor, gpu.compute_capability)
        return cls(flavor, fixed, count_work(fixed.graph_model), gpu, capability, options)

    @property
    def of_another_gpu(self) -> bool:
        """Whether TensorRT cannot build engines in INT8 for the GPU, and builds them for another one here."""
        return self.compute_capability not in (None, self.gpu.compute_capability)

    @property
    def quantization_target(self) -> QuantizationTarget:
        """What Q/DQ pairs are placed for."""
        return quantization_target(self.flavor, self.options.build)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name of each input to its dimensions."""
        return {spec.name: _sizes(spec) for spec in self.model.inputs}

    def estimate(
        self, precision: str, graph_model: ir.Model, peaks: Mapping[str, float], *, fp16: bool
    ) -> AuditedEngine:
        """Builds one engine and estimates its time.

        Args:
            precision: What to call its types, like "INT8+FP16".
            graph_model: ``model``, with Q/DQ pairs or without.
            peaks: Name of each tensor to its largest magnitude, which decides what stays in FP32.
            fp16: Whether what is outside INT8 is FP16.

        Returns:
            The engine's kernels with their estimated times.

        Raises:
            BuildError: TensorRT refuses the model.
            UnsupportedError: This TensorRT does not list the layers of its engines.
            GpuUnavailableError: This TensorRT needs a GPU to build.
        """
        typed_by_graph = self.flavor.strongly_typed_only
        if fp16 and typed_by_graph:
            graph_model, _ = with_float16(
                graph_model, self.quantization_target, float32_io=True, peaks=peaks, name=self.model.name
            )
        with runnable(graph_model) as serialized:
            built = build_engine(
                serialized,
                self.model.inputs,
                flavor=self.flavor,
                compute_capabilities=[self.compute_capability] if self.compute_capability else [],
                options=dataclasses.replace(self.options.build, fp16=None if typed_by_graph else fp16),
                int8="INT8" in precision,
                progress=self.options.progress,
            )
        if built.report is None:
            raise UnsupportedError(
                f"{self.flavor} does not list the layers of its engines, which an audit is made of; take "
                "TensorRT for RTX, or detailed profiling verbosity"
            )
        return estimate_engine(
            precision, built.report, self.work.multiply_adds, self.gpu, built.weights_bytes
        )


def _sizes(spec: InputSpec) -> tuple[int, ...]:
    """The dimensions of an input, all of which are fixed."""
    return tuple(size for size in spec.shape or () if isinstance(size, int))
