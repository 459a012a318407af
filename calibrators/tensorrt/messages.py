"""What TensorRT says while it parses and builds: collected, and put into plain words."""

from __future__ import annotations

import contextlib
import functools
import logging
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

logger = logging.getLogger("trtint8")


@dataclass
class BuildLog:
    """The messages of one build.

    Attributes:
        errors: Errors, in order.
        warnings: Warnings, in order.
        details: Everything less severe, among it the list of layers.
    """

    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    details: list[str] = field(default_factory=list)

    def reason(self) -> str:
        """The last few different errors, in plain words."""
        reasons = list(dict.fromkeys(filter(None, map(plain, self.errors))))
        return "; ".join(reasons[-2:]) or "TensorRT gave no reason"


_building = threading.Lock()


@contextlib.contextmanager
def collected(trt: Any) -> Iterator[BuildLog]:
    """Collects what TensorRT says while the block runs; other threads' blocks wait.

    Args:
        trt: The TensorRT module.

    Yields:
        The messages so far.
    """
    log = BuildLog()
    with _building:
        shared_logger(trt).log_to(log)
        try:
            yield log
        finally:
            shared_logger(trt).log_to(None)


@functools.cache
def shared_logger(trt: Any) -> Any:
    """The logger to give to every builder, parser and runtime.

    TensorRT uses one logger at a time. While any object lives that was made with another one, it ignores
    a new one, and complains of it while it holds a lock, under which Python's garbage collector must not
    free an old builder: the process would hang.

    Args:
        trt: The TensorRT module.

    Returns:
        An ``ILogger`` that lives as long as the process; its ``last_error`` is the last one in plain words.
    """
    severity = trt.ILogger.Severity

    class SharedLogger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self._target: BuildLog | None = None
            self.last_error = "TensorRT gave no reason"

        def log_to(self, target: BuildLog | None) -> None:
            self._target = target

        def log(self, level: Any, message: str) -> None:
            # An exception that leaves a callback ends up inside TensorRT.
            with contextlib.suppress(Exception):
                target = self._target or BuildLog()
                if level in (severity.ERROR, severity.INTERNAL_ERROR):
                    target.errors.append(message)
                    self.last_error = plain(message) or self.last_error
                    logger.debug("%s", message)
                elif level == severity.WARNING:
                    target.warnings.append(message)
                    logger.debug("%s", message)
                else:
                    target.details.append(message)

    return SharedLogger()


_SOURCE = re.compile(r"^\w+\.[ch]\w*:\d+: |\[\w+\.[ch]\w*:[^\]]*\] ?| ?\bIn \w+ at [^\s()]+:\d+")
_WRAPPER = re.compile(r"^(?:\w+::\w+: )?Error Code \d+: [^(]*\((?P<inner>.*)\)$", re.DOTALL)
_ASSERTION = re.compile(r"^Assertion failed: .*?: (?=[A-Z])")
_PREAMBLE = re.compile(r"^Invalid Node - .*$")
_FLAG_ADVICE = re.compile(r" Please set k\w+ .*$")
_UNSUPPORTED_OPERATOR = "TensorRT does not support this operator"


def plain(text: str) -> str:
    """Leaves of one of TensorRT's messages what a user can use.

    Drops files and lines of NVIDIA's sources, wrappers, asserted expressions, and, where there is no GPU,
    the complaints about that. Only the first line that says something is kept.

    Args:
        text: A logged message or a parser error's description.

    Returns:
        One line without a full stop; empty where nothing is left.
    """
    # Asserted expressions that have no words of their own.
    if text == "false" or "Plugin not found" in text:
        return _UNSUPPORTED_OPERATOR
    for line in text.splitlines():
        if "catchCudaError" in line or _PREAMBLE.match(line):
            continue
        line = _SOURCE.sub("", line)
        wrapped = _WRAPPER.match(line)
        line = _ASSERTION.sub("", _SOURCE.sub("", wrapped["inner"] if wrapped else line))
        line = _FLAG_ADVICE.sub("", line).strip().rstrip(".")
        if line:
            return line
    return ""
