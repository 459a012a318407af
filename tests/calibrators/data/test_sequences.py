"""What is one sequence, and what is several."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from calibrators.data.feeds import Binding
from calibrators.data.inputs import InputSpec
from calibrators.data.sequences import SequenceReader, StateSequences
from calibrators.errors import CalibrationDataError
from tests.calibrators.specs import floats, integers

SOUND_INPUT = floats("sound", "batch", 2)
RATE_INPUT = integers("rate")
SOUND = np.arange(12, dtype=np.float32).reshape(3, 2, 2)


def reader(data, axes=None, inputs=(SOUND_INPUT, RATE_INPUT)):
    sequences = StateSequences(data, {"state": "next"}, axes or {})
    return SequenceReader(sequences, Binding(inputs, None, dict(axes or {})), {"state": 3})


def read(data, axes=None, inputs=(SOUND_INPUT, RATE_INPUT)):
    own = reader(data, axes, inputs)
    return [sequence for arrays in own.start()() for sequence in own.cut(arrays)]


def test_one_sequence_in_a_dict():
    (found,) = read({"sound": SOUND[0], "rate": np.array(8), "labels": np.array([1, 0])})
    assert (found.arrays["sound"].tolist(), int(found.arrays["rate"])) == (SOUND[0].tolist(), 8)
    assert (found.steps, found.first, found.labels.tolist()) == (2, {}, [1, 0])


def test_stacked_sequences():
    first = np.arange(12, dtype=np.float32).reshape(3, 1, 1, 4)
    found = read({"sound": SOUND, "rate": np.array([8, 16, 8]), "state": first, "labels": np.eye(3, 2)})
    assert [one.arrays["sound"].tolist() for one in found] == SOUND.tolist()
    assert [int(one.arrays["rate"]) for one in found] == [8, 16, 8]
    assert [one.first["state"].tolist() for one in found] == first.tolist()
    assert [one.labels.tolist() for one in found] == np.eye(3, 2).tolist()
    # One number, and one first state, are those of every sequence.
    found = read({"sound": SOUND, "rate": np.array(4), "state": first[1]})
    assert [int(one.arrays["rate"]) for one in found] == [4] * 3
    assert [one.first["state"].tolist() for one in found] == [first[1].tolist()] * 3


def test_files(tmp_path):
    for index, steps in enumerate((2, 1)):
        np.savez(tmp_path / f"{index}.npz", sound=SOUND[index, :steps], rate=np.array(index))
    found = read(tmp_path)
    assert [(one.steps, int(one.arrays["rate"])) for one in found] == [(2, 0), (1, 1)]
    assert [one.steps for one in read(str(tmp_path / "1.npz"))] == [1]
    np.save(tmp_path / "all.npy", SOUND)
    assert [one.steps for one in read(tmp_path / "all.npy", inputs=(SOUND_INPUT,))] == [2, 2, 2]


class Indexed:
    """A dataset of PyTorch's kind: one sequence per index, and no error beyond the last."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return SOUND[index % 3]


@pytest.mark.parametrize(
    "items",
    [
        lambda: list(SOUND[:2]),
        lambda: iter(SOUND[:2]),
        lambda: lambda: iter([{"sound": one} for one in SOUND[:2]]),
        lambda: [(one, np.array([1, 1])) for one in SOUND[:2]],
        Indexed,
    ],
)
def test_iterables_and_datasets_of_pytorch(items, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.data", SimpleNamespace(Dataset=Indexed))
    found = read(items(), inputs=(SOUND_INPUT,))
    assert [one.arrays["sound"].tolist() for one in found] == SOUND[:2].tolist()


def test_an_item_may_have_a_first_state_and_labels():
    item = {"sound": SOUND[0], "state": SOUND[1]}, np.array([3, 4])
    (found,) = read([item], inputs=(SOUND_INPUT,))
    assert (found.first["state"].tolist(), found.labels.tolist()) == (SOUND[1].tolist(), [3, 4])


def test_steps_along_another_axis():
    inputs = (floats("sound", "time", "batch", 2),)
    assert [one.steps for one in read({"sound": SOUND}, {"sound": 1}, inputs)] == [2]
    assert [one.steps for one in read({"sound": SOUND[None]}, {"sound": 0}, inputs)] == [3]


ONE, ALL = ({"sound": sound, "rate": np.array(8)} for sound in (SOUND[0], SOUND))


@pytest.mark.parametrize(
    ("data", "axes", "named"),
    [
        ({"sound": SOUND[0]}, {}, "missing 'rate'"),
        ({**ONE, "sound": SOUND[0, 0]}, {}, r"'sound' \(float32, batchx2\) .*shape 2,"),
        ({**ALL, "rate": np.full((3, 2), 8)}, {}, r"'rate' \(int64, scalar\) .*3x2"),
        ({**ONE, "sound": np.array(1)}, {}, "no axis of steps"),
        ({**ONE, "rate": np.array([8, 8])}, {}, "'sound' .*'rate' several"),
        ({**ALL, "rate": np.array([8, 8])}, {}, "'sound' 3, 'rate' 2"),
        ({**ONE, "labels": np.arange(3)}, {}, "'sound' 2, 'labels' 3"),
        ({**ALL, "state": np.zeros((2, 1, 1, 4), np.float32)}, {}, "'sound' 3, 'state' 2"),
        ({**ALL, "state": np.zeros((4, 1, 1, 4), np.float32)}, {}, "'sound' 3, 'state' 4"),
        ({**ALL, "sound": SOUND[:1], "labels": 3}, {}, "'labels' is no more than one value"),
        ({**ONE, "sound": SOUND[0, :1], "labels": 3}, {}, "'labels' is no more than one value"),
        ({**ALL, "sound": SOUND[:, :1], "labels": [1, 2, 3]}, {}, "'labels' is no more than one value"),
        ({**ONE, "labels": [[1], [1, 2]]}, {}, "'labels' cannot become an array"),
        ({**ONE, "sound": SOUND[0, :0]}, {}, "no steps"),
        (ONE, {"sound": 2}, "'sound' is 2, .*2x2"),
        (ONE, {"rate": 1}, "'rate' is 1, .*scalar"),
        ("random:8", {}, "'random:8'"),
        ("none.npz", {}, "'none.npz'"),
        (7, {}, "int"),
    ],
)
def test_what_is_no_sequence_is_refused(data, axes, named):
    with pytest.raises(CalibrationDataError, match=named):
        read(data, axes)


def test_files_without_sequences_and_inputs_of_unknown_rank_are_refused(tmp_path):
    with pytest.raises(CalibrationDataError, match=f"'{tmp_path}' has no sequences"):
        read(tmp_path)
    (tmp_path / "sound.wav").touch()
    with pytest.raises(CalibrationDataError, match=r"sound\.wav'"):
        read(tmp_path / "sound.wav")
    with pytest.raises(CalibrationDataError, match="rank of input 'sound'"):
        read({"sound": SOUND}, inputs=(InputSpec("sound", np.dtype(np.float32), None),))
