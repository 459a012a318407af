"""Skips the module that imports this one where the extra ``trtint8[report]`` is not installed."""

import pytest

for name in ("jinja2", "matplotlib", "PIL"):
    pytest.importorskip(name, reason=f"{name} is not installed (pip install 'trtint8[report]')")
