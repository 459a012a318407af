"""What TensorRT says while it parses and builds: collected, and put into plain words."""

from __future__ import annotations

import contextlib
import functools
import logging
import re
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

_logger = logging.getLogger("trtint8")


#: What is said where TensorRT says nothing.
NO_REASON = "TensorRT gave no reason"


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
        return "; ".join(plain_words(self.errors)[-2:]) or NO_REASON


@contextlib.contextmanager
def collected(trt: Any) -> Iterator[BuildLog]:
    """Collects what TensorRT says in this thread, and in threads of its own, while the block runs.

    Blocks of several threads run side by side, and one block may run inside another, because what runs in
    them is not TensorRT alone: data sources and callbacks of the user do too.

    Args:
        trt: The TensorRT module.

    Yields:
        The messages so far.
    """
    log, logger = BuildLog(), shared_logger(trt)
    logger.open(log)
    try:
        yield log
    finally:
        logger.close(log)


@functools.cache
def shared_logger(trt: Any) -> Any:
    """The logger to give to every builder, parser and runtime.

    TensorRT uses one logger at a time. While any object lives that was made with another one, it ignores
    a new one, and complains of it while it holds a lock, under which Python's garbage collector must not
    free an old builder: the process would hang.

    Args:
        trt: The TensorRT module.

    Returns:
        An ``ILogger`` that lives as long as the process; its ``last_error`` is, in plain words, the last one
        of the calling thread, else of any.
    """
    severity = trt.ILogger.Severity

    class SharedLogger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            # Nothing here takes a lock: TensorRT calls from threads of its own, while it holds locks that the
            # thread that holds ours may wait for.
            self._thread = threading.local()
            self._open: list[BuildLog] = []
            self._last_error = NO_REASON

        @property
        def last_error(self) -> str:
            error: str = getattr(self._thread, "last_error", self._last_error)
            return error

        def open(self, log: BuildLog) -> None:
            self._thread.logs = [*getattr(self._thread, "logs", ()), log]
            self._open.append(log)

        def close(self, log: BuildLog) -> None:
            self._thread.logs = [one for one in self._thread.logs if one is not log]
            self._open = [one for one in self._open if one is not log]

        def log(self, level: Any, message: str) -> None:
            # An exception that leaves a callback ends up inside TensorRT.
            with contextlib.suppress(Exception):
                own = getattr(self._thread, "logs", ())[-1:]
                logs = own or self._open
                if level in (severity.ERROR, severity.INTERNAL_ERROR):
                    for log in logs:
                        log.errors.append(message)
                    self._thread.last_error = self._last_error = plain(message) or self.last_error
                    _logger.debug("%s", message)
                elif level == severity.WARNING:
                    for log in logs:
                        log.warnings.append(message)
                    _logger.debug("%s", message)
                elif len(logs) == 1:
                    # Of a thread of TensorRT's own nobody knows for which of several builds it works, and a
                    # list of layers must not be ascribed to another engine.
                    logs[0].details.append(message)

    return SharedLogger()


def plain_words(messages: Iterable[str]) -> list[str]:
    """Messages as :func:`plain` leaves them, each once and without those of which nothing is left."""
    return list(dict.fromkeys(filter(None, map(plain, messages))))


#: TensorRT 8 begins its messages with the number of the error.
_NUMBER = re.compile(r"^\d+: ")
_SOURCE = re.compile(r"^\w+\.[ch]\w*:\d+: |\[\w+\.[ch]\w*:[^\]]*\] ?| ?\bIn \w+ at [^\s()]+:\d+")
_OPENED = re.compile(r"\(\s*\n\s*")
_WRAPPER = re.compile(r"^(?:\w+::\w+: )?Error Code \d+: [^(]*\((?P<inner>.*?)\)?$", re.DOTALL)
_ASSERTION = re.compile(
    r"^Assertion failed: .*?: (?=[A-Z])"
    r"|^Parameter check failed(?: at: [^\s,]+)?, condition: .*?\. (?=k?[A-Z])"
)
_ASSERTED_WORDS = re.compile(r'^Assertion failed: .* && "(?P<words>[^"]+)"$')
# The second is said wherever ranges are set, also where every tensor has one. The others complain, again and
# again, that there is no GPU or no driver.
_SAYS_NOTHING = re.compile(
    r"^Invalid Node - |^Calibrator is not being used\. "
    r"|.*(?:cudaError (?:35|100)\b|driver version is insufficient|no CUDA-capable device)"
)
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
    # The parenthesis of a wrapper may be closed on a line of its own, and what is in it may begin on one.
    for line in _OPENED.sub("(", text.replace(".\n)", ".)")).splitlines():
        if _SAYS_NOTHING.match(line):
            continue
        line = _SOURCE.sub("", _NUMBER.sub("", line))
        wrapped = _WRAPPER.match(line)
        line = _SOURCE.sub("", wrapped["inner"] if wrapped else line)
        asserted = _ASSERTED_WORDS.match(line)
        line = asserted["words"] if asserted else _ASSERTION.sub("", line)
        line = _FLAG_ADVICE.sub("", line).strip().rstrip(".")
        if line:
            return line
    return ""
