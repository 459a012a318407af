"""The four calibrators of TensorRT 8.5 to 10.x, as classes that TensorRT takes.

Each is a :class:`calibrators.tensorrt.calibrator.Calibrator` and a subclass of one of TensorRT's own::

    from calibrators.tensorrt import EntropyCalibrator2
    from calibrators.tensorrt.calibrator import ServedBuild
    from calibrators.tensorrt.feeding import network_dtypes

    calibrator = EntropyCalibrator2("calibration.npz", inputs, cache="model.cache")
    calibrator.bind(ServedBuild(network_dtypes=network_dtypes(tensorrt, network)))
    config.int8_calibrator = calibrator
    plan = builder.build_serialized_network(network, config)
    calibrator.raise_failure()

The classes are made when they are first asked for, because their bases exist only where such a TensorRT is
installed. Where it is not, they can be imported, and say what to do when they are called.
"""

from __future__ import annotations

import functools
from typing import Any

import calibrators.tensorrt.flavor as flavors
from calibrators.errors import CalibrationDataError, UnsupportedError
from calibrators.tensorrt.calibrator import Calibrator
from calibrators.tensorrt.flavor import Flavor

#: Class name to TensorRT's base and the algorithm in a cache's header.
_CALIBRATORS = {
    "EntropyCalibrator2": ("IInt8EntropyCalibrator2", "EntropyCalibration2"),
    "EntropyCalibrator": ("IInt8EntropyCalibrator", "EntropyCalibration"),
    "MinMaxCalibrator": ("IInt8MinMaxCalibrator", "MinMaxCalibration"),
    "LegacyCalibrator": ("IInt8LegacyCalibrator", "LegacyCalibration"),
}


def installed_calibrator(name: str) -> type:
    """A calibrator's class for the TensorRT that is installed.

    Args:
        name: One of the four calibrators.

    Returns:
        The class; where no TensorRT has it, one that says so when it is called.
    """
    if not any(flavor.name == "tensorrt" for flavor in flavors.installed()):
        # The extra tensorrt brings the newest version, which has no calibrators.
        return _gone(
            name,
            f"{name} needs TensorRT 8.5 to 10.x, which is not installed; run pip install 'tensorrt<11'",
        )
    try:
        return calibrator_class(name, flavors.load("tensorrt"))
    except UnsupportedError as error:
        return _gone(name, str(error))


@functools.cache
def calibrator_class(name: str, flavor: Flavor) -> type[Calibrator]:
    """A calibrator's class for one TensorRT.

    Args:
        name: ``EntropyCalibrator2``, ``EntropyCalibrator``, ``MinMaxCalibrator`` or ``LegacyCalibrator``.
        flavor: The TensorRT.

    Returns:
        A subclass of :class:`Calibrator` and of TensorRT's interface.

    Raises:
        UnsupportedError: This TensorRT has no calibrators.
    """
    if not flavor.implicit_int8:
        raise UnsupportedError(
            f"{flavor} has no calibrators, which left TensorRT with version 11; calibrate on the CPU with "
            "trtint8.calibrate, or bring an old calibration cache into the model with 'trtint8 migrate'"
        )
    base_name, algorithm = _CALIBRATORS[name]
    base = getattr(flavor.module, base_name)

    mixin = Legacy if name == "LegacyCalibrator" else Calibrator

    @functools.wraps(mixin.__init__)
    def initialize(self: Any, *arguments: Any, **options: Any) -> None:
        # The bindings crash where their own constructor was not called.
        base.__init__(self)
        mixin.__init__(self, *arguments, **options)

    members = {
        "__init__": initialize,
        "__module__": "calibrators.tensorrt",
        "__doc__": mixin.__doc__,
        "algorithm": algorithm,
        "tensorrt_version": flavor.version,
    }
    return type(name, (mixin, base), members)


class Legacy(Calibrator):
    """Adds what TensorRT's legacy calibrator asks for. It takes all that :class:`Calibrator` takes, too.

    Args:
        quantile: Share of a histogram's mass that must lie within the range, in (0, 1].
        regression_cutoff: Share of the range by which the end of the histogram is smoothed, in [0, 1].
    """

    def __init__(
        self, *arguments: Any, quantile: float = 0.9999, regression_cutoff: float = 1.0, **options: Any
    ) -> None:
        if not 0 < quantile <= 1:
            raise CalibrationDataError(f"quantile is {quantile}; give a number above 0 and up to 1")
        if not 0 <= regression_cutoff <= 1:
            raise CalibrationDataError(f"regression_cutoff is {regression_cutoff}; give a number from 0 to 1")
        super().__init__(*arguments, **options)
        self._quantile, self._regression_cutoff = float(quantile), float(regression_cutoff)
        self.settings = f"{self._quantile} and {self._regression_cutoff}"

    # Methods, whatever the bindings' documentation says: properties are ignored and 0.0 is used.

    def get_quantile(self) -> float:
        """The quantile."""
        return self._quantile

    def get_regression_cutoff(self) -> float:
        """The regression cutoff."""
        return self._regression_cutoff

    def read_histogram_cache(self, length: int) -> None:
        """No histograms are kept: the bindings cannot take any."""

    def write_histogram_cache(self, pointer: object, length: int) -> None:
        """No histograms are kept."""


def _gone(name: str, reason: str) -> type:
    """Stands for a calibrator that cannot be had, and says why when it is called."""

    def refuse(_self: object, *_arguments: object, **_options: object) -> None:
        raise UnsupportedError(reason)

    return type(name, (), {"__init__": refuse, "__doc__": reason, "__module__": "calibrators.tensorrt"})
