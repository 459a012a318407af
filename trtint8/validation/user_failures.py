"""Failures of functions that users write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from calibrators.errors import CalibrationDataError, TrtInt8Error
from calibrators.words import in_one_line


@contextmanager
def failures_named(failure: str) -> Iterator[None]:
    """Says which function failed; the error itself is the cause of the one that is raised.

    Args:
        failure: What failed, in words.

    Raises:
        CalibrationDataError: What stands in the block fails.
    """
    try:
        yield
    except TrtInt8Error:
        raise
    except Exception as error:
        raise CalibrationDataError(f"{failure}: {in_one_line(error)}; correct it") from error
