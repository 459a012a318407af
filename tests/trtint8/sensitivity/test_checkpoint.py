import json

import pytest

from calibrators.errors import CalibrationDataError, TableError
from tests.trtint8.sensitivity.measuring import SPLIT, measured


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
    options = {"labels": labels, "tolerance_db": 0.0, "checkpoint": checkpoint}
    for count in (2, 4):
        with pytest.raises(KeyboardInterrupt):
            measured(table, cut_off(count), **options)
        assert json.loads(checkpoint.read_bytes())["state"]["samples"] == 16 * count
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
    with pytest.raises(TableError, match="is of another table; measure as before, or remove it"):
        measured(table.override({"images": 0.5}), interrupted(), labels=None, checkpoint=checkpoint)
    others = iter([{"images": SPLIT.heldout_images[1:17]}])
    with pytest.raises(CalibrationDataError, match="made with other samples, or in another order"):
        measured(table, others, labels=None, checkpoint=checkpoint)
    assert checkpoint.read_bytes() == kept
    checkpoint.write_text("no json")
    with pytest.raises(TableError, match="is no checkpoint of a measurement; remove it"):
        measured(table, labels=None, checkpoint=checkpoint)
