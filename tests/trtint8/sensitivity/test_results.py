import dataclasses
import json
import math

import numpy as np
import pytest

import trtint8
from calibrators.errors import CalibrationDataError, OutputError, TableError
from calibrators.host.checkpoint import Checkpoint
from calibrators.operators import Shown
from calibrators.tables.choice import FloatLayers
from calibrators.tables.table import CalibrationTable
from tests.calibrators.host.checkpoint_files import document_of, sealed
from tests.trtint8.onnx_models import Shaped
from tests.trtint8.report.samples import SENSITIVITY
from tests.trtint8.sensitivity.measuring import SPLIT, measured
from trtint8.models.outputs.picked import ShownPicks
from trtint8.sensitivity.effects import EffectMeter
from trtint8.sensitivity.local import LocalMeter
from trtint8.sensitivity.results import SENSITIVITY as CHECKPOINT_SENSITIVITY
from trtint8.sensitivity.results import Measured, Sensitivity
from trtint8.validation.fidelity import PicksMeter


@pytest.fixture
def path(tmp_path):
    return SENSITIVITY.save(tmp_path / "s.json")


def test_round_trip(path):
    assert Sensitivity.load(path) == SENSITIVITY
    document = json.loads(path.read_bytes())
    assert next(iter(document.items())) == ("format", "trtint8-sensitivity")
    assert document["layers"][2]["only"]["sqnr_db"] == "inf"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda d: d["layers"][0].pop("only"), "Object missing required field `only` - at `$.layers[0]`"),
        (
            lambda d: d["layers"][1]["only"].update(sqnr_db="loud"),
            "Expected `float`, got `str` - at `$.layers[1].only.sqnr_db`",
        ),
        (
            lambda d: d["quantized"]["interval_db"].pop(),
            "Expected `array` of length 2, got 1 - at `$.quantized.interval_db`",
        ),
        (
            lambda d: d["quantized"]["drop"].update(p_value=1.5),
            "Expected `float` <= 1.0 - at `$.quantized.drop.p_value`",
        ),
        (lambda d: d["reference_top1"].update(count=-1), "Expected `int` >= 0 - at `$.reference_top1.count`"),
        (lambda d: d.update(samples=0), "Expected `int` >= 1 - at `$.samples`"),
        (lambda d: d.update(surplus=0), "Object contains unknown field `surplus`"),
        (lambda d: d.update(format="other"), 'it has no "format": "trtint8-sensitivity"'),
    ],
)
def test_wrong_fields_are_named(path, change, problem):
    document = json.loads(path.read_bytes())
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(TableError) as caught:
        Sensitivity.load(path)
    assert str(caught.value) == (
        f"'{path}' is no result of 'trtint8 sensitivity' ({problem}); measure again, or give its output"
    )


def test_a_missing_file(tmp_path):
    with pytest.raises(TableError) as caught:
        Sensitivity.load(tmp_path / "s.json")
    assert f"'{tmp_path / 's.json'}'" in str(caught.value)


@pytest.mark.slow
def test_a_result_survives_its_file(table, tmp_path):
    found = measured(table, limit=32)
    assert Sensitivity.load(found.save(tmp_path / "s.json")) == found
    exact = CalibrationTable({"x": 127.0})
    g = Shaped(quantized=False)
    weights = g.constant(np.eye(2, dtype=np.float32) * 127)
    model = g.model({"x": ["N", 2]}, g.op("MatMul", ["x", weights], "layer"))
    found = trtint8.measure_sensitivity(model, exact, np.ones((4, 2), np.float32), progress=False)
    assert found.quantized.sqnr_db == found.layers[0].weights_db == math.inf
    assert found.layers[0].noise_share == 0.0
    assert Sensitivity.load(found.save(tmp_path / "s.json")) == found


@pytest.mark.parametrize("content", [b"{}", b"[]", b"\xff", b'{"format": "trtint8-sensitivity"}'])
def test_a_file_that_is_no_result(tmp_path, content):
    (tmp_path / "s.json").write_bytes(content)
    with pytest.raises(TableError, match="is no result of 'trtint8 sensitivity'"):
        Sensitivity.load(tmp_path / "s.json")


def test_the_text_is_one_line():
    assert repr(SENSITIVITY).startswith(
        "<Sensitivity: 3 layers, all layers in INT8 26.0 dB, 128 samples; "
        "96 of them show the effect of a single layer, worst '"
    )
    assert "\n" not in repr(SENSITIVITY)


