"""What is one sequence, and what is several."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from calibrators.data.feeds import Binding
from calibrators.data.inputs import InputSpec
from calibrators.data.sequences import SequenceReader, StateSequences
from calibrators.errors import CalibrationDataError

SOUND_INPUT = InputSpec("sound", np.dtype(np.float32), ("batch", 2))
RATE_INPUT = InputSpec("rate", np.dtype(np.int64), ())
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
    ],
)
def test_iterables(items):
    found = read(items(), inputs=(SOUND_INPUT,))
    assert [one.arrays["sound"].tolist() for one in found] == SOUND[:2].tolist()


def test_a_dataset_of_pytorch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.data", SimpleNamespace(Dataset=Indexed))
    found = read(Indexed(), inputs=(SOUND_INPUT,))
    assert [one.arrays["sound"].tolist() for one in found] == SOUND[:2].tolist()


def test_an_item_may_have_a_first_state_and_labels():
    item = {"sound": SOUND[0], "state": SOUND[1]}, np.array([3, 4])
    (found,) = read([item], inputs=(SOUND_INPUT,))
    assert (found.first["state"].tolist(), found.labels.tolist()) == (SOUND[1].tolist(), [3, 4])


def test_steps_along_another_axis():
    inputs = (InputSpec("sound", np.dtype(np.float32), ("time", "batch", 2)),)
    assert [one.steps for one in read({"sound": SOUND}, {"sound": 1}, inputs)] == [2]
    assert [one.steps for one in read({"sound": SOUND[None]}, {"sound": 0}, inputs)] == [3]


@pytest.mark.parametrize(
    ("data", "axes", "message"),
    [
        ({"sound": SOUND[0]}, {}, "does not match the model's inputs: missing 'rate'; the model has"),
        (
            {"sound": SOUND[0, 0], "rate": np.array(8)},
            {},
            r"input 'sound' \(float32, batchx2\) has the shape 2, which has no axis of steps; give an array",
        ),
        (
            {"sound": SOUND, "rate": np.full((3, 2), 8)},
            {},
            r"input 'rate' \(int64, scalar\) has the shape 3x2, and an input of one number is the same at",
        ),
        ({"sound": np.array(1), "rate": np.array(8)}, {}, "every input is one number, with no axis of steps"),
        (
            {"sound": SOUND[0], "rate": np.array([8, 8])},
            {},
            "'sound' holds one sequence and 'rate' several",
        ),
        ({"sound": SOUND, "rate": np.array([8, 8])}, {}, "of sequences along axis 0: 'sound' 3, 'rate' 2; g"),
        (
            {"sound": SOUND[0], "rate": np.array(8), "labels": np.arange(3)},
            {},
            "have different numbers of steps: 'sound' 2, 'labels' 3; give all of them the same",
        ),
        *(
            (
                {"sound": SOUND, "rate": np.array(8), "state": np.zeros((count, 1, 1, 4), np.float32)},
                {},
                f"different numbers of sequences along axis 0: 'sound' 3, 'state' {count}; give all of them",
            )
            for count in (2, 4)
        ),
        *(
            (
                {"sound": sound, "rate": np.array(8), "labels": labels},
                {},
                "'labels' is no more than one value; give an array with one label per step, and with the",
            )
            for sound, labels in ((SOUND[:1], 3), (SOUND[0, :1], 3), (SOUND[:, :1], [1, 2, 3]))
        ),
        (
            {"sound": SOUND[0], "rate": np.array(8), "labels": [[1], [1, 2]]},
            {},
            "'labels' cannot become an array: .*; give one label per step, all of one shape",
        ),
        ({"sound": SOUND[0, :0], "rate": np.array(8)}, {}, "it has no steps; leave it out"),
        (
            {"sound": SOUND[0], "rate": np.array(8)},
            {"sound": 2},
            "the axis of the steps of 'sound' is 2, and its array has the shape 2x2; give one of its axes",
        ),
        (
            {"sound": SOUND[0], "rate": np.array(8)},
            {"rate": 1},
            "the axis of the steps of 'rate' is 1, and its array has the shape scalar",
        ),
        ("random:8", {}, "the data is 'random:8', and states are recorded along sequences, which random val"),
        ("none.npz", {}, "the data 'none.npz' does not exist; check the path"),
        (7, {}, "cannot take data from a int; pass a path"),
    ],
)
def test_what_is_no_sequence_is_refused(data, axes, message):
    with pytest.raises(CalibrationDataError, match=message):
        read(data, axes)


def test_files_that_hold_no_sequence_are_refused(tmp_path):
    with pytest.raises(CalibrationDataError, match="has no sequences; put array files"):
        read(tmp_path)
    (tmp_path / "sound.wav").touch()
    with pytest.raises(CalibrationDataError, match=r"cannot take sequences from the file '.*sound.wav'"):
        read(tmp_path / "sound.wav")


def test_an_input_of_unknown_rank_is_refused():
    with pytest.raises(CalibrationDataError, match="the rank of input 'sound' is unknown, so one sequence"):
        read({"sound": SOUND}, inputs=(InputSpec("sound", np.dtype(np.float32), None),))
