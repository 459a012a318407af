import numpy as np
import pytest

from calibrators.data.inputs import DataOptions, InputSpec
from calibrators.data.order import check_fixed, fixed_batches, runs, sample_order
from calibrators.errors import CalibrationDataError

FLOAT = np.dtype(np.float32)


def test_samples_are_taken_in_their_order_up_to_the_limit():
    assert sample_order(5, DataOptions(), None).tolist() == [0, 1, 2, 3, 4]
    assert sample_order(5, DataOptions(limit=3), None).tolist() == [0, 1, 2]


def test_a_shuffled_order_depends_on_the_seed_and_comes_before_the_limit():
    order = np.random.default_rng(7).permutation(6)
    assert sample_order(6, DataOptions(shuffle=True, seed=7, limit=4), None).tolist() == order[:4].tolist()


@pytest.mark.parametrize(
    ("limit", "order"),
    [
        (1, [0]),
        (2, [0, 4]),
        (3, [0, 3, 4]),
        (4, [0, 3, 4, 6]),
        (5, [0, 3, 4, 6, 1]),
        (7, [0, 3, 4, 6, 1, 5, 7]),
        (10, [0, 3, 4, 6, 1, 5, 7, 2, 8, 9]),
        (11, list(range(11))),
        (12, list(range(11))),
    ],
)
def test_a_limit_takes_samples_of_every_class_in_turn(limit, order):
    """Four classes with 3, 1, 2 and 5 samples; of those that have one more, evenly spaced ones are taken."""
    classes = np.repeat(np.arange(4), [3, 1, 2, 5])
    assert sample_order(11, DataOptions(limit=limit), None, classes).tolist() == order


def test_a_fixed_batch_and_classes():
    classes = np.repeat(np.arange(2), 4)
    with pytest.warns(UserWarning, match="left out the last sample, too few"):
        assert sample_order(8, DataOptions(limit=5), 2, classes).tolist() == [0, 4, 1, 5]


def test_samples_that_do_not_fill_a_fixed_batch_are_left_out():
    with pytest.warns(UserWarning, match="left out the last sample, too few"):
        assert sample_order(5, DataOptions(), 2).tolist() == [0, 1, 2, 3]
    with pytest.raises(CalibrationDataError, match="5 samples but the model has a fixed batch of 8"):
        sample_order(5, DataOptions(), 8)


def test_runs_are_batches_of_indices():
    assert [run.tolist() for run in runs(np.arange(5), 2)] == [[0, 1], [2, 3], [4]]


def test_only_the_fixed_batch_size_is_taken():
    inputs = [InputSpec("x", FLOAT, (4, 3)), InputSpec("y", FLOAT, ("n",))]
    assert fixed_batches(inputs) == {4}
    check_fixed(4, {4})
    check_fixed(None, {4})
    with pytest.raises(CalibrationDataError, match="batch_size is 5 but the model has a fixed batch of 4"):
        check_fixed(5, {4})
