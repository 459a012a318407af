"""Errors of onnx and onnx_ir in one sentence: both raise dozens of kinds, and messages of several lines."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import onnx_ir as ir

from calibrators.errors import ModelError, TrtInt8Error
from calibrators.words import cause_in_words

#: How onnx writes where in its sources something failed.
_ASSERTION = re.compile(r"^/\S+:\d+: \w+: Assertion `.*?` failed: ")


@contextlib.contextmanager
def as_model_errors(name: str, problem: str, advice: str = "export it again") -> Iterator[None]:
    """Turns whatever onnx and onnx_ir raise in the block into a ModelError.

    Args:
        name: What to call the model in messages.
        problem: What the error says of it, such as ``cannot be read``.
        advice: What to do.

    Raises:
        ModelError: The block failed.
        TrtInt8Error: A pass of this project refused the model, inside onnx_ir or not.
    """
    try:
        yield
    except TrtInt8Error:
        raise
    except Exception as error:
        if isinstance(error.__cause__, TrtInt8Error):  # onnx_ir wraps what a pass raises
            raise error.__cause__ from None
        words = _ASSERTION.sub("", cause_in_words(error))
        raise ModelError(f"'{name}' {problem}: {words}; {advice}") from error


def run_passes(graph_model: ir.Model, name: str, *passes: ir.passes.PassBase) -> None:
    """Runs passes one after another.

    Args:
        graph_model: The model; changed.
        name: What to call the model in messages.
        passes: The passes, which change the model in place.

    Raises:
        ModelError: A pass fails, because nodes are not as their operators demand.
    """
    with as_model_errors(name, "cannot be prepared"):
        ir.passes.Sequential(*passes)(graph_model)
