"""Values by name of options that may be repeated."""

import pytest

from calibrators.errors import BuildError
from trtint8.cli.named_values import named_values


def test_values_by_name():
    assert named_values("--profile", [("a", 1), ("b", 2)], BuildError) == {"a": 1, "b": 2}


def test_a_name_that_is_given_twice_is_refused():
    with pytest.raises(BuildError, match=r"^--profile gives 'a' twice; give each name once$"):
        named_values("--profile", [("a", 1), ("b", 2), ("a", 1)], BuildError)
