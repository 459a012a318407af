"""Files among many that cannot be read, which are skipped where that is asked for."""

from __future__ import annotations

import json
import pickle
import warnings

import numpy as np
import pytest

pytest.importorskip("PIL")

import trtint8
from calibrators.data.opening import open_batches
from calibrators.errors import CalibrationDataError
from tests.calibrators.data.sample_data import IMAGE, RAW, VECTOR, refused, save_images, vectors, whole
from tests.calibrators.specs import floats
from trtint8.cli.main import main
from trtint8.data import DEMO_MODEL

PREPARED = trtint8.Preprocessing()
NAMES = [f"{index}.png" for index in range(6)]


def truncate(path):
    path.write_bytes(path.read_bytes()[:-30])


def no_image(path):
    path.write_bytes(b"this is no image")


def empty(path):
    path.write_bytes(b"")


def behind_its_header(path):
    """Damages pixels, which only decoding shows."""
    content = path.read_bytes()
    place = content.index(b"IDAT") + 8
    path.write_bytes(content[:place] + bytes(12) + content[place + 12 :])


def skipped(data, inputs=(IMAGE,), **options):
    """Opens data; gives the batches and the warnings."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        batches = open_batches(data, inputs, skip_bad=True, **options)
    return batches, [str(one.message) for one in said]


@pytest.mark.parametrize("damage", [truncate, no_image, empty, behind_its_header])
def test_a_damaged_image_is_refused_or_skipped(tmp_path, damage):
    images = save_images(tmp_path, NAMES)
    damage(tmp_path / "2.png")
    refused(tmp_path, r"2\.png", [IMAGE], preprocessing=RAW)
    batches, said = skipped(tmp_path, preprocessing=RAW, batch_size=2)
    sound = RAW(images[[0, 1, 3, 4, 5]])
    assert np.array_equal(whole(batches), sound)
    assert np.array_equal(whole(batches), sound)  # in a second pass, too
    assert batches.num_samples == 5 and batches.name_of(2) == f"'{tmp_path / '3.png'}'"
    assert len(said) == 1 and str(tmp_path / "2.png") in said[0] and "1 file" in said[0]


def test_nothing_is_said_where_nothing_is_bad(tmp_path):
    images = save_images(tmp_path, NAMES)
    batches, said = skipped(tmp_path, preprocessing=RAW)
    assert np.array_equal(whole(batches), RAW(images)) and not said


def test_all_bad_is_refused(tmp_path):
    save_images(tmp_path, NAMES)
    for name in NAMES:
        empty(tmp_path / name)
    with pytest.raises(CalibrationDataError, match=r"6 files.*0\.png"):
        skipped(tmp_path, preprocessing=RAW)


def test_images_that_can_be_read_and_do_not_fit_are_refused_still(tmp_path):
    save_images(tmp_path, NAMES)
    with pytest.raises(CalibrationDataError, match="4x4"):
        skipped(tmp_path, [floats("x", "N", 3, 8, 8)], preprocessing=RAW)


def test_a_limit_is_filled_with_the_next_ones(tmp_path):
    images = save_images(tmp_path, NAMES)
    for name in ("0.png", "2.png", "5.png"):
        truncate(tmp_path / name)
    batches, said = skipped(tmp_path, preprocessing=RAW, limit=2)
    assert np.array_equal(whole(batches), RAW(images[[1, 3]]))
    assert "2 files" in said[0] and "5.png" not in said[0]  # which is not read


def test_a_random_order_is_that_of_all_files(tmp_path):
    images = save_images(tmp_path, NAMES)
    truncate(tmp_path / "1.png")
    batches, _ = skipped(tmp_path, preprocessing=RAW, shuffle=True, seed=3)
    order = [index for index in np.random.default_rng(3).permutation(6).tolist() if index != 1]
    assert np.array_equal(whole(batches), RAW(images[order]))


def test_a_fixed_batch_is_filled_with_sound_ones(tmp_path):
    images = save_images(tmp_path, NAMES)
    truncate(tmp_path / "1.png")
    batches, said = skipped(tmp_path, [floats("x", 2, 3, 4, 4)], preprocessing=RAW)
    assert np.array_equal(whole(batches), RAW(images[[0, 2, 3, 4]])) and len(said) == 2


def test_labels_go_with_the_samples(tmp_path):
    save_images(tmp_path / "cat", NAMES[:3])
    save_images(tmp_path / "dog", NAMES[3:])
    truncate(tmp_path / "cat" / "0.png")
    batches, _ = skipped(tmp_path, preprocessing=RAW)
    assert batches.labels.tolist() == [0, 0, 1, 1, 1] and batches.class_names == ("cat", "dog")
    in_turn, _ = skipped(tmp_path, preprocessing=RAW, limit=3)
    assert [in_turn.name_of(index)[-10:-1] for index in range(3)] == ["cat/1.png", "dog/3.png", "cat/2.png"]
    own, _ = skipped(tmp_path, preprocessing=RAW, labels=[5, 4, 3, 2, 1, 0])
    assert own.labels.tolist() == [4, 3, 2, 1, 0]


@pytest.mark.parametrize("form", ["folder", "dataset"])
@pytest.mark.parametrize("damage", [truncate, empty])
def test_boxes_go_with_the_samples(tmp_path, form, damage):
    images = save_images(tmp_path / "images", NAMES, (8, 8))
    (tmp_path / "labels").mkdir()
    for index in range(6):
        (tmp_path / "labels" / f"{index}.txt").write_text(f"{index} 0.5 0.5 0.5 0.5\n")
    damage(tmp_path / "images" / "2.png")
    data = tmp_path
    if form == "dataset":
        pytest.importorskip("yaml")
        data = tmp_path / "toy.yaml"
        data.write_text("path: .\nval: images\nnc: 6\n")
    batches, _ = skipped(data, preprocessing=RAW, limit=4)
    assert np.array_equal(whole(batches), RAW(images[[0, 1, 3, 4]]))
    assert batches.labels[:, 0, 4].tolist() == [0, 1, 3, 4]


def test_a_worker_reads_the_same_samples(tmp_path):
    images = save_images(tmp_path, NAMES)
    truncate(tmp_path / "0.png")
    batches, _ = skipped(tmp_path, preprocessing=RAW, batch_size=3)
    order = [batch.tolist() for batch in batches.source.batches(3)]
    elsewhere = pickle.loads(pickle.dumps(batches.source))
    assert order == [[1, 2, 3], [4, 5]]
    read = [elsewhere.read(np.array(batch))[0]["x"] for batch in order]
    assert np.array_equal(np.concatenate(read), RAW(images[1:]))


@pytest.mark.parametrize("ending", ["npy", "npz"])
@pytest.mark.parametrize("rows", [1, 2])
def test_array_files(tmp_path, ending, rows):
    x = vectors(5 * rows)
    for index in range(5):
        block = x[index * rows : (index + 1) * rows]
        path = tmp_path / f"{index}.{ending}"
        if ending == "npy":
            np.save(path, block)
        else:
            np.savez(path, x=block, labels=np.arange(index * rows, (index + 1) * rows))
    bad = tmp_path / f"1.{ending}"
    bad.write_bytes(bad.read_bytes()[:100])
    with pytest.raises(CalibrationDataError, match=rf"1\.{ending}.*skip_bad=True"):
        open_batches(tmp_path, [VECTOR])
    batches, said = skipped(tmp_path, [VECTOR], batch_size=2)
    kept = [row for row in range(5 * rows) if row // rows != 1]
    assert np.array_equal(whole(batches), x[kept])
    assert batches.labels is None if ending == "npy" else batches.labels.tolist() == kept
    assert len(said) == 1 and bad.name in said[0] and "1 file" in said[0]
    own, _ = skipped(tmp_path, [VECTOR], labels=np.arange(5 * rows) + 7)
    assert own.labels.tolist() == [row + 7 for row in kept]


def test_array_files_that_are_all_bad_are_refused(tmp_path):
    for index in range(3):
        empty(tmp_path / f"{index}.npz")
    with pytest.raises(CalibrationDataError, match=r"3 files.*0\.npz"):
        skipped(tmp_path, [VECTOR])


def test_one_file_that_is_the_data_is_refused_without_that_advice(tmp_path):
    empty(tmp_path / "a.npz")
    with pytest.raises(CalibrationDataError, match=r"a\.npz") as refusal:
        skipped(tmp_path / "a.npz", [VECTOR])
    assert "skip_bad" not in str(refusal.value)


@pytest.fixture
def digits(tmp_path):
    """Images for the demo network in folders of classes, of which one is damaged; gives their folder."""
    for label in range(10):
        save_images(tmp_path / "digits" / str(label), NAMES[:3], (8, 8))
    truncate(tmp_path / "digits" / "4" / "1.png")
    return tmp_path / "digits"


def named(kept, path):
    """How many of the warnings that a result keeps name a file."""
    return sum(str(path) in warning for warning in kept)


def test_public_calls(digits, tmp_path):
    bad = digits / "4" / "1.png"
    with pytest.raises(CalibrationDataError, match="skip_bad=True"):
        trtint8.calibrate(DEMO_MODEL, digits, preprocessing=PREPARED)
    with pytest.warns(UserWarning):
        table = trtint8.calibrate(
            DEMO_MODEL, digits, preprocessing=PREPARED, skip_bad=True, output=tmp_path / "t.json"
        )
    assert table.provenance.samples == 29 and named(table.warnings, bad) == 1
    assert named(json.loads((tmp_path / "t.json").read_text())["warnings"], bad) == 1
    quantized = trtint8.quantize(DEMO_MODEL, table)
    with pytest.raises(CalibrationDataError, match="skip_bad=True"):
        trtint8.validate(quantized, digits, reference=DEMO_MODEL)
    with pytest.warns(UserWarning):
        accuracy = trtint8.validate(quantized, digits, reference=DEMO_MODEL, skip_bad=True)
    assert accuracy.samples == 29 and named(accuracy.warnings, bad) == 1
    with pytest.warns(UserWarning):
        measured = trtint8.measure_sensitivity(DEMO_MODEL, table, digits, skip_bad=True)
    assert named(measured.warnings, bad) == 1
    with pytest.warns(UserWarning):
        tuned = trtint8.tune(
            DEMO_MODEL, digits, digits, metric="sqnr", minimum=1, preprocessing=PREPARED, skip_bad=True
        )
    assert named(tuned.warnings, bad) >= 1
    with pytest.warns(UserWarning, match=r"1\.png"):
        trtint8.quantize(DEMO_MODEL, table, equalize=digits, skip_bad=True)


def test_what_was_taken_is_what_sound_files_alone_give(digits):
    with pytest.warns(UserWarning):
        table = trtint8.calibrate(DEMO_MODEL, digits, preprocessing=PREPARED, skip_bad=True)
    (digits / "4" / "1.png").unlink()
    alone = trtint8.calibrate(DEMO_MODEL, digits, preprocessing=PREPARED)
    assert table.amax == alone.amax and table.provenance.data == alone.provenance.data


def test_verbs(digits, tmp_path, capsys):
    table, model = str(tmp_path / "t.json"), str(DEMO_MODEL)
    assert main(["calibrate", model, str(digits), "-o", table, "--scale=1/255"]) == 2
    assert "--skip-bad" in capsys.readouterr().err
    assert main(["calibrate", model, str(digits), "-o", table, "--scale=1/255", "--skip-bad"]) == 0
    assert str(digits / "4" / "1.png") in capsys.readouterr().err
    int8 = str(tmp_path / "int8.onnx")
    assert main(["quantize", model, table, "-o", int8]) == 0
    validate = ["validate", int8, str(digits), "--reference", model, "--json"]
    capsys.readouterr()
    assert main([*validate, "--skip-bad"]) == 0
    assert named(json.loads(capsys.readouterr().out)["warnings"], "1.png") == 1


def test_without_samples_it_is_refused(tmp_path, digits):
    with pytest.warns(UserWarning):
        table = trtint8.calibrate(DEMO_MODEL, digits, preprocessing=PREPARED, skip_bad=True)
    with pytest.raises(trtint8.ModelError, match="skip_bad"):
        trtint8.quantize(DEMO_MODEL, table, skip_bad=True)
    with pytest.raises(CalibrationDataError, match="skip_bad"):
        trtint8.build_int8_engine(DEMO_MODEL, table, tmp_path / "m.engine", skip_bad=True)
