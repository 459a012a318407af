"""The short form of the check: every call of one verb fails, in one of the ways."""

import shutil
import subprocess
import sys

import pytest

from tests.scripts.conftest import SCRIPTS


@pytest.mark.slow
@pytest.mark.skipif(not (sys.platform == "linux" and shutil.which("cc")), reason="no Linux, or no C compiler")
def test_whatever_fails_files_that_belong_together_are_the_old_ones_or_the_new_ones():
    command = [sys.executable, SCRIPTS / "fault_check.py", "--in-turn", "--verbs", "table convert"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    name, calls, injections, old, new, refused, other = done.stdout.splitlines()[-1].strip("| ").split(" | ")
    assert (name, calls, other) == ("table convert", injections, "0")
    assert int(old) + int(new) + int(refused) == int(calls) > 50
