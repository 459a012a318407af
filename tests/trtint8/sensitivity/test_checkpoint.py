import json

import numpy as np
import pytest

from calibrators.errors import CalibrationDataError, TableError
from calibrators.host.checkpoint import Checkpoint
from tests.trtint8.sensitivity.measuring import SPLIT, measured
from trtint8.sensitivity.checkpoint import Measured, MeasuredFormat
from trtint8.sensitivity.effects import EffectMeter
from trtint8.sensitivity.local import LocalMeter

IDENTITY = {"model": "abc", "table": "def", "keep_float": [], "batch_size": None}

#: Samples, sums of squares and of products, samples whose class is known and stays, samples that show the
#: noise and what drawing them adds, and how many samples had which class.
SUMS = [16.0, 1.5, 2.0, 0.25, 0.5, 0.5, -0.75, 1.5, 16.0, 12.0, 8.0, 4.0, 0.1, 0.2, 0.0, 0.0, 0.0, 0.0]

DOCUMENT = {
    "identity": IDENTITY,
    "state": {
        "samples": 16,
        "data": "fingerprint",
        "meter": {
            "variants": [["all", ""]],
            "scales": {"y": 0.5},
            "classes": True,
            "labelled": False,
            "predicted": False,
            "sums": [SUMS],
        },
        "local": {"samples": 16, "sums": {"conv": [1.0] * 5}, "channels": {"conv": [0.1]}, "forms": {}},
    },
}


def _checkpoint(path, **identity):
    return Checkpoint(path, {**IDENTITY, **identity}, MeasuredFormat(), resume=True)


def test_a_file_is_read_and_written_back_the_same(tmp_path):
    path = tmp_path / "c.json"
    path.write_text(json.dumps(DOCUMENT))
    measured = _checkpoint(path).load()
    assert (measured.samples, measured.data) == (16, "fingerprint")
    np.testing.assert_array_equal(measured.effects.sums, [SUMS])
    _checkpoint(path).save(measured)
    assert json.loads(path.read_text().rpartition("\nsha256:")[0]) == DOCUMENT


def test_another_measurement_is_refused(tmp_path):
    path = tmp_path / "c.json"
    path.write_text(json.dumps(DOCUMENT))
    with pytest.raises(TableError, match=r"made with another batch size \(None then, 8 now\)"):
        _checkpoint(path, batch_size=8).load()


def _sums(column, value):
    return {"sums": [[value if i == column else number for i, number in enumerate(SUMS)]]}


@pytest.mark.parametrize(
    ("part", "change", "problem"),
    [
        ("meter", _sums(0, -16.0), "a number of samples in it is none"),
        ("meter", _sums(9, 12.5), "a number of samples in it is none"),
        ("meter", _sums(10, 8.5), "a number of samples in it is none"),
        ("meter", _sums(17, float("nan")), "a number of samples in it is none"),
        ("meter", _sums(3, -0.25), "a sum of squares in it is negative"),
        ("meter", {"sums": [[1.0]]}, r"its sums have the shape \(1, 1\) instead of \(1, 18\)"),
        ("meter", {"sums": [SUMS, SUMS]}, r"its sums have the shape \(2, 18\) instead of \(1, 18\)"),
        ("meter", {"scales": {"y": -1.0}}, r"Expected `float` >= 0.0 - at `\$.state.meter.scales\[...\]`"),
        ("meter", {"scales": {}}, r"Expected `object` of length >= 1 - at `\$.state.meter.scales`"),
        ("local", {"samples": 1.5}, r"Expected `int`, got `float` - at `\$.state.local.samples`"),
        ("local", {"sums": {"conv": [1.0]}}, r"Expected `array` of length 5, got 1"),
    ],
)
def test_numbers_that_no_measurement_makes_are_refused(part, change, problem, tmp_path):
    state = {**DOCUMENT["state"], part: {**DOCUMENT["state"][part], **change}}
    path = tmp_path / "c.json"
    path.write_text(json.dumps({**DOCUMENT, "state": state}))
    with pytest.raises(TableError, match=f"cannot read the checkpoint .*{problem}"):
        _checkpoint(path).load()


