"""A calibration cache has names for some methods only."""

from pathlib import Path

import pytest

from calibrators.tables.table import CalibrationTable
from trtint8.cli.cache_method import say_method_in_cache


@pytest.mark.parametrize(
    ("method", "name", "said"),
    [
        ("auto", "t.cache", True),
        ("mse", "t.CACHE", True),
        ("entropy", "t.cache", False),
        ("auto", "t.json", False),
    ],
)
def test_what_is_said(method, name, said, capsys):
    say_method_in_cache(CalibrationTable({"x": 1.0}, method), Path(name))
    words = (
        f"'{name}' is a calibration cache, which has no name for the method '{method}': "
        "read back, its method is 'entropy'\n"
    )
    assert capsys.readouterr().err == (words if said else "")
