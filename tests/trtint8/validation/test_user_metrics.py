"""Which parameters a user's metric takes."""

import numpy as np
import pytest

from calibrators.errors import CalibrationDataError
from trtint8.validation.batch import Batch
from trtint8.validation.user_metrics import UpdatedMeter, takes_reference, user_measurand

BATCH = Batch({"x": np.zeros(2)}, {"y": np.array([1.0, 2.0])}, {"y": np.array([1.5, 4.0])}, None, 2)


def two(feeds, outputs):
    return outputs["y"]


def three(feeds, outputs, reference_outputs):
    return np.abs(outputs["y"] - reference_outputs["y"])


def optional(feeds, outputs, reference_outputs=None):
    return three(feeds, outputs, reference_outputs)


def scaled(feeds, outputs, scale=3.0):
    return scale * outputs["y"]


@pytest.mark.parametrize(
    ("function", "compares", "value"),
    [(two, False, 1.5), (three, True, 1.25), (optional, True, 1.25), (scaled, False, 4.5)],
)
def test_functions_of_two_and_three_parameters(function, compares, value):
    measurand = user_measurand(function)
    assert (measurand.name, measurand.relative, measurand.perfect) == (function.__name__, compares, None)
    assert measurand.measure(BATCH).value() == value


def test_a_method_and_a_function_without_a_signature():
    class Metric:
        def __call__(self, feeds, outputs, reference):
            return 0.0

    assert user_measurand(Metric()).relative
    assert takes_reference(max, 2, "max", "feeds, outputs") is False


class Largest:
    """The largest difference over the data set."""

    name = "largest"

    def __init__(self):
        self.found = 0.0

    def fresh(self):
        return Largest()

    def update(self, feeds, outputs, labels, reference_outputs):
        self.found = max(self.found, float(np.abs(outputs["y"] - reference_outputs["y"]).max()))

    def value(self):
        return self.found


def test_a_metric_over_the_data_set_that_compares():
    measurand = user_measurand(Largest())
    meter = measurand.start()
    assert measurand.relative and isinstance(meter, UpdatedMeter)
    meter.merge(measurand.measure(BATCH))
    assert meter.value() == 2.0


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (
            lambda outputs: 0.0,
            r"'<lambda>' cannot be called with \(feeds, outputs\) or \(feeds, outputs, ref.*\(outputs\)",
        ),
        (lambda a, b, c, d: 0.0, r"parameters are \(a, b, c, d\); change them"),
        (3, "3 is not a metric"),
    ],
)
def test_a_wrong_number_of_parameters(metric, message):
    with pytest.raises(CalibrationDataError, match=message):
        user_measurand(metric)


def test_a_method_with_a_wrong_number_of_parameters():
    class Wrong(Largest):
        def update(self, outputs):
            pass

    with pytest.raises(CalibrationDataError, match="the method update of metric 'largest' cannot be called"):
        user_measurand(Wrong())