def test_layers_that_the_table_keeps_in_float_have_no_entry_and_are_named(table, tmp_path):
    kept = dataclasses.replace(table, float_layers=FloatLayers(("/fc/Gemm",), 0.01))
    found = measured(kept, limit=16)
    assert found.in_float == ("/fc/Gemm",) and len(found.layers) == len(measured(table, limit=16).layers) - 1
    assert "1 in float" in repr(found) and "1 in float" in found._repr_html_()
    assert Sensitivity.load(found.save(tmp_path / "s.json")) == found


def test_samples_that_all_show_single_layers_are_not_told_apart():
    assert dataclasses.replace(SENSITIVITY, shown=128).samples_text == "128 samples"
    assert dataclasses.replace(SENSITIVITY, samples=5000, shown=1350).samples_text == (
        "5,000 samples; 1,350 of them show the effect of a single layer"
    )


def test_a_notebook_shows_the_worst_layer_first():
    page = SENSITIVITY._repr_html_()
    first, second, third = (page.index(f">{text} %<") for text in ("75.0", "20.0", "5.0"))
    assert first < second < third
    assert '<rect width="26.7"' in page  # 0.2 of 0.75
    assert "2.0 % of &#x27;images&#x27; lies beyond its range" in page and ">exact</td>" in page
    assert "<script" not in page and "</script" not in page


def test_the_picture_has_the_layers_that_were_measured():
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (pip install 'trtint8[notebook]')")
    picture = SENSITIVITY.plot()
    assert picture.title == "SQNR from layer to layer, 3 layers in INT8" and "var(--accent)" in picture.svg


def test_the_data_frame_has_the_layers_in_their_order():
    pytest.importorskip("pandas", reason="pandas is not installed (pip install 'trtint8[notebook]')")
    frame = SENSITIVITY.to_pandas()
    assert frame["alone_db"].tolist() == [40.0, 30.0, math.inf]
    assert frame["noise_share"].tolist() == [0.2, 0.75, 0.05]
    assert frame["weights_db"].isna().tolist() == [False, False, True]


def test_a_file_of_another_kind_is_not_replaced(tmp_path):
    data = tmp_path / "data.npz"
    data.write_bytes(b"kept")
    with pytest.raises(OutputError, match=r"data\.npz' does not end in \.json, as that of a JSON file does;"):
        SENSITIVITY.save(data)
    assert data.read_bytes() == b"kept"


IDENTITY = {"model": "abc", "table": "def", "keep_float": [], "batch_size": None}

#: Samples, sums of squares and of products, samples whose class is known and stays, samples that show the
#: noise and what drawing them adds, and how many samples had which class.
SUMS = [16.0, 1.5, 2.0, 0.25, 0.5, 0.5, -0.75, 1.5, 16.0, 12.0, 8.0, 4.0, 0.1, 0.2, 0.0, 0.0, 0.0, 0.0]

DOCUMENT = {
    "format": "trtint8-checkpoint",
    "version": 1,
    "kind": "sensitivity",
    "identity": IDENTITY,
    "progress": {
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
        "local": {"samples": 16, "sums": {"conv": [1.0] * 5}, "channels": {"conv": [0.1]}},
        "labels": "another fingerprint",
        "picks": {"peaks": [10, 3, 1, 3], "lists": None},
    },
}

LABELS = SPLIT.heldout_labels[:48]
#: The same labels, of which the first two, which differ, belong to each other's samples.
SWAPPED = LABELS[[1, 0, *range(2, 48)]]


def _checkpoint(path, **identity):
    return Checkpoint(path, {**IDENTITY, **identity}, CHECKPOINT_SENSITIVITY, resume=True)


@pytest.fixture
def kept(tmp_path):
    """Writes a checkpoint of other progress than the document above has."""

    def write(identity=None, **progress):
        path = tmp_path / "c.json"
        path.write_bytes(sealed({**DOCUMENT, "progress": {**DOCUMENT["progress"], **progress}}))
        return _checkpoint(path, **identity or {})

    return write


def test_a_file_is_read_and_written_back_the_same(kept):
    checkpoint = kept()
    measured = checkpoint.load()
    assert (measured.samples, measured.data, measured.labels) == (16, "fingerprint", "another fingerprint")
    np.testing.assert_array_equal(measured.effects.sums, [SUMS])
    checkpoint.save(measured)
    assert document_of(checkpoint.path) == DOCUMENT


