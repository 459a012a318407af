"""INT8 TensorRT engines from ONNX models.

Every public name is loaded from its module when it is first used, so that ``import trtint8`` is quick and
needs neither TensorRT nor ONNX Runtime. The calls stand in :mod:`trtint8.api`.
"""

from __future__ import annotations

import calibrators  # noqa: F401  # before ONNX Runtime: it turns off what that would send
from trtint8.version import __version__ as __version__

# In place of that of `typing`: what is imported here delays the moment from which the program heeds Ctrl-C.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from calibrators.data.batches import Batches as Batches
    from calibrators.data.feeds import BatchAxes as BatchAxes
    from calibrators.data.images.preprocessing import Preprocessing as Preprocessing
    from calibrators.data.inputs import InputSpec as InputSpec
    from calibrators.data.sequences import StateSequences as StateSequences
    from calibrators.errors import BuildError as BuildError
    from calibrators.errors import CalibrationDataError as CalibrationDataError
    from calibrators.errors import EngineError as EngineError
    from calibrators.errors import GpuMemoryError as GpuMemoryError
    from calibrators.errors import GpuUnavailableError as GpuUnavailableError
    from calibrators.errors import ModelError as ModelError
    from calibrators.errors import OutputError as OutputError
    from calibrators.errors import TableError as TableError
    from calibrators.errors import TrtInt8Error as TrtInt8Error
    from calibrators.errors import UnsupportedError as UnsupportedError
    from calibrators.errors import WorkerError as WorkerError
    from calibrators.ray.cluster import RayExecutor as RayExecutor
    from calibrators.tables.table import CalibrationTable as CalibrationTable
    from trtint8.api.accuracy import measure_sensitivity as measure_sensitivity
    from trtint8.api.accuracy import tune as tune
    from trtint8.api.accuracy import validate as validate
    from trtint8.api.building import build_int8_engine as build_int8_engine
    from trtint8.api.building import set_dynamic_ranges as set_dynamic_ranges
    from trtint8.api.doctor import doctor as doctor
    from trtint8.api.elsewhere import cut_model as cut_model
    from trtint8.api.elsewhere import lint as lint
    from trtint8.api.elsewhere import mend as mend
    from trtint8.api.elsewhere import migrate as migrate
    from trtint8.api.engines import audit as audit
    from trtint8.api.engines import bench as bench
    from trtint8.api.engines import deploy as deploy
    from trtint8.api.engines import write_report as write_report
    from trtint8.api.quantization import QuantizedFiles as QuantizedFiles
    from trtint8.api.quantization import quantize as quantize
    from trtint8.api.quantization import write_quantized as write_quantized
    from trtint8.api.running import run_engine as run_engine
    from trtint8.auditing.gpus import Gpu as Gpu
    from trtint8.auditing.results import Audit as Audit
    from trtint8.auditing.results import AuditedEngine as AuditedEngine
    from trtint8.auditing.results import AuditedKernel as AuditedKernel
    from trtint8.auditing.results import AuditedPart as AuditedPart
    from trtint8.builder.build import count_int8_layers as count_int8_layers
    from trtint8.builder.config import BuildOptions as BuildOptions
    from trtint8.builder.dynamic_ranges import MissingRange as MissingRange
    from trtint8.builder.dynamic_ranges import SetRanges as SetRanges
    from trtint8.built_files import BuildResult as BuildResult
    from trtint8.calibration import calibrate as calibrate
    from trtint8.calibration import model_inputs as model_inputs
    from trtint8.engine.file import EngineInfo as EngineInfo
    from trtint8.engine.file import read_engine_info as read_engine_info
    from trtint8.engine.profiles import ShapeRange as ShapeRange
    from trtint8.interop.lint import Finding as Finding
    from trtint8.interop.lint import Mended as Mended
    from trtint8.interop.migrate import Migrated as Migrated
    from trtint8.report.comparison import ComparedRow as ComparedRow
    from trtint8.report.comparison import RunComparison as RunComparison
    from trtint8.report.comparison import compare_runs as compare_runs
    from trtint8.report.writing import write_comparison as write_comparison
    from trtint8.runtime.bench import Benchmarks as Benchmarks
    from trtint8.runtime.bench import BenchReport as BenchReport
    from trtint8.runtime.engine import Engine as Engine
    from trtint8.runtime.refit import refit as refit
    from trtint8.sensitivity.results import Sensitivity as Sensitivity
    from trtint8.tuning.tune import Tuned as Tuned
    from trtint8.validation.accuracy import Accuracy as Accuracy
    from trtint8.validation.metrics import DetectionAgreement as DetectionAgreement
    from trtint8.validation.metrics import MeanAveragePrecision as MeanAveragePrecision
