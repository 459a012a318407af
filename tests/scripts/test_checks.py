"""The checks of faults, kills and growth: the short form of one in every run, and all of them at night."""

import shutil
import subprocess
import sys

import pytest

from tests.scripts.conftest import SCRIPTS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (sys.platform == "linux" and shutil.which("cc")), reason="no Linux, or no C compiler"
    ),
]


def checked(name, *options):
    """What a check prints, which is right."""
    done = subprocess.run(
        [sys.executable, SCRIPTS / name, *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_whatever_fails_files_that_belong_together_are_the_old_ones_or_the_new_ones():
    # The ways to fail are eight: with every third call, all of them are tried.
    printed = checked("fault_check.py", "--in-turn", "--every", "3", "--verbs", "table convert")
    name, calls, *counts = printed.splitlines()[-1].strip("| ").split(" | ")
    injections, old, new, refused, other = map(int, counts)
    assert (name, injections, other) == ("table convert", -(-int(calls) // 3), 0)
    assert old + new + refused == injections > 16


@pytest.mark.nightly
@pytest.mark.parametrize(
    "check", ["fault_check.py --in-turn", "kill_check.py", "bench_growth.py", "check_processes.py"]
)
def test_of_every_verb(check):
    assert checked(*check.split())