@pytest.mark.parametrize("samples", [-16, 16.0, "16", None])
def test_a_number_of_samples_that_is_none_is_refused(samples, tmp_path):
    path = tmp_path / "c.json"
    path.write_text(json.dumps({**DOCUMENT, "state": {**DOCUMENT["state"], "samples": samples}}))
    with pytest.raises(
        TableError, match=r"cannot read the checkpoint .*Expected `int`.*remove it to begin anew"
    ):
        _checkpoint(path).load()


def test_other_layers_are_refused(tmp_path):
    path = tmp_path / "c.json"
    path.write_text(json.dumps(DOCUMENT))
    measured = _checkpoint(path).load()
    measured.check_layers(["conv"], [("all", "")])
    for names, variants in ((["other"], [("all", "")]), (["conv"], [("all", ""), ("only", "conv")])):
        with pytest.raises(TableError, match="the checkpoint is of other layers than those of the model"):
            measured.check_layers(names, variants)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"identity": [], "state": {"samples": 1}}'])
def test_another_file_is_refused(content, tmp_path):
    path = tmp_path / "c.json"
    path.write_text(content)
    with pytest.raises(TableError, match="cannot read the checkpoint"):
        _checkpoint(path).load()


def test_without_a_file_nothing_is_continued(tmp_path):
    checkpoint = _checkpoint(tmp_path / "c.json")
    assert checkpoint.load() is None
    meter = EffectMeter([("all", "")], {"y": 0.5}, classes=False, labelled=False)
    checkpoint.save(Measured(0, "", meter, LocalMeter(())))
    assert checkpoint.load().samples == 0
    checkpoint.remove()
    assert checkpoint.load() is None


@pytest.mark.slow
def test_an_interrupted_measurement_goes_on_with_the_same_result(table, tmp_path, monkeypatch):
    monkeypatch.setattr("trtint8.sensitivity.checkpoint._SECONDS", 0.0)
    whole = measured(table, limit=96, tolerance_db=0.0, batch_size=16)
    checkpoint = tmp_path / "c.json"

    def cut_off(count):
        for index in range(6):
            if index == count:
                raise KeyboardInterrupt
            yield {"images": SPLIT.heldout_images[16 * index : 16 * index + 16]}

    labels = SPLIT.heldout_labels[:96]
    options = {"labels": labels, "tolerance_db": 0.0, "checkpoint": str(checkpoint)}
    for count in (2, 4):
        with pytest.raises(KeyboardInterrupt):
            measured(table, cut_off(count), **options)
        document = json.loads(checkpoint.read_bytes().rpartition(b"\nsha256:")[0])
        assert document["state"]["samples"] == 16 * count
    assert measured(table, cut_off(None), **options) == whole
    assert not checkpoint.exists()


@pytest.mark.slow
def test_a_checkpoint_of_something_else_is_refused(table, tmp_path, monkeypatch):
    monkeypatch.setattr("trtint8.sensitivity.checkpoint._SECONDS", 0.0)
    checkpoint = tmp_path / "c.json"

    def interrupted():
        yield {"images": SPLIT.heldout_images[:16]}
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measured(table, interrupted(), labels=None, checkpoint=checkpoint)
    kept = checkpoint.read_bytes()
    with pytest.raises(TableError, match=r"made with another table .* remove the checkpoint to begin anew"):
        measured(table.override({"images": 0.5}), interrupted(), labels=None, checkpoint=checkpoint)
    others = iter([{"images": SPLIT.heldout_images[1:17]}])
    with pytest.raises(CalibrationDataError, match="made with other samples, or in another order"):
        measured(table, others, labels=None, checkpoint=checkpoint)
    assert checkpoint.read_bytes() == kept
    checkpoint.write_text("no json")
    with pytest.raises(TableError, match=r"cannot read the checkpoint .*; remove it to begin anew"):
        measured(table, labels=None, checkpoint=checkpoint)
