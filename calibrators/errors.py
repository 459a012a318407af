"""The one family of errors that both packages raise.

A message is one sentence: what was wrong, with the offending name and value, and what to do about it.
"""

from __future__ import annotations


class TrtInt8Error(Exception):
    """Base of every error that a user can cause or mend."""


class ModelError(TrtInt8Error):
    """The ONNX model cannot be read, is invalid, or lacks what was asked of it."""


class CalibrationDataError(TrtInt8Error):
    """The calibration or validation data does not fit the model, or is unusable."""


class TableError(TrtInt8Error):
    """A calibration table or cache is malformed, stale, or belongs to another model."""


class OutputError(TrtInt8Error):
    """A file cannot be written."""


class UnsupportedError(TrtInt8Error):
    """What was asked is not available in this installation; names what has it."""


class BuildError(TrtInt8Error):
    """TensorRT refused the network or failed to build the engine."""


class EngineError(TrtInt8Error):
    """An engine file or its sidecar is unusable."""


class GpuUnavailableError(TrtInt8Error):
    """The call needs an NVIDIA GPU and driver, and there is none."""


class GpuMemoryError(TrtInt8Error):
    """The GPU, or page-locked host memory, has not enough room."""


class WorkerError(TrtInt8Error):
    """A worker of a Ray cluster died again and again."""