def test_a_file_without_counts_of_picks_goes_on_where_nothing_is_picked(tmp_path):
    progress = {name: value for name, value in DOCUMENT["progress"].items() if name != "picks"}
    (tmp_path / "c.json").write_bytes(sealed({**DOCUMENT, "progress": progress}))
    measured = _checkpoint(tmp_path / "c.json").load()
    measured.check_picks(PicksMeter([]))
    with pytest.raises(TableError):
        measured.check_picks(PicksMeter([ShownPicks("peaks", "Equal", Shown.MASK)]))


def test_another_measurement_is_refused(kept):
    with pytest.raises(TableError, match=r"made with another batch size \(None then, 8 now\)"):
        kept({"batch_size": 8}).load()


def _sums(column, value):
    return {"sums": [[value if i == column else number for i, number in enumerate(SUMS)]]}


@pytest.mark.parametrize(
    ("part", "change", "problem"),
    [
        ("meter", _sums(0, -16.0), "a number of samples in it is none"),
        ("meter", _sums(9, 12.5), "a number of samples in it is none"),
        ("meter", _sums(10, 8.5), "a number of samples in it is none"),
        ("meter", _sums(17, "nan"), "a number of samples in it is none"),
        ("meter", _sums(3, -0.25), "a sum of squares in it is negative"),
        ("meter", _sums(0, 1e300), "a number of samples in it is none"),
        ("meter", _sums(0, "inf"), "a number of samples in it is none"),
        ("meter", _sums(1, "nan"), "a sum of squares in it is negative, or not finite"),
        ("meter", _sums(3, "inf"), "a sum of squares in it is negative, or not finite"),
        ("meter", _sums(6, "nan"), "a sum of squares in it is negative, or not finite"),
        ("meter", _sums(6, 1.6), "a product of outputs in it is larger than both"),
        ("meter", _sums(8, 11.0), "more samples in it have a class than were judged"),
        ("meter", {**_sums(14, 17.0), "labelled": True}, "more samples in it have a class than were"),
        ("meter", {"labelled": True}, "samples in it were judged, and none has a class"),
        ("meter", _sums(10, 17.0), "more samples in it show the noise than there are"),
        ("meter", {"labelled": True, "classes": False}, "it has labels without classes"),
        (
            "meter",
            {"variants": [["all", ""]] * 2, "sums": [SUMS] * 2},
            r"its sums have the shape|stands twice",
        ),
        ("meter", {"variants": [["only", "conv"]]}, "that of all layers is missing"),
        ("meter", {"variants": []}, "its sums have the shape"),
        ("meter", {"scales": {"y": 0.0}}, r"Expected `float` > 0.0"),
        ("meter", {"scales": {"y": "nan"}}, r"Expected `float` > 0.0"),
        ("local", {"sums": {"conv": [1.0, -1.0, 1.0, 1.0, 1.0]}}, "a sum of squares, or a magnitude"),
        ("local", {"channels": {"conv": [0.5, -0.5]}}, "a sum of squares, or a magnitude"),
        ("local", {"channels": {"other": [0.5]}}, "channels of a layer without sums"),
        ("meter", {"sums": [[1.0]]}, r"its sums have the shape \(1, 1\) instead of \(1, 18\)"),
        ("meter", {"sums": [SUMS, SUMS]}, r"its sums have the shape \(2, 18\) instead of \(1, 18\)"),
        ("meter", {"scales": {"y": -1.0}}, r"Expected `float` > 0.0 - at `\$.meter.scales\[...\]`"),
        ("meter", {"scales": {}}, r"Expected `object` of length >= 1 - at `\$.meter.scales`"),
        ("local", {"samples": 1.5}, r"Expected `int`, got `float` - at `\$.local.samples`"),
        ("local", {"sums": {"conv": [1.0]}}, r"Expected `array` of length 5, got 1"),
        *(
            ("picks", {"peaks": counts}, "")
            for counts in ([10, 3, -1, 3], [10, 3, 11, 3], [10, 2, 1, 3], [10, 5, 1, 3], [10, 3], 3)
        ),
        *(
            ("samples", samples, "Expected `int`.*remove it to begin anew")
            for samples in (-16, 16.5, "x", None)
        ),
    ],
)
def test_numbers_that_no_measurement_makes_are_refused(part, change, problem, kept):
    known = DOCUMENT["progress"][part]
    checkpoint = kept(**{part: {**known, **change} if isinstance(known, dict) else change})
    with pytest.raises(TableError, match=f"cannot read the checkpoint .*{problem}"):
        checkpoint.load()


