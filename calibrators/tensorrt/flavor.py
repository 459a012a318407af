"""Which TensorRT is installed, and what it can do: the only module that depends on its version.

Everything else takes a :class:`Flavor`, uses its module, and asks it by capability, never by version. Its
element types are translated to NumPy's here as well.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import importlib.util
import sys
from dataclasses import dataclass
from typing import Any, Literal, get_args

import ml_dtypes
import numpy as np

from calibrators.checks import check_choice
from calibrators.cuda import gpu_problem
from calibrators.errors import Argument, BuildError, UnsupportedError, advice
from calibrators.imports import install_command

FlavorName = Literal["tensorrt", "rtx"]
#: Which TensorRT to take; "auto" lets the machine decide.
Target = Literal["auto", "rtx", "tensorrt"]
#: The TensorRT that builds on any machine, because it compiles kernels only when it loads an engine.
ON_ANY_MACHINE: FlavorName = "rtx"

_MODULES: dict[FlavorName, str] = {"tensorrt": "tensorrt", "rtx": "tensorrt_rtx"}
_DISTRIBUTIONS: dict[FlavorName, tuple[str, ...]] = {
    "tensorrt": ("tensorrt", "tensorrt-cu13", "tensorrt-cu12", "tensorrt-cu11"),
    "rtx": ("tensorrt-rtx-cu13", "tensorrt-rtx-cu12", "tensorrt-rtx"),
}
_OLDEST = (8, 5)

#: What the major version counts in a number of all of it: until 9 it is like 8601, from 10 on like 101601.
_MAJOR_UNTIL_9, _MAJOR_FROM_10 = 1_000, 10_000


@dataclass(frozen=True)
class _Feature:
    """What some TensorRTs have.

    Attributes:
        title: The feature, in words that follow "has no".
        probe: The attribute of the module that comes with it.
        found_in: The versions that have it, in words.
        rtx: False where TensorRT for RTX has the attribute and nothing behind it.
    """

    title: str
    probe: str
    found_in: str
    rtx: bool = True


_FEATURES = {
    "bf16": _Feature("BF16 switch", "BuilderFlag.BF16", "TensorRT 9.0 to 10.x"),
    "layer_precisions": _Feature("precision of single layers", "ILayer.precision", "TensorRT 8.5 to 10.x"),
    "io_types": _Feature(
        "types of inputs and outputs to choose", "ITensor.set_dynamic_range", "TensorRT 8.5 to 10.x"
    ),
    "calibrate_before_fusion": _Feature(
        "calibration", "QuantizationFlag.CALIBRATE_BEFORE_FUSION", "TensorRT 8.5 to 10.x"
    ),
    "optimization_level": _Feature(
        "builder optimization level", "IBuilderConfig.builder_optimization_level", "TensorRT 8.6 or newer"
    ),
    "max_aux_streams": _Feature(
        "auxiliary streams", "IBuilderConfig.max_aux_streams", "TensorRT 8.6 or newer"
    ),
    "hardware_compatibility": _Feature(
        "hardware compatibility, but compute capabilities",
        "HardwareCompatibilityLevel.AMPERE_PLUS",
        "TensorRT 8.6 or newer",
        rtx=False,
    ),
    "same_compute_capability": _Feature(
        "compatibility within a compute capability",
        "HardwareCompatibilityLevel.SAME_COMPUTE_CAPABILITY",
        "TensorRT 10.9 or newer",
        rtx=False,
    ),
    "timing_cache": _Feature(
        "timing cache, since it compiles kernels when it loads an engine",
        "ITimingCache",
        "TensorRT",
        rtx=False,
    ),
    "version_compatible": _Feature(
        "version compatibility, because it comes without the lean runtime",
        "BuilderFlag.VERSION_COMPATIBLE",
        "TensorRT 8.6 or newer",
        rtx=False,
    ),
    "strip_plan": _Feature("plans without weights", "BuilderFlag.STRIP_PLAN", "TensorRT 10.0 or newer"),
    "runtime_cache": _Feature(
        "runtime cache, since it compiles no kernels when it loads an engine",
        "IRuntimeCache",
        "TensorRT for RTX",
    ),
    "plugin_creators": _Feature(
        "loader of plugin libraries that do not register their plugins themselves",
        "IPluginRegistry.load_library",
        "TensorRT 8.6 or newer",
    ),
    "serialized_plugins": _Feature(
        "plugin libraries in the plan", "IBuilderConfig.plugins_to_serialize", "TensorRT 8.6 or newer"
    ),
}


def title_of(name: str) -> str:
    """What a TensorRT is called in sentences; ``name`` is that of its :class:`Flavor`."""
    return "TensorRT for RTX" if name == "rtx" else "TensorRT"


@dataclass(frozen=True)
class Flavor:
    """One installed TensorRT.

    Attributes:
        name: "tensorrt", or "rtx" for TensorRT for RTX.
        version: The TensorRT's version, like "10.16.1.11".
    """

    name: FlavorName
    version: str

    def __str__(self) -> str:
        return f"{title_of(self.name)} {self.version}"

    @property
    def module(self) -> Any:
        """The imported ``tensorrt`` or ``tensorrt_rtx``; the import happens on first use.

        Raises:
            UnsupportedError: It is installed but cannot be imported.
        """
        try:
            return importlib.import_module(_MODULES[self.name])
        except (ImportError, OSError) as error:
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise UnsupportedError(
                f"{self} is installed but cannot be imported ({reason}); uninstall it and run "
                f"{install_command(self.name)}"
            ) from error

    @property
    def import_problem(self) -> str | None:
        """Why the module cannot be imported, in a sentence; None where it can."""
        try:
            _ = self.module
        except UnsupportedError as error:
            return str(error)
        return None

    @property
    def library_version(self) -> tuple[int, int, int] | None:
        """Major, minor and patch version of the library; None where it does not tell, as on Windows.

        It differs from the bindings' version where the two were installed apart.
        """
        try:
            # The extension's own functions, and those of the libraries that it is linked with.
            functions = ctypes.CDLL(getattr(self.module, _MODULES[self.name]).__file__)
            number = int(functions.getInferLibVersion())
        except (UnsupportedError, AttributeError, OSError):
            return None
        major = _MAJOR_UNTIL_9 if number < _MAJOR_FROM_10 else _MAJOR_FROM_10
        return number // major, number % major // 100, number % 100

    @property
    def version_number(self) -> int:
        """The version as TensorRT writes it in one number; the inverse of :attr:`library_version`."""
        major, minor, patch = (*self._version, 0, 0, 0)[:3]
        return major * (_MAJOR_UNTIL_9 if major < 10 else _MAJOR_FROM_10) + minor * 100 + patch

    @property
    def supported(self) -> bool:
        """True where this version has everything that trtint8 relies on."""
        return self.name == "rtx" or self._version >= _OLDEST

    @property
    def explicit_batch_flag(self) -> bool:
        """True where a network must be created with ``EXPLICIT_BATCH``."""
        return self.name == "tensorrt" and self._version < (10,)

    @property
    def strongly_typed_only(self) -> bool:
        """True where precisions stand in the graph, and there are no FP16 and INT8 builder flags."""
        return self.name == "rtx" or self._version >= (11,)

    @property
    def quantization_target(self) -> str:
        """The name under which trtint8 knows which INT8 kernels this TensorRT has."""
        if self.name == "rtx":
            return "rtx"
        if self._version < (10,):
            return "tensorrt-8.6"
        return "tensorrt-10" if self._version < (11,) else "tensorrt-11"

    @property
    def implicit_int8(self) -> bool:
        """True where calibrators and dynamic ranges exist."""
        return not self.strongly_typed_only

    @property
    def builds_without_gpu(self) -> bool:
        """True where the builder runs without a GPU, and kernels are compiled when an engine is loaded."""
        return self.name == ON_ANY_MACHINE

    @property
    def has_compute_capabilities(self) -> bool:
        """True where the builder takes the compute capabilities to build for."""
        return self.name == "rtx"

    @property
    def has_progress_monitor(self) -> bool:
        """True where a build reports its progress and can be cancelled."""
        return self.name == "rtx" or self._version >= (9,)

    @property
    def names_failing_nodes(self) -> bool:
        """True where a parser error carries the node's name and operator, not only its index."""
        return self.name == "rtx" or self._version >= (10,)

    @property
    def tells_strong_types(self) -> bool:
        """True where a network says whether its precisions stand in the graph alone."""
        return self.name == "rtx" or self._version >= (10,)

    @property
    def explicit_by_default(self) -> bool:
        """True where Q/DQ in the graph is the way to INT8: from 10.1 on, calibrators are deprecated."""
        return self.name == "rtx" or self._version >= (10, 1)

    @property
    def shares_profiles_on_request(self) -> bool:
        """True where several contexts may use one optimization profile only if the build asked for it."""
        return self.name == "tensorrt" and (8, 6) <= self._version < (10,)

    @property
    def has_version_compatible_plans(self) -> bool:
        """True where plans may contain the runtime that they need, which runs only where that is allowed."""
        return self.name == "rtx" or self._version >= (8, 6)

    @property
    def takes_weights_by_address(self) -> bool:
        """True where weights are also taken by type and address, as those in BF16 and FP8 have to be."""
        return self.name == "rtx" or self._version >= (10,)

    @property
    def lists_layers(self) -> bool:
        """True where the builder logs the layers of an engine; elsewhere an inspector lists them."""
        return self.name == "rtx"

    def require(self, feature: str) -> None:
        """Fails unless this TensorRT has a feature.

        Args:
            feature: A key like "bf16" or "max_aux_streams".

        Raises:
            UnsupportedError: It has not; names the versions that have.
        """
        wanted = _FEATURES[feature]
        found: Any = self.module
        for name in wanted.probe.split("."):
            found = getattr(found, name, None)
        if found is None or (self.name == "rtx" and not wanted.rtx):
            raise UnsupportedError(f"{self} has no {wanted.title}; use {wanted.found_in}, or leave it out")

    @property
    def _version(self) -> tuple[int, ...]:
        return tuple(int(part) for part in self.version.split(".") if part.isdigit())


