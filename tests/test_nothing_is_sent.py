"""Nothing is sent anywhere: what trtint8 runs on would send usage data to its makers."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

#: Where ONNX Runtime sees one of these it sends nothing, whatever trtint8 does.
CI = (
    *("CI", "TF_BUILD", "GITHUB_ACTIONS", "GITLAB_CI", "CIRCLECI", "TRAVIS", "JENKINS_URL", "BUILDKITE"),
    *("CODEBUILD_BUILD_ID", "TEAMCITY_VERSION", "ORT_RUNNING_UNIT_TESTS"),
)

#: The variables that turn it off.
OFF = {"ORT_DISABLE_TELEMETRY": "1", "RAY_USAGE_STATS_ENABLED": "0"}


def run(script, folder, **environment):
    """Runs a script where nobody has said anything of usage data; returns what it prints."""
    inherited = {name: value for name, value in os.environ.items() if name not in (*CI, *OFF)}
    (folder / "home").mkdir()
    (folder / "here").mkdir()
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    places = {"HOME": folder / "home", "TMPDIR": folder / "here", "PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**inherited, **{name: str(value) for name, value in places.items()}, **environment},
        cwd=folder / "here",
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    ).stdout


SHOW = "import os; print(os.environ.get('ORT_DISABLE_TELEMETRY'), os.environ.get('RAY_USAGE_STATS_ENABLED'))"


@pytest.mark.parametrize(
    "module", ["calibrators", "calibrators.host.session", "calibrators.ray.workers", "trtint8"]
)
def test_every_way_in_turns_it_off(module, tmp_path):
    assert run(f"import {module}; {SHOW}", tmp_path).split() == ["1", "0"]


def test_what_the_user_has_set_stays(tmp_path):
    own = {"ORT_DISABLE_TELEMETRY": "0", "RAY_USAGE_STATS_ENABLED": "1"}
    assert run(f"import trtint8; {SHOW}", tmp_path, **own).split() == ["0", "1"]


def test_a_calibration_leaves_nothing_in_the_home_folder(tmp_path):
    """There ONNX Runtime keeps the id of the device, and what it has not sent yet."""
    script = """
import sys, time
import trtint8
from trtint8.data import DEMO_MODEL
trtint8.calibrate(DEMO_MODEL, "random:4", progress=False)
assert "onnxruntime" in sys.modules
time.sleep(1)  # threads of its own write the files
"""
    run(script, tmp_path)
    assert [path.relative_to(tmp_path) for path in tmp_path.rglob("*") if not path.is_dir()] == []


def importers_of(name):
    """Files of the repository, and the lines on which they import a module."""
    for folder in ("trtint8", "calibrators", "scripts", "examples", "docs/extensions"):
        for path in (ROOT / folder).rglob("*.py"):
            tree = ast.parse(path.read_text())
            if any(name in imported(node) for node in ast.walk(tree)):
                yield path, tree


def imported(node):
    """The top-level modules that a statement imports."""
    if isinstance(node, ast.Import):
        return {alias.name.partition(".")[0] for alias in node.names}
    if isinstance(node, ast.ImportFrom) and not node.level:
        return {str(node.module).partition(".")[0]}
    return set()


def test_onnx_runtime_is_imported_after_it_was_turned_off():
    """It reads the variable when it is imported: so in functions, of files that import a package of ours."""
    found = list(importers_of("onnxruntime"))
    assert len(found) > 5
    for path, tree in found:
        first = [imported(node) for node in tree.body]
        assert not any("onnxruntime" in names for names in first), path
        ours = path.relative_to(ROOT).parts[0] in ("trtint8", "calibrators")
        assert ours or any(names & {"trtint8", "calibrators"} for names in first), path
