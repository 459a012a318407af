"""How engines of others are loaded."""

from pathlib import Path

import pytest

from calibrators.errors import UnsupportedError
from trtint8.runtime.loading import LoadingOptions


@pytest.mark.parametrize(
    ("given", "plugins"),
    [("own.so", ("own.so",)), (Path("own.so"), (Path("own.so"),)), (["a.so", "b.so"], ("a.so", "b.so"))],
)
def test_a_single_library_is_one(given, plugins):
    assert LoadingOptions(plugins=given).plugins == plugins


def test_what_is_no_path():
    with pytest.raises(UnsupportedError, match="5 is given where names are expected; give a string"):
        LoadingOptions(plugins=5)
