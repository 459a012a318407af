"""A call that is prepared once, on a GPU that is host memory."""

import numpy as np
import pytest

from calibrators.errors import CalibrationDataError, EngineError, UnsupportedError
from tests.trtint8.runtime.doubling import OnGpu, batch
from trtint8.runtime.bound_call import BoundCall


def test_every_call_computes_into_the_same_arrays(make):
    (raw,), context = make()
    call = BoundCall(context, {"x": batch(2)})
    asked = len(raw.calls)
    outputs = call.outputs["y"]
    for start in range(4):
        assert call({"x": batch(2, start)})["y"] is outputs
        np.testing.assert_array_equal(outputs, 2 * batch(2, start))
    assert raw.calls[asked:] == ["run"] * 4


def test_values_can_be_written_in_place(make):
    _, context = make()
    call = BoundCall(context, {"x": batch(2)})
    np.testing.assert_array_equal(call()["y"], 2 * batch(2))  # the values that it was bound with
    call.inputs["x"][:] = 7
    np.testing.assert_array_equal(call()["y"], np.full((2, 3), 14, np.float32))


def test_it_can_be_a_graph(make, graphs):
    _, context = make(cuda_graph=True)
    call = BoundCall(context, {"x": batch(2)})
    for start in range(4):
        np.testing.assert_array_equal(call({"x": batch(2, start)})["y"], 2 * batch(2, start))
    assert graphs.made == 1


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        (
            {"x": batch(3)},
            "is bound to a NumPy array of float32 2x3 and was given a NumPy array of float32 3x3",
        ),
        ({"x": batch(2).astype(np.float64)}, "and was given a NumPy array of float64 2x3; bind another call"),
        ({"x": [[0.0] * 3] * 2}, "and was given a list; bind another call, or call infer"),
        ({"z": batch(2)}, "input 'x' is bound to a NumPy array of float32 2x3 and was given nothing"),
        ({"x": batch(2), "z": batch(2)}, "the engine has no input 'z'; it takes 'x'"),
    ],
)
def test_feeds_of_another_kind(make, feeds, message):
    (raw,), context = make()
    call = BoundCall(context, {"x": batch(2)})
    with pytest.raises(CalibrationDataError, match=message):
        call(feeds)
    assert "run" not in raw.calls
    np.testing.assert_array_equal(call({"x": batch(2, 1)})["y"], 2 * batch(2, 1))


def test_what_cannot_be_bound(make, device):
    _, context = make(data_dependent=True)
    with pytest.raises(UnsupportedError, match="the size of an output is known only after the inference"):
        BoundCall(context, {"x": batch(2)})
    _, context = make()
    with pytest.raises(CalibrationDataError, match="takes arrays on the host, and an input is on the GPU"):
        BoundCall(context, {"x": OnGpu(device, batch(2))})


def test_closing_gives_the_memory_back(make, device):
    _, context = make()
    with BoundCall(context, {"x": batch(2)}) as call:
        assert device.live
    assert not device.live
    with pytest.raises(EngineError, match="the bound call is closed; bind another one"):
        call()
    call.close()
