"""States of a recurrent network, recorded by running it."""

import json

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import trtint8
from calibrators.data.opening import open_batches
from calibrators.data.sequences import RecordedSteps, StateSequences
from calibrators.errors import CalibrationDataError
from calibrators.tables.table import CalibrationTable
from tests.trtint8.models.recurrent_models import recurrent_model, sounds, states_in_numpy
from trtint8.cli.main import main
from trtint8.models.model import load_model
from trtint8.models.states import with_recorded_states

STATES = {"state": "next_state"}


def recorded_by_hand(path, sound, rate):
    """What a user would have to do: the states before each step of one sequence, from ONNX Runtime."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    state, states = np.zeros((1, 1, 4), np.float32), []
    for chunk in sound:
        states.append(state)
        feed = {"sound": chunk[None], "state": state, "rate": np.array(rate)}
        state = session.run(["next_state"], feed)[0]
    return np.concatenate(states, axis=1)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(recurrent_model(), "gate.onnx")
    sound = sounds(sequences=3)
    np.savez("sound.npz", sound=sound, rate=np.array(2))
    states = [recorded_by_hand("gate.onnx", one, 2) for one in sound]
    np.savez(
        "recorded.npz",
        sound=np.concatenate(sound),
        state=np.concatenate(states, axis=1),
        rate=np.array(2),
    )
    return tmp_path


@pytest.mark.parametrize("first", [None, np.full((1, 1, 4), 0.5, np.float32)])
def test_recorded_states_are_those_of_numpy(first):
    model, sound = load_model(recurrent_model()), sounds()
    data = {"sound": sound, "rate": np.array(2), **({} if first is None else {"state": first})}
    feeds = list(open_batches(with_recorded_states(StateSequences(data, STATES), model), model.inputs))
    states = np.concatenate([feed["state"] for feed in feeds], axis=1)
    np.testing.assert_allclose(states, states_in_numpy(sound, 2, first), atol=1e-6)
    assert np.abs(np.diff(states, axis=1)).min() > 1e-4
    # They do not lie in the memory of the session.
    assert all(feed["state"].base is None for feed in feeds)


def test_other_data_stays_as_it_is():
    model = load_model(recurrent_model())
    for data in (None, "sound.npz", {"sound": sounds()}, CalibrationTable({})):
        assert with_recorded_states(data, model) is data
    assert isinstance(with_recorded_states(StateSequences("sound.npz", STATES), model), RecordedSteps)


def test_the_table_is_that_of_states_recorded_by_hand(folder):
    calibrate = ["calibrate", "gate.onnx", "--method", "minmax", "-o"]
    assert main([*calibrate, "a.json", "sound.npz", "--state", "state=next_state"]) == 0
    assert main([*calibrate, "b.json", "recorded.npz", "--batch-axis", "state=1"]) == 0
    assert (folder / "a.json").read_bytes() == (folder / "b.json").read_bytes()
    table = CalibrationTable.load("a.json")
    assert table.provenance.samples == 36
    with np.load("recorded.npz") as arrays:
        assert table.amax["state"] == np.abs(arrays["state"]).max() > 0.5


def test_every_verb_takes_states(folder, capsys):
    pytest.importorskip("jinja2")
    state = ["--state", "state=next_state"]
    assert main(["calibrate", "gate.onnx", "sound.npz", "-o", "table.json", *state]) == 0
    assert main(["quantize", "gate.onnx", "table.json", "-o", "int8.qdq.onnx"]) == 0
    found = []
    for data, option in (("sound.npz", state), ("recorded.npz", ["--batch-axis", "state=1"])):
        for command in (
            ["validate", "int8.qdq.onnx", data, "--reference", "gate.onnx"],
            ["sensitivity", "gate.onnx", "table.json", data],
        ):
            capsys.readouterr()
            assert main([*command, "--json", *option]) == 0
            found.append(json.loads(capsys.readouterr().out))
    assert found[:2] == found[2:]
    assert found[0]["samples"] == 36
    tune = ["tune", "gate.onnx", "sound.npz", "sound.npz", "-o", "tuned.onnx", "--metric", "sqnr"]
    assert main([*tune, "--no-round-weights", *state]) == 0
    equalize = ["quantize", "gate.onnx", "table.json", "-o", "e.onnx", "--equalize", "sound.npz"]
    capsys.readouterr()
    assert main([*equalize, *state]) == 0
    assert "nothing in 'gate.onnx'" in capsys.readouterr().err  # after the data was read
    report = ["report", "int8.qdq.onnx", "table.json", "--model", "gate.onnx", "--data", "sound.npz"]
    assert main([*report, *state, "-o", "report.html"]) == 0
    assert main(["calibrate", "gate.onnx", "random:8", "-o", "no.json", *state]) == 2
    assert "random" in capsys.readouterr().err


def test_from_python(folder):
    sequences = trtint8.StateSequences("sound.npz", STATES)
    by_hand = trtint8.BatchAxes("recorded.npz", {"state": 1})
    table, same = (
        trtint8.calibrate("gate.onnx", data, method="minmax", progress=False) for data in (sequences, by_hand)
    )
    assert table == same
    model = trtint8.quantize("gate.onnx", table)
    assert trtint8.validate(model, sequences, reference="gate.onnx", progress=False).samples == 36


def test_a_build_takes_states(folder):
    pytest.importorskip("tensorrt_rtx")
    shapes = {"sound": "1x6", "state": "1x1x4"}
    profiles = [
        word for name, shape in shapes.items() for word in ("--profile", f"{name}={shape},{shape},{shape}")
    ]
    build = ["build", "gate.onnx", "sound.npz", "-o", "gate.engine", "--target", "rtx", "--method", "minmax"]
    build.append("--no-fp16")  # with FP16 all tensors are calibrated
    assert main([*build, "--compute-capability", "8.6", "--state", "state=next_state", *profiles]) == 0
    by_hand = trtint8.BatchAxes("recorded.npz", {"state": 1})
    table = trtint8.calibrate("gate.onnx", by_hand, method="minmax", tensors="placed", progress=False)
    assert CalibrationTable.load("gate.table.json") == table


@pytest.mark.parametrize(
    ("states", "named"),
    [
        ({}, "no input"),
        ({"stat": "next_state"}, "'stat'"),
        ({"state": "next"}, "'state'.* 'next', .*'speech', 'next_state'"),
        ({"state": "speech"}, r"'state' \(float32, 1xbatchx4\).* 'speech' \(float32, batchx1\)"),
        ({"rate": "speech"}, r"'rate' \(int64, scalar\).* 'speech' \(float32, batchx1\)"),
    ],
)
def test_states_that_the_model_lacks_are_refused(states, named):
    with pytest.raises(CalibrationDataError, match=named):
        with_recorded_states(StateSequences("sound.npz", states), load_model(recurrent_model()))


def test_a_fixed_dimension_that_differs_is_refused():
    model = load_model(recurrent_model())
    model.graph_model.graph.outputs[1].shape = ir.Shape([1, "batch", 5])
    with pytest.raises(CalibrationDataError, match=r"'next_state' \(float32, 1xbatchx5\)"):
        with_recorded_states(StateSequences("sound.npz", STATES), model)