def installed() -> list[Flavor]:
    """The TensorRTs that are installed, without importing them where their metadata has the version."""
    found = []
    for name, module in _MODULES.items():
        if importlib.util.find_spec(module) is not None:
            found.append(Flavor(name, _installed_version(name)))
    return found


def flavor_of(network: object) -> Flavor:
    """The TensorRT that a network belongs to.

    Args:
        network: An ``INetworkDefinition``.

    Raises:
        BuildError: It is no network of a TensorRT.
    """
    for flavor in installed():
        # A network's own TensorRT has been imported.
        module = sys.modules.get(_MODULES[flavor.name])
        if isinstance(network, getattr(module, "INetworkDefinition", ())):
            return flavor
    raise BuildError(
        f"{Argument('network')} is a {type(network).__name__}; give the INetworkDefinition that TensorRT's "
        "create_network has returned"
    )


def load(target: Target = "auto") -> Flavor:
    """Imports a TensorRT and says what it can do.

    Args:
        target: Which one. "auto" prefers TensorRT where a GPU is usable, and otherwise TensorRT for RTX,
            because that one also builds without a GPU.

    Returns:
        A flavor whose module has been imported.

    Raises:
        UnsupportedError: ``target`` is none of these, is not installed, cannot be imported, or is too old.
    """
    check_choice("target", target, get_args(Target))
    candidates = [flavor for flavor in installed() if target in ("auto", flavor.name)]
    if not candidates:
        raise UnsupportedError(_not_installed(target))
    if target == "auto":
        preferred = ON_ANY_MACHINE if gpu_problem() else "tensorrt"
        candidates.sort(key=lambda flavor: flavor.name != preferred)
    problems = []
    for flavor in candidates:
        if flavor.supported:
            problem = flavor.import_problem
        else:
            problem = f"{flavor} is too old; install TensorRT 8.5 or newer"
        if problem is None:
            return flavor
        problems.append(problem)
    raise UnsupportedError("; ".join(problems))


