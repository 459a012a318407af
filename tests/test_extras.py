"""What the suite does where optional extras are missing: it skips, and says what to install."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_no_extra_is_needed_to_collect_the_suite():
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "tests"]
    plugins = ["-p", "no:cacheprovider", "-p", "no:xdist", "-p", "tests.without_extras"]
    # Options for this run of pytest are not for that one.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run([*command, *plugins], cwd=ROOT, env=inherited, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    for extra in ("Ray", "Pillow", "scikit-learn", "Polygraphy", "jinja2"):
        assert f"{extra} is not installed" in done.stdout