def test_other_layers_are_refused(kept):
    measured = kept().load()
    measured.check_layers(["conv"], [("all", "")])
    for names, variants in ((["other"], [("all", "")]), (["conv"], [("all", ""), ("only", "conv")])):
        with pytest.raises(TableError, match="the checkpoint is of other layers than those of the model"):
            measured.check_layers(names, variants)


@pytest.mark.parametrize("content", [b"", b"[]", sealed([]), sealed({}), sealed({"identity": {}})])
def test_another_file_is_refused(content, tmp_path):
    path = tmp_path / "c.json"
    path.write_bytes(content)
    with pytest.raises(TableError, match="cannot read the checkpoint"):
        _checkpoint(path).load()


def test_without_a_file_nothing_is_continued(tmp_path):
    checkpoint = _checkpoint(tmp_path / "c.json")
    assert checkpoint.load() is None
    meter = EffectMeter([("all", "")], {"y": 0.5}, classes=False, labelled=False)
    checkpoint.save(Measured(0, "", "", meter, LocalMeter(())))
    assert checkpoint.load().samples == 0
    checkpoint.remove()
    assert checkpoint.load() is None


@pytest.mark.slow
def test_an_interrupted_measurement_goes_on_with_the_same_result(table, tmp_path, monkeypatch):
    monkeypatch.setattr("trtint8.sensitivity.results._SECONDS", 0.0)
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
        assert document["progress"]["samples"] == 16 * count
    assert measured(table, cut_off(None), **options) == whole
    assert not checkpoint.exists()


@pytest.mark.slow
def test_a_checkpoint_of_something_else_is_refused(table, tmp_path, monkeypatch):
    monkeypatch.setattr("trtint8.sensitivity.results._SECONDS", 0.0)
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


def _batches(labels, *, cut_off=False):
    """Three batches of 16 samples; where they are cut off, the third one does not come."""
    for start in (0, 16, 32):
        if cut_off and start == 32:
            raise KeyboardInterrupt
        part = slice(start, start + 16)
        yield {"images": SPLIT.heldout_images[part]} | ({} if labels is None else {"labels": labels[part]})


def _interrupted(table, labels, checkpoint, monkeypatch):
    monkeypatch.setattr("trtint8.sensitivity.results._SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        measured(table, _batches(labels, cut_off=True), labels=None, tolerance_db=0.0, checkpoint=checkpoint)
    return checkpoint.read_bytes()


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ((LABELS + 1) % 10, LABELS),
        (SWAPPED, LABELS),
        (None, LABELS),
        (LABELS, None),
        (LABELS, LABELS.astype(np.float32)),  # which are no class indices, and are not used
    ],
    ids=["others", "swapped", "none before", "none now", "of another kind"],
)
def test_a_checkpoint_of_other_labels_is_refused(then, now, table, tmp_path, monkeypatch):
    """The result would be of both: shares of right classes that neither of the labels give."""
    assert SWAPPED[0] != LABELS[0]
    checkpoint = tmp_path / "c.json"
    kept = _interrupted(table, then, checkpoint, monkeypatch)
    with pytest.raises(CalibrationDataError) as caught:
        measured(table, _batches(now), labels=None, tolerance_db=0.0, checkpoint=checkpoint)
    assert str(caught.value) == (
        "the checkpoint was made with other labels, or without any; give the same, or remove the checkpoint "
        "to begin anew"
    )
    assert checkpoint.read_bytes() == kept


@pytest.mark.parametrize(
    ("then", "now"),
    [
        (LABELS, LABELS.astype(np.uint8)),
        (None, LABELS / 2),  # what is no class index is not used
        (LABELS / 2, LABELS.reshape(-1, 1)),
    ],
    ids=["of another integer type", "no class indices", "no class indices twice"],
)
def test_the_same_labels_continue_a_checkpoint(then, now, table, tmp_path, monkeypatch):
    checkpoint = tmp_path / "c.json"
    _interrupted(table, then, checkpoint, monkeypatch)
    found = measured(table, _batches(now), labels=None, tolerance_db=0.0, checkpoint=checkpoint)
    assert found == measured(table, _batches(then), labels=None, tolerance_db=0.0)
    assert found.samples == 48 and not checkpoint.exists()
