"""The benchmark of Python's share of an inference: that it measures what it says."""

import subprocess
import sys

import bench_infer
import numpy as np
import pytest
from infer_bench.recording import RecordingContext, RecordingDevice

from calibrators.tensorrt import flavor
from tests.scripts.conftest import SCRIPTS
from trtint8.runtime.bindings import Bindings
from trtint8.runtime.bound_call import BoundCall
from trtint8.runtime.execution import ExecutionContext


@pytest.fixture(scope="module")
def rtx():
    pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")
    return flavor.load("rtx")


@pytest.fixture
def recorded(rtx):
    """A device, TensorRT's side and ours, with two inputs and one output."""
    inputs, outputs = bench_infer.specs(2, "x"), bench_infer.specs(1, "y")
    device, raw = RecordingDevice(), RecordingContext(rtx, outputs)
    bindings = Bindings(inputs, outputs, frozenset(), ())
    return device, raw, ExecutionContext(rtx.module, lambda: raw, None, bindings, device, cuda_graph=False)


@pytest.fixture
def feed():
    return {name: np.zeros((8, 16), np.float32) for name in ("x0", "x1")}


@pytest.mark.parametrize("way", ["bound", "infer"])
def test_a_repeated_inference_is_the_copies_and_the_run(recorded, feed, way):
    device, raw, context = recorded
    call = BoundCall(context, feed) if way == "bound" else context.infer
    call(feed)
    asked, copies, allocations = raw.asked, device.copies, device.allocations
    for _ in range(10):
        call(feed)
    assert (raw.asked - asked, device.copies - copies, device.allocations - allocations) == (0, 30, 0)
    assert raw.runs == 11


@pytest.mark.slow
def test_the_table(rtx):
    """In a process of its own, because Polygraphy chooses its TensorRT when it is first imported."""
    done = subprocess.run(
        [sys.executable, SCRIPTS / "bench_infer.py", "--rounds", "1", "--calls", "3"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split("|")[1:-1] for line in done.stdout.splitlines()[2:]]
    assert [row[2].strip() for row in rows][:3] == ["bound call, values in place", "bound call", "infer"]
    assert {(row[0].strip(), row[1].strip()) for row in rows} == {("1", "1"), ("2", "1"), ("3", "4")}
    assert all(float(row[3]) > 0 for row in rows)
