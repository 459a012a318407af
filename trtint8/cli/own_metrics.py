"""What the command line says of metrics: the name of one, or MODULE:NAME of one of the user's."""

from __future__ import annotations

import inspect
from typing import Any

from calibrators.error_text import in_one_line
from calibrators.errors import CalibrationDataError, TrtInt8Error
from trtint8.cli.own_code import named_object
from trtint8.validation.metrics import Metric, is_metric_name


def metric_from(text: str) -> Metric:
    """The metric that an argument of ``--metric`` names.

    Args:
        text: The name of a metric, which may be followed by a colon and an output's name; or MODULE:NAME of
            a function, or of a metric over the data set. A class is called without arguments.

    Raises:
        CalibrationDataError: The module cannot be imported, has no such name, or the class cannot be called.
    """
    if is_metric_name(text):
        return text
    found = named_object(text, "metric", "a metric of trtint8", "a function or a metric of it")
    if found is None:
        return text  # refused with the names that there are, where metrics are checked
    metric: Metric = _instance(found, text) if inspect.isclass(found) else found
    return metric


def _instance(kind: Any, text: str) -> Any:
    try:
        return kind()
    except TrtInt8Error:
        raise
    except Exception as error:
        raise CalibrationDataError(
            f"the metric '{text}': the class cannot be called without arguments: {in_one_line(error)}; name "
            "an object of the module instead"
        ) from error
