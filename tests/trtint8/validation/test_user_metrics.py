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
    ("result", "message"),
    [
        (
            None,
            "metric 'metric' returned None for a batch of 2 samples; return one number per batch, or one pe",
        ),
        ([1.0, None], "metric 'metric' returned NaN for sample 65; return a number, or infinity"),
        (np.array([np.nan, 1.0]), "metric 'metric' returned NaN for sample 64; return"),
        (float("nan"), "metric 'metric' returned NaN for the batch that begins with sample 64; return"),
    ],
)
def test_values_that_are_not_numbers(result, message):
    def metric(feeds, outputs):
        return result

    with pytest.raises(CalibrationDataError, match=message):
        user_measurand(metric).measure(Batch({}, {}, {}, None, 2, first=64))


def test_samples_have_the_names_that_the_data_gives_them():
    batch = Batch({}, {}, {}, None, 2, first=4, name_of={4: "'a.png'", 5: "'b.png'"}.__getitem__)
    with pytest.raises(CalibrationDataError, match=r"metric '<lambda>' returned NaN for 'b\.png'; return"):
        user_measurand(lambda feeds, outputs: [1.0, np.nan]).measure(batch)
    with pytest.raises(CalibrationDataError, match=r"NaN for the batch that begins with 'a\.png'; return"):
        user_measurand(lambda feeds, outputs: np.nan).measure(batch)


def test_values_may_be_infinite():
    measured = user_measurand(lambda feeds, outputs: [np.inf, 2.0]).measure(BATCH)
    assert measured.value() == np.inf
    assert measured.against(measured, "FP32") is None


@pytest.mark.parametrize("value", [None, float("nan"), "good"])
@pytest.mark.parametrize("base", [Largest, MergingInPlace])
def test_the_value_over_the_data_set_is_a_number(value, base):
    class Wrong(base):
        name = "wrong"

        def fresh(self):
            return self

        def value(self):
            return value

    with pytest.raises(
        CalibrationDataError, match=f"method value of metric 'wrong' returned {value!r}; return"
    ):
        user_measurand(Wrong()).start().value()


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


@pytest.mark.parametrize("base", [Largest, MergingInPlace])
def test_a_fresh_metric_is_a_metric_of_the_same_kind(base):
    class Wrong(base):
        name = "wrong"

        def fresh(self):
            return None

    for use in (lambda one: one.start(), lambda one: one.start().merge(one.measure(BATCH))):
        with pytest.raises(
            CalibrationDataError, match=r"^the method fresh of metric 'wrong' returned None; return the same"
        ):
            use(user_measurand(Wrong()))


def test_a_metric_that_cannot_begin_again_is_named():
    class Wrong(Largest):
        def fresh(self):
            return Wrong(1, 2)

    with pytest.raises(
        CalibrationDataError, match=r"^the method fresh of metric 'largest' failed: .* positional argument"
    ):
        user_measurand(Wrong()).start()


def test_a_metric_that_does_not_merge_is_named():
    class Wrong(MergingInPlace):
        def fresh(self):
            return self

        def merge(self, other):
            raise RuntimeError("of two kinds")

    failure = r"^the method merge of metric 'largest' failed: RuntimeError: of two kinds; correct it$"
    with pytest.raises(CalibrationDataError, match=failure):
        user_measurand(Wrong()).start().merge(Largest())


def test_a_class_is_no_metric():
    with pytest.raises(CalibrationDataError, match=r"^Largest is a class; .* as Largest\(\.\.\.\) makes it$"):
        user_measurand(Largest)
