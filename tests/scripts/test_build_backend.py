"""The package is built without a trace in the clone, so that builds do not meet there."""

import os
import subprocess
import sys
import tarfile

import pytest

from tests.scripts.conftest import SCRIPTS

PROJECT = '[project]\nname = "one"\nversion = "1"\n[tool.setuptools]\npackages = ["one"]\n'


def test_builds_of_one_clone_do_not_meet(tmp_path):
    pytest.importorskip("setuptools", reason="setuptools is not installed")
    clone = tmp_path / "clone"
    (clone / "one").mkdir(parents=True)
    (clone / "one/__init__.py").touch()
    (clone / "pyproject.toml").write_text(PROJECT)
    before = sorted(clone.rglob("*"))
    command = [sys.executable, "-c", "import sys, build_backend; build_backend.build_sdist(sys.argv[1])"]
    environment = os.environ | {"PYTHONPATH": str(SCRIPTS)}
    builds = [
        subprocess.Popen([*command, tmp_path / name], cwd=clone, env=environment, stdout=subprocess.DEVNULL)
        for name in ("a", "b")
    ]
    assert [build.wait() for build in builds] == [0, 0]
    for name in ("a", "b"):
        with tarfile.open(tmp_path / name / "one-1.tar.gz") as made:
            assert {"one-1/pyproject.toml", "one-1/one/__init__.py"} <= set(made.getnames())
            assert not any(member.issym() for member in made)
    assert sorted(clone.rglob("*")) == before
