"""Every step of a sequence becomes a sample, with the state that the step before returned."""

import numpy as np
import pytest

from calibrators.data.images.preprocessing import Preprocessing
from calibrators.data.opening import open_batches
from calibrators.data.sequences import RecordedSteps, StateSequences
from calibrators.errors import CalibrationDataError
from tests.calibrators.specs import floats

SOUND = floats("sound", "batch", 2)
INPUTS = (SOUND, floats("state", 2, "batch", 1))
STEPS = np.arange(8, dtype=np.float32).reshape(4, 2)


class Adder:
    """Returns the state plus the sum of what it hears; counts how often it is opened and run."""

    def __init__(self):
        self.opened = self.runs = 0

    def __call__(self):
        self.opened += 1
        return self.run

    def run(self, feed):
        self.runs += 1
        return {"next": feed["state"] + feed["sound"].sum(), "other": feed["state"][:1]}


def opened(data, inputs=INPUTS, states=None, model=None, axes=None, **options):
    sequences = StateSequences(data, states or {"state": "next"}, axes or {})
    return open_batches(RecordedSteps(sequences, model or Adder()), inputs, **options)


def states_of(batches):
    return [feed["state"].tolist() for feed in batches]


def both(*values):
    """States (2, 1, 1) with the same value in both layers."""
    return [[[[value]], [[value]]] for value in values]


def test_states_are_those_that_the_steps_returned():
    batches = opened({"sound": STEPS})
    assert states_of(batches) == both(0, 1, 6, 15)
    assert states_of(batches) == both(0, 1, 6, 15)  # in each pass
    assert [feed["sound"].tolist() for feed in batches] == [[row] for row in STEPS.tolist()]


def test_every_sequence_begins_anew_or_with_a_state_that_is_given():
    assert states_of(opened({"sound": np.stack([STEPS, STEPS + 1])})) == both(0, 1, 6, 15, 0, 3, 10, 21)
    assert states_of(opened([{"sound": STEPS}, {"sound": STEPS[:2]}])) == both(0, 1, 6, 15, 0, 1)
    first = np.float32([1, 2]).reshape(2, 1, 1)
    found = states_of(opened({"sound": STEPS[:2], "state": first}))
    assert found == [first.tolist(), (first + 1).tolist()]


def test_steps_are_recorded_only_as_far_as_they_are_asked_for():
    model = Adder()
    batches = opened({"sound": STEPS}, model=model)
    assert (model.opened, model.runs) == (0, 0)
    feeds = iter(batches)
    next(feeds), next(feeds)
    assert (model.opened, model.runs) == (1, 1)
    list(feeds)
    assert model.runs == 3  # nobody is fed what the last step returns
    assert states_of(opened({"sound": STEPS}, limit=2)) == both(0, 1)


def test_labels_of_steps():
    data = {"sound": np.stack([STEPS, STEPS]), "labels": np.arange(8).reshape(2, 4)}
    assert [one.labels.tolist() for one in opened(data).labelled()] == [[n] for n in range(8)]
    inputs = (SOUND, floats("state", "batch", 1))
    batches = opened(data, inputs, batch_size=4)
    assert [(one.labels.tolist(), one.first) for one in batches.labelled()] == [
        ([0, 1, 2, 3], 0),
        ([4, 5, 6, 7], 4),
    ]
    assert [feed["state"].tolist() for feed in batches] == [[[0], [1], [6], [15]]] * 2


def test_images_are_preprocessed_for_the_model_too():
    inputs = (floats("sound", "batch", 1, 2, 2), floats("state", "batch", 1))
    frames = np.full((3, 2, 2, 1), 51, np.uint8)
    batches = opened({"sound": frames}, inputs, preprocessing=Preprocessing())
    assert [feed["sound"].shape for feed in batches] == [(1, 1, 2, 2)] * 3
    assert np.ravel(states_of(batches)).tolist() == pytest.approx([0, 0.8, 1.6])


@pytest.mark.parametrize(
    ("data", "options", "named"),
    [
        ({"sound": STEPS, "state": np.zeros((2, 4, 1), np.float32)}, {}, "sequence 0: .*'state' .*2x4x1"),
        ({"sound": STEPS.astype(np.float64)}, {}, "sequence 0: step 0: .*'sound' .*float32 .*float64"),
        ({"sound": np.where(STEPS == 5, np.nan, STEPS)}, {}, "sequence 0: step 2: .*'sound' has 1 "),
        ([{"sound": STEPS}, {"sound": STEPS[0]}], {}, "sequence 1: .*'sound' .*shape 2,"),
        ({"sound": STEPS}, {"states": {"state": "other"}}, "step 0: .*'state' .*2x1x1 .*'other' .*1x1x1"),
        ({"sound": STEPS}, {"states": {"state": "next", "sound": "next"}}, "all inputs .*'sound'"),
        ({"sound": STEPS}, {"axes": {"state": 1}}, "'state', but its states are recorded"),
        ({"sound": STEPS}, {"axes": {"x": 1}}, "'x'"),
        ({"sound": STEPS}, {"shuffle": True}, "shuffle"),
    ],
)
def test_what_does_not_fit_is_refused(data, options, named):
    with pytest.raises(CalibrationDataError, match=named):
        list(opened(data, **options))


def test_a_step_of_several_rows_and_states_without_a_float_model_are_refused():
    inputs = (floats("sound", 2, "batch", 1), INPUTS[1])
    with pytest.raises(CalibrationDataError, match="2 rows"):
        list(opened({"sound": STEPS.reshape(2, 4, 1)}, inputs, axes={"sound": 1}))
    with pytest.raises(CalibrationDataError, match="float model"):
        open_batches(StateSequences({"sound": STEPS}, {"state": "next"}), INPUTS)


def test_a_state_of_unknown_shape_is_to_be_given():
    inputs = (SOUND, floats("state", "layers", "batch", 1))
    with pytest.raises(CalibrationDataError, match=r"shape of the state 'state' \(float32, layersxbatchx1\)"):
        list(opened({"sound": STEPS}, inputs))
    first = np.zeros((2, 1, 1), np.float32)
    assert states_of(opened({"sound": STEPS, "state": first}, inputs)) == both(0, 1, 6, 15)
