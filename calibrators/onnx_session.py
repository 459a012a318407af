"""ONNX Runtime sessions, opened in one way everywhere."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from calibrators.errors import ModelError


def open_session(
    model: bytes | Path,
    *,
    optimize: bool,
    threads: int | None = None,
    data_folder: Path | None = None,
    one_of_many: bool = False,
) -> Any:
    """Opens a model on the CPU.

    Args:
        model: The serialized model, or its path.
        optimize: True runs all graph optimizations. False runs the nodes as they stand: a Q/DQ model is
            then computed in float on quantized values, as a GPU that fuses nothing would, and not turned
            into ONNX Runtime's own integer kernels.
        threads: Threads within an operator; ONNX Runtime's choice where None.
        data_folder: Where the external data of a serialized model lies.
        one_of_many: Whether the session takes turns with many others. Its idle threads then sleep at once:
            they would take the processor from those of the session that runs.

    Returns:
        An ``onnxruntime.InferenceSession``.

    Raises:
        ModelError: ONNX Runtime refuses the model.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 3  # warnings about optimizations that did not apply help nobody here
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimize else level.ORT_DISABLE_ALL
    if threads is not None:
        options.intra_op_num_threads = threads
    if one_of_many:
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if data_folder is not None:
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", os.fspath(data_folder)
        )
    try:
        return ort.InferenceSession(
            model if isinstance(model, bytes) else os.fspath(model),
            options,
            providers=["CPUExecutionProvider"],
        )
    except Exception as error:
        raise ModelError(f"ONNX Runtime cannot run the model: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """The first non-empty line of an exception's text, without ONNX Runtime's status prefix."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    line = lines[0] if lines else type(error).__name__
    return line.split(" : ", 3)[-1] if line.startswith("[ONNXRuntimeError]") else line
