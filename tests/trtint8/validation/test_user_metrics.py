"""Which parameters a user's metric takes."""

import numpy as np
import pytest

from calibrators.errors import CalibrationDataError
from trtint8.validation.batch import Batch
from trtint8.validation.user_metrics import UserMeter, takes_reference, user_measurand

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
    assert measurand.relative and isinstance(meter, UserMeter)
    meter.merge(measurand.measure(BATCH))
    assert meter.value() == 2.0


class InPlace(Largest):
    """Computes in place what :class:`Largest` does."""

    def update(self, feeds, outputs, labels, reference_outputs):
        outputs["y"] -= reference_outputs["y"]
        self.found = max(self.found, float(np.abs(outputs["y"], out=outputs["y"]).max()))
        for array in (feeds["x"], reference_outputs["y"], labels):
            array[:] = 0


def in_place(feeds, outputs, reference_outputs):
    metric = InPlace()
    metric.update(feeds, outputs, np.zeros(0), reference_outputs)
    feeds.clear()
    return metric.found


class MergingInPlace(InPlace):
    def fresh(self):
        return MergingInPlace()

    def merge(self, other):
        self.found = max(self.found, other.found)


@pytest.mark.parametrize("metric", [in_place, InPlace(), MergingInPlace()])
def test_a_metric_may_compute_in_place(metric):
    x, y, wanted, labels = np.arange(2.0), np.array([1.0, 2.0]), np.array([1.5, 4.0]), np.array([3, 4])
    batch = Batch({"x": x}, {"y": y}, {"y": wanted}, labels, 2)
    measurand = user_measurand(metric)
    for _ in range(2):
        meter = measurand.start()
        meter.merge(measurand.measure(batch))
        assert meter.value() == 2.0
    assert [array.tolist() for array in (x, y, wanted, labels)] == [[0, 1], [1, 2], [1.5, 4], [3, 4]]


@pytest.mark.parametrize(
    ("result", "value"),
    [
        (None, "None"),
        ([1.0, None], "NaN for sample 65"),
        (np.array([np.nan, 1.0]), "NaN for sample 64"),
        (float("nan"), "NaN .*sample 64"),
    ],
)
def test_values_that_are_not_numbers(result, value):
    def metric(feeds, outputs):
        return result

    with pytest.raises(CalibrationDataError, match=f"'metric' .*{value}"):
        user_measurand(metric).measure(Batch({}, {}, {}, None, 2, first=64))


def test_samples_have_the_names_that_the_data_gives_them():
    batch = Batch({}, {}, {}, None, 2, first=4, name_of={4: "'a.png'", 5: "'b.png'"}.__getitem__)
    for result, named in (([1.0, np.nan], r"NaN for 'b\.png'"), (np.nan, r"NaN .*'a\.png'")):
        with pytest.raises(CalibrationDataError, match=f"'<lambda>' .*{named}"):
            user_measurand(lambda feeds, outputs, result=result: result).measure(batch)
    measured = user_measurand(lambda feeds, outputs: [np.inf, 2.0]).measure(BATCH)
    assert measured.value() == np.inf and measured.against(measured, "FP32") is None


class WrongUpdate(Largest):
    def update(self, outputs):
        pass


class WrongFresh(Largest):
    def fresh(self):
        return WrongFresh(1, 2)


@pytest.mark.parametrize(
    ("metric", "named"),
    [
        (lambda outputs: 0.0, r"'<lambda>' .*\(outputs\).*MeanAveragePrecision"),
        (lambda a, b, c, d: 0.0, r"\(a, b, c, d\)"),
        (3, "3 is"),
        (WrongUpdate(), "update of metric 'largest'"),
        (WrongFresh(), "fresh of metric 'largest'"),
        (Largest, "Largest is a class"),
    ],
)
def test_a_wrong_number_of_parameters(metric, named):
    with pytest.raises(CalibrationDataError, match=named):
        user_measurand(metric).start()


def test_a_method_and_a_function_without_a_signature():
    class Metric:
        def __call__(self, feeds, outputs, reference):
            return 0.0

    assert user_measurand(Metric()).relative
    assert takes_reference(max, 2, "max", "feeds, outputs") is False


@pytest.mark.parametrize("base", [Largest, MergingInPlace])
@pytest.mark.parametrize("value", [None, float("nan"), "good"])
def test_what_methods_may_not_return(base, value):
    class Wrong(base):
        name = "wrong"
        again = None

        def fresh(self):
            return self.again

        def value(self):
            return value

        def merge(self, other):
            raise RuntimeError("of two kinds")

    metric = Wrong()
    for use in (lambda one: one.start(), lambda one: one.start().merge(one.measure(BATCH))):
        with pytest.raises(CalibrationDataError, match=r"fresh of metric 'wrong' returned None"):
            use(user_measurand(metric))
    metric.again = metric
    with pytest.raises(CalibrationDataError, match=f"value of metric 'wrong' returned {value!r}"):
        user_measurand(metric).start().value()
    if base is MergingInPlace:
        with pytest.raises(CalibrationDataError, match=r"merge of metric 'wrong' .*of two kinds"):
            user_measurand(metric).start().merge(Largest())