else:
    #: Module to the public names that it has; the imports above are the same for type checkers.
    _HOMES = {
        "calibrators.data.feeds": ("BatchAxes",),
        "calibrators.data.batches": ("Batches",),
        "calibrators.data.inputs": ("InputSpec",),
        "calibrators.data.images.preprocessing": ("Preprocessing",),
        "calibrators.data.sequences": ("StateSequences",),
        "calibrators.errors": (
            "BuildError",
            "CalibrationDataError",
            "EngineError",
            "GpuMemoryError",
            "GpuUnavailableError",
            "ModelError",
            "OutputError",
            "TableError",
            "TrtInt8Error",
            "UnsupportedError",
            "WorkerError",
        ),
        "calibrators.ray.cluster": ("RayExecutor",),
        "calibrators.tables.table": ("CalibrationTable",),
        "trtint8.api.building": ("build_int8_engine", "set_dynamic_ranges"),
        "trtint8.calibration": ("calibrate", "model_inputs"),
        "trtint8.api.elsewhere": ("cut_model", "lint", "mend", "migrate"),
        "trtint8.api.doctor": ("doctor",),
        "trtint8.api.engines": ("audit", "bench", "deploy", "write_report"),
        "trtint8.api.running": ("run_engine",),
        "trtint8.api.quantization": ("QuantizedFiles", "quantize", "write_quantized"),
        "trtint8.api.accuracy": ("measure_sensitivity", "tune", "validate"),
        "trtint8.auditing.gpus": ("Gpu",),
        "trtint8.auditing.results": ("Audit", "AuditedEngine", "AuditedKernel", "AuditedPart"),
        "trtint8.builder.dynamic_ranges": ("MissingRange", "SetRanges"),
        "trtint8.builder.config": ("BuildOptions",),
        "trtint8.builder.build": ("count_int8_layers",),
        "trtint8.engine.file": ("EngineInfo", "read_engine_info"),
        "trtint8.engine.profiles": ("ShapeRange",),
        "trtint8.built_files": ("BuildResult",),
        "trtint8.interop.lint": ("Mended", "Finding"),
        "trtint8.interop.migrate": ("Migrated",),
        "trtint8.report.comparison": ("ComparedRow", "RunComparison", "compare_runs"),
        "trtint8.report.writing": ("write_comparison",),
        "trtint8.runtime.bench": ("BenchReport", "Benchmarks"),
        "trtint8.runtime.engine": ("Engine",),
        "trtint8.runtime.refit": ("refit",),
        "trtint8.sensitivity.results": ("Sensitivity",),
        "trtint8.tuning.tune": ("Tuned",),
        "trtint8.validation.accuracy": ("Accuracy",),
        "trtint8.validation.metrics": ("DetectionAgreement", "MeanAveragePrecision"),
    }
    _MODULES = {name: module for module, names in _HOMES.items() for name in names}

    __all__ = ["__version__", *sorted(_MODULES)]

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module 'trtint8' has no attribute '{name}'")
        from importlib import import_module

        found = globals()[name] = getattr(import_module(_MODULES[name]), name)
        return found

    def __dir__() -> list[str]:
        return __all__
