import pytest

from calibrators.data.options import DataOptions
from calibrators.errors import CalibrationDataError


def test_options_have_defaults_that_leave_the_data_as_it_is():
    options = DataOptions()
    assert (options.batch_size, options.limit, options.shuffle, options.seed) == (None, None, False, 0)
    assert (options.preprocessing, options.labels, options.default_batch_size) == (None, None, 32)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"batch_size": 0}, "batch_size is 0; give a positive integer"),
        ({"limit": True}, "limit is True; give a positive integer"),
        ({"limit": 2.0}, "limit is 2.0; give a positive integer"),
        ({"seed": -1}, "seed is -1; give an integer of 0 or more"),
    ],
)
def test_options_check_themselves(options, sentence):
    with pytest.raises(CalibrationDataError, match=sentence):
        DataOptions(**options)