#: What to do in place of a build that needs a GPU.
WITHOUT_GPU = (
    f"give {Argument('target', 'rtx')} to build for TensorRT for RTX on this machine, or make a Q/DQ model "
    "with 'trtint8 quantize' and build it on the machine that has the GPU"
)


def _not_installed(target: str) -> str:
    if target == "auto":
        return (
            f"no TensorRT is installed; run {install_command('rtx')} (TensorRT for RTX, which also builds "
            f"without a GPU) or {install_command('tensorrt')}"
        )
    ways = [f"run {install_command(target)}"]
    if target == "tensorrt" and (problem := gpu_problem()):
        ways.insert(0, f"as it builds only with an NVIDIA GPU, and {problem}, {WITHOUT_GPU}")
    return f"{title_of(target)} is not installed; {advice(*ways)}"


def _installed_version(name: FlavorName) -> str:
    for distribution in _DISTRIBUTIONS[name]:
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    # Copied in without metadata, as on some devices: only the module itself knows.
    try:
        return str(importlib.import_module(_MODULES[name]).__version__)
    except (ImportError, OSError, AttributeError):
        return "unknown"


_NUMPY: dict[str, np.dtype[Any]] = {
    "FLOAT": np.dtype(np.float32),
    "HALF": np.dtype(np.float16),
    "INT8": np.dtype(np.int8),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "UINT8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "FP8": np.dtype(ml_dtypes.float8_e4m3fn),
}
#: NumPy's names of the element types that TensorRT has. NumPy knows all of them once ml_dtypes is imported.
DTYPES = tuple(dtype.name for dtype in _NUMPY.values())


def numpy_dtype(trt: Any, data_type: Any) -> np.dtype[Any] | None:
    """NumPy's element type for TensorRT's; None where there is none, as for types of four bits.

    Args:
        trt: The TensorRT module.
        data_type: A ``DataType``.
    """
    for member, dtype in _NUMPY.items():
        if data_type == getattr(trt.DataType, member, None):
            return dtype
    return None


def tensorrt_dtype(trt: Any, dtype: np.dtype[Any]) -> Any:
    """TensorRT's ``DataType`` for NumPy's element type; None where this TensorRT has none.

    Args:
        trt: The TensorRT module.
        dtype: NumPy's element type.
    """
    member = next((member for member, known in _NUMPY.items() if known == dtype), "")
    return getattr(trt.DataType, member, None)
