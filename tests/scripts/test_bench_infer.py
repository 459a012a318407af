"""The benchmark of Python's share of an inference: that it measures what it says."""

import bench_infer
import numpy as np
import pytest
from infer_bench.recording import RecordingContext, RecordingDevice

from calibrators.tensorrt import flavor
from trtint8.runtime.bound_call import BoundCall
from trtint8.runtime.execution import ExecutionContext
from trtint8.runtime.tensorrt_context import Bindings


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


def test_the_table(rtx, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["bench_infer.py", "--rounds", "1"])
    monkeypatch.setattr(bench_infer, "_CASES", ((2, 1),))
    monkeypatch.setattr(bench_infer, "_CALLS", 3)
    bench_infer.main()
    rows = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[2].strip() for row in rows][:3] == ["bound call, values in place", "bound call", "infer"]
    assert all(float(row[3]) > 0 for row in rows)
