"""Runs tests/bindings in a process of its own on each of TensorRT's real bindings."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bindings_setup import VERSIONS, NotAvailableError, prepare

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.timeout(3600)  # where the bindings are not in the cache yet
@pytest.mark.skipif("TRTINT8_BINDINGS" in os.environ, reason="this process runs on the bindings already")
@pytest.mark.parametrize(
    "version", [pytest.param(version, marks=pytest.mark.xdist_group(version)) for version in VERSIONS]
)
def test_on_the_real_bindings(version, record_property):
    try:
        bindings = prepare(version)
    except NotAvailableError as reason:
        pytest.skip(f"TensorRT {version}: {reason}")
    # Options for this run of pytest, "-n 4" for example, are not for that one.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [
            *(sys.executable, "-X", "faulthandler", "-m", "pytest", "tests/bindings", "--quiet"),
            *("-p", "no:cacheprovider", "-p", "no:xdist", "--color=no"),
        ],
        cwd=ROOT,
        env={**inherited, **bindings.environment},
        capture_output=True,
        text=True,
        timeout=1800,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    summary = re.search(r"^=*\s*(\d+ passed.*?) in [\d.]+s", output, re.MULTILINE)
    assert summary, output
    record_property("bindings", f"TensorRT {version} bindings: {summary[1]}")
