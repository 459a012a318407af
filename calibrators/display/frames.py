"""Results as data frames of pandas, where that is installed."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from calibrators.errors import UnsupportedError


def data_frame(columns: Mapping[str, Sequence[object]]) -> Any:
    """A ``pandas.DataFrame``.

    Args:
        columns: The name of each column to its values, all of one length.

    Raises:
        UnsupportedError: pandas is not installed.
    """
    try:
        pandas = importlib.import_module("pandas")
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            "a data frame needs pandas, which is not installed; run pip install 'trtint8[notebook]'"
        ) from error
    return pandas.DataFrame({name: list(values) for name, values in columns.items()})
