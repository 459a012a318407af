"""Data frames."""

import sys

import pytest

from calibrators.display.frames import data_frame
from calibrators.errors import UnsupportedError


def test_columns_become_a_data_frame():
    pytest.importorskip("pandas", reason="pandas is not installed (pip install 'trtint8[notebook]')")
    frame = data_frame({"name": ("a", "b"), "value": [1.5, None]})
    assert list(frame.columns) == ["name", "value"] and list(frame["name"]) == ["a", "b"]
    assert frame["value"].isna().tolist() == [False, True]


def test_without_pandas_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UnsupportedError, match=r"run pip install 'trtint8\[notebook\]'"):
        data_frame({})
