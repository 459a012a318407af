"""How a failure of a user's function is told."""

import pytest

from calibrators.errors import CalibrationDataError, ModelError, failures_named


def test_the_error_is_the_cause_of_the_one_that_names_the_function():
    failure = "'boxes'"
    with pytest.raises(CalibrationDataError, match=failure) as found, failures_named("it failed"):
        raise KeyError("boxes")
    assert isinstance(found.value.__cause__, KeyError)


def test_errors_of_this_project_stay():
    with pytest.raises(ModelError, match=r"^as it is$"), failures_named("it failed"):
        raise ModelError("as it is")
