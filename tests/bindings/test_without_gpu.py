"""Without a GPU every entry says so in one sentence, and the process lives: TensorRT itself would crash."""

import os
import subprocess
import sys

import numpy as np
import pytest

from calibrators.cuda import gpu_problem
from calibrators.tensorrt.flavor import Flavor
from trtint8.data import DEMO_MODEL

pytestmark = pytest.mark.skipif(gpu_problem() is None, reason="this machine has a GPU")

PLAN = b"ftrt" + bytes(100)


def python(*lines):
    """Runs a program in a process of its own, with the same bindings; its lines see a few names."""
    program = "\n".join(
        [
            "import numpy as np",
            "import trtint8",
            "from calibrators.errors import GpuUnavailableError",
            "from trtint8.data import DEMO_MODEL",
            "try:",
            *(f"    {line}" for line in lines),
            "except GpuUnavailableError as error:",
            "    print(error)",
        ]
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=1800)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def command(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "trtint8.cli.main", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=1800,
        env={**os.environ, "COLUMNS": "200"},
    )


def is_one_sentence(text):
    return text.count("\n") == 1 and "needs an NVIDIA GPU, but " in text and "Traceback" not in text


def building(tmp_path, route):
    output = tmp_path / "x.engine"
    return [
        "data = np.zeros((4, 1, 8, 8), np.float32)",
        f"options = dict(target='tensorrt', route={route!r})",
        f"trtint8.build_int8_engine(DEMO_MODEL, data, {str(output)!r}, **options)",
    ]


@pytest.mark.parametrize("route", ["auto", "explicit"])
def test_building(tmp_path, route):
    text = python(*building(tmp_path, route))
    assert text.startswith("building with TensorRT ")
    assert is_one_sentence(text)
    assert list(tmp_path.iterdir()) == []


def test_building_implicitly(tmp_path, trt):
    if not Flavor("tensorrt", trt.__version__).implicit_int8:
        pytest.skip("this TensorRT has no implicit route")
    assert is_one_sentence(python(*building(tmp_path, "implicit")))
    assert list(tmp_path.iterdir()) == []


def test_loading(tmp_path):
    assert is_one_sentence(python(f"trtint8.Engine.load({PLAN!r})"))
    (tmp_path / "x.engine").write_bytes(PLAN)
    assert is_one_sentence(python(f"trtint8.Engine.load({str(tmp_path / 'x.engine')!r})"))


def test_a_device():
    assert is_one_sentence(python("from calibrators.cuda import open_device", "open_device()"))


def test_commands(tmp_path):
    plan = tmp_path / "x.engine"
    plan.write_bytes(PLAN)
    np.savez(tmp_path / "data.npz", images=np.zeros((4, 1, 8, 8), np.float32))
    for arguments in (
        ("run", plan, tmp_path / "data.npz", "-o", tmp_path / "out.npz"),
        ("bench", plan),
        ("build", DEMO_MODEL, tmp_path / "data.npz", "-o", tmp_path / "new.engine", "--target", "tensorrt"),
    ):
        done = command(*arguments)
        assert done.returncode == 2, done.stderr
        assert is_one_sentence(done.stderr), done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.npz", "x.engine"]


def test_doctor_says_what_is_missing(trt):
    done = command("doctor")
    assert done.returncode == 0
    assert f"TensorRT {trt.__version__}" in done.stdout
    assert "needs an NVIDIA GPU" in done.stdout
