"""The preprocessing of a calibration goes along with table, Q/DQ model and results."""

from __future__ import annotations

import json
import shlex
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest

import trtint8
from tests.trtint8.onnx_models import normal, parsed
from trtint8 import Preprocessing
from trtint8.cli.main import main
from trtint8.report.facts import commands_for_missing, commands_to_rebuild
from trtint8.report.files import find_report_files

KINDS = {
    "mean and std": Preprocessing(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
    "one mean": Preprocessing(mean=(0.5,), std=(0.25,)),
    "default": Preprocessing(),
    "scale": Preprocessing(scale=2 / 255),
    "pixels": Preprocessing(scale=1.0, mean=(123.675, 116.28, 103.53), std=(58.4, 57.1, 57.4)),
    "BGR": Preprocessing(channels="BGR", mean=(0.4, 0.5, 0.6)),
    "resize": Preprocessing(resize=(16, 16)),
    "shorter side and crop": Preprocessing(resize=20, crop=(16, 16)),
    "crop": Preprocessing(crop=(16, 16)),
    "letterbox": Preprocessing(letterbox=(16, 16)),
}


def save_network(shape=(3, 16, 16), moved=""):
    """A convolution and an average, of images of a shape; what is ``moved`` makes them N x C x H x W."""
    weights = 0.2 * normal(8, shape[2] if moved else shape[0], 3, 3)
    body = f"{moved} [conv] c = Conv <pads = [1, 1, 1, 1]> ({'t' if moved else 'x'}, w) "
    size = ", ".join(map(str, shape))
    model = parsed(
        f"float[N, {size}] x", "float[N, 8, 1, 1] y", f"{body} [pool] y = GlobalAveragePool (c)", w=weights
    )
    onnx.save(model, "m.onnx")


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_network()
    drawn = np.random.default_rng(0)
    for name in ("calibration", "heldout"):
        for size, shape in (("", (24, 28)), ("16", (16, 16))):
            np.savez(f"{name}{size}.npz", x=drawn.integers(0, 256, (8, *shape, 3), dtype=np.uint8))
        np.savez(f"{name}32.npz", x=drawn.standard_normal((8, 3, 16, 16), dtype=np.float32))
    return "m.onnx"


def ran(line):
    return main(line.split())


def _sizes(preprocessing):
    return "" if preprocessing.resize or preprocessing.crop or preprocessing.letterbox else "16"


def _quantized(model, preprocessing, size):
    trtint8.calibrate(model, f"calibration{size}.npz", output="t.json", preprocessing=preprocessing)
    trtint8.write_quantized(model, "t.json", "q.onnx")
    return trtint8.CalibrationTable.load("t.json")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_recorded_is_applied(model, kind):
    pytest.importorskip("PIL", reason="Pillow is not installed")
    wanted, size = KINDS[kind], _sizes(KINDS[kind])
    assert _quantized(model, wanted, size).provenance.inputs.preprocessing == wanted
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = trtint8.validate("q.onnx", f"heldout{size}.npz", reference=model)
        given = trtint8.validate("q.onnx", f"heldout{size}.npz", reference=model, preprocessing=wanted)
        trtint8.measure_sensitivity(model, "t.json", f"heldout{size}.npz")
    assert found == given and not found.warnings


@pytest.mark.parametrize("kind", ["scale", "pixels", "BGR"])
def test_other_preprocessing_is_a_warning_that_shows_both(model, kind):
    _quantized(model, KINDS["mean and std"], "16")
    with pytest.warns(UserWarning):
        found = trtint8.validate("q.onnx", "heldout16.npz", reference=model, preprocessing=KINDS[kind])
    assert any(str(KINDS["mean and std"]) in said and str(KINDS[kind]) in said for said in found.warnings)


@pytest.mark.parametrize("verb", ["validate", "sensitivity", "tune", "tune with a judge"])
def test_every_verb_that_reads_samples_warns_of_inputs_far_beyond(model, verb):
    table = _quantized(model, None, "32")
    near = np.load("heldout32.npz")["x"]
    far = {"x": 50 * near}

    def warned(data, **options):
        if verb == "validate":
            return trtint8.validate("q.onnx", data, reference=model).warnings
        if verb == "sensitivity":
            return trtint8.measure_sensitivity(model, table, data).warnings
        return trtint8.tune(model, table, data, metric="sqnr", minimum=1, batch_size=2, **options).warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if verb == "tune with a judge":
            said = warned({"x": near}, judge=far)
        else:
            said = warned(far)
            assert not [one for one in warned({"x": near}) if "'x'" in one]
    assert len([one for one in said if "'x'" in one]) == 1


#: Calls that read samples with ``more``, after a calibration with other preprocessing.
HELD = "heldout16.npz"
USES = {
    "validate": partial(trtint8.validate, "q.onnx", HELD, reference="m.onnx"),
    "validate several": partial(
        trtint8.validate, "q.onnx", HELD, reference="m.onnx", also={"same": "q.onnx"}
    ),
    "arithmetic": partial(trtint8.validate, "m.onnx", HELD, arithmetic="explicit", table="t.json"),
    "sensitivity": partial(trtint8.measure_sensitivity, "m.onnx", "t.json", HELD),
    "tune": partial(trtint8.tune, "m.onnx", "t.json", HELD, metric="sqnr", minimum=1),
    "equalize": partial(trtint8.write_quantized, "m.onnx", "t.json", "e.onnx", equalize=HELD),
    "round": partial(trtint8.write_quantized, "m.onnx", "t.json", "r.onnx", rounding=HELD),
    "report": partial(trtint8.write_report, ["q.onnx"], "r.html", model="m.onnx", data=HELD),
    "deploy": partial(trtint8.deploy, "q.onnx", "triton", "there"),
}


@pytest.mark.parametrize("use", USES)
def test_other_preprocessing_is_a_warning_once(model, use):
    """Where a validation compares several models of one calibration, too."""
    wanted, other = KINDS["mean and std"], KINDS["BGR"]
    _quantized(model, wanted, "16")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        USES[use](preprocessing=other)
    found = [str(one.message) for one in said if str(other) in str(one.message)]
    assert len(found) == 1 and str(wanted) in found[0]


def test_a_report_warns_of_inputs_far_beyond(model):
    _quantized(model, None, "32")
    far = {"x": 50 * np.load("heldout32.npz")["x"]}
    with pytest.warns(UserWarning, match="'x' has values up to"):
        trtint8.write_report(["q.onnx"], "r.html", model=model, data=far)


def test_arrays_have_no_preprocessing_and_images_after_them_need_one(model):
    assert _quantized(model, None, "32").provenance.inputs.preprocessing == "none"
    trtint8.validate("q.onnx", "heldout16.npz", reference=model, preprocessing=Preprocessing())
    with pytest.raises(trtint8.CalibrationDataError):
        trtint8.validate("q.onnx", "heldout16.npz", reference=model)


@pytest.mark.filterwarnings("ignore:the channels of 'm.onnx' are even enough")
@pytest.mark.parametrize("least", [0.01, 10])
def test_an_equalized_network_keeps_it_in_files_that_fit_each_other(model, least):
    """Also if nothing is equalized, and if the network is prepared in two steps, as one with two Casts is."""
    uneven = normal(8, 3, 3, 3) * np.geomspace(least, 10, 8, dtype=np.float32)[:, None, None, None]
    body = (
        "[first] a = Conv (x, w) r = Relu (a) h = Identity (r) [second] b = Conv (h, v) "
        "s = Shape (x) i = Gather (s, zero) j = Cast <to = 7> (i) k = Cast <to = 7> (j) "
        "n = Concat <axis = 0> (k, rest) y = Reshape (b, n)"
    )
    constants = {"zero": np.array([0]), "rest": np.array([-1])}
    weights = {"w": uneven, "v": normal(4, 8, 3, 3)}
    onnx.save(parsed("float[N, 3, 16, 16] x", "float[N, M] y", body, **weights, **constants), model)
    raw = KINDS["mean and std"]
    trtint8.calibrate(model, "calibration16.npz", output="t.json", preprocessing=raw, method="mse")
    trtint8.write_quantized(model, "t.json", "q.onnx", equalize="calibration16.npz")
    assert trtint8.CalibrationTable.load("q.table.json").provenance.inputs.preprocessing == raw
    assert trtint8.validate("q.onnx", "heldout16.npz", reference=model).outputs[0].sqnr_db > 25
    anew = trtint8.quantize("q.float.onnx", "q.table.json")
    assert anew.graph.initializer == onnx.load("q.onnx").graph.initializer  # scales among them


def test_prepared_arrays_are_fed_as_they_are_after_images(model):
    _quantized(model, KINDS["one mean"], "16")
    assert trtint8.validate("q.onnx", "heldout32.npz", reference=model).samples == 8


def test_files_of_version_0_2_have_none_and_are_read(model):
    _quantized(model, Preprocessing(), "16")
    document = json.loads(Path("t.json").read_text())
    for name in ("inputs", "warnings"):
        del document[name]
    Path("t.json").write_text(json.dumps(document))
    table = trtint8.CalibrationTable.load("t.json")
    assert table.provenance.inputs is None and table.warnings == ()
    trtint8.write_quantized(model, "t.json", "q.onnx")
    assert not [one for one in onnx.load("q.onnx").metadata_props if "inputs" in one.key]
    with pytest.raises(trtint8.CalibrationDataError):
        trtint8.validate("q.onnx", "heldout16.npz", reference=model)


@pytest.mark.parametrize(
    "hostile",
    [
        {"std": [0]},
        {"scale": "1"},
        {"mean": [1, 2]},
        {"layout": "HWC"},
        {"crop": [-1, 5]},
        {"resize": 1e400},
        7,
    ],
)
def test_hostile_preprocessing_is_refused(model, hostile):
    _quantized(model, Preprocessing(), "16")
    document = json.loads(Path("t.json").read_text())
    document["inputs"]["preprocessing"] = hostile
    Path("t.json").write_text(json.dumps(document))
    with pytest.raises(trtint8.TableError):
        trtint8.CalibrationTable.load("t.json")
    damaged = onnx.load("q.onnx")
    for entry in damaged.metadata_props:
        if entry.key == "trtint8.calibrated_inputs":
            entry.value = json.dumps({"preprocessing": hostile})
    with pytest.raises(trtint8.ModelError):
        trtint8.validate(damaged, "heldout16.npz", reference=model)


def test_warnings_of_a_calibration_are_kept_and_printed(model, capsys):
    assert ran("calibrate m.onnx random:8 -o r.json --json") == 0
    printed = json.loads(capsys.readouterr().out)["warnings"]
    kept = trtint8.CalibrationTable.load("r.json").warnings
    assert kept and set(kept) <= set(printed)


#: Networks that take images in other forms: the shape of an input, of raw images, and how they are prepared.
FORMS = {
    "NHWC": (
        (16, 16, 3),
        (24, 28, 3),
        Preprocessing(resize=(16, 16), layout="NHWC", std=(0.2, 0.3, 0.4)),
    ),
    "one channel": ((1, 16, 16), (16, 16, 1), Preprocessing(mean=(0.3,), std=(0.38,))),
    "letterbox": ((3, 16, 16), (12, 28, 3), Preprocessing(letterbox=(16, 16), channels="BGR")),
}


@pytest.fixture(params=FORMS)
def form(request, tmp_path, monkeypatch):
    """A network with images for it, and the preprocessing."""
    pytest.importorskip("PIL", reason="Pillow is not installed")
    monkeypatch.chdir(tmp_path)
    shape, image, preprocessing = FORMS[request.param]
    moved = "t = Transpose <perm = [0, 3, 1, 2]> (x)" if shape[2] == 3 else ""
    save_network(shape, moved)
    drawn = np.random.default_rng(0)
    for name in ("calibration", "heldout"):
        np.savez(f"{name}.npz", x=drawn.integers(0, 256, (8, *image), dtype=np.uint8))
    return preprocessing


def _as_options(preprocessing):
    names = ("resize", "letterbox", "mean", "std", "layout", "channels")
    Path("preprocess.json").write_text(json.dumps({name: getattr(preprocessing, name) for name in names}))
    return "--preprocess preprocess.json"


def test_an_engine_keeps_the_preprocessing_for_all_that_use_it(form, rtx, capsys):
    options = "--target rtx --compute-capability 8.9 --keep-int8 *"
    pre = _as_options(form)
    assert ran(f"build m.onnx calibration.npz -o m.engine {options} {pre} --json") == 0
    assert not json.loads(capsys.readouterr().out)["warnings"]
    assert trtint8.read_engine_info("m.engine").calibrated_inputs.preprocessing == form
    printed = []
    for more in ("", pre):
        assert ran(f"validate m.engine heldout.npz --reference m.onnx --json {more}") == 0
        printed.append(json.loads(capsys.readouterr().out))
    kept, given = printed
    assert given == kept and not kept["warnings"]
    assert kept["outputs"][0]["sqnr_db"] > 25
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trtint8.deploy("m.engine", "triton", "kept")
        trtint8.deploy("m.engine", "triton", "given", preprocessing=form)
    for path in sorted(Path("given").rglob("*")):
        if path.is_file():
            assert (Path("kept") / path.relative_to("given")).read_bytes() == path.read_bytes()
    # Another build from the table that is beside the engine says the same.
    assert ran(f"build m.onnx m.table.json -o again.engine {options}") == 0
    assert trtint8.read_engine_info("again.engine").calibrated_inputs.preprocessing == form
    assert ran("audit m.onnx m.table.json --gpu RTX4090 --json") == 0


@pytest.mark.parametrize("kept", ["table", "qdq"])
def test_the_commands_of_a_report_name_the_preprocessing(form, kept):
    trtint8.calibrate("m.onnx", "calibration.npz", output="m.table.json", preprocessing=form)
    trtint8.write_quantized("m.onnx", "m.table.json", "m.qdq.onnx")
    files = find_report_files(["m.table.json" if kept == "table" else "m.qdq.onnx"])
    commands = [
        *commands_to_rebuild(files, model="m.onnx", table_model="m.onnx"),
        *commands_for_missing(files, model=None, table_model=None, with_worst=True),
    ]
    (line,) = [one.line for one in commands if " calibrate " in one.line]
    places = {"CALIBRATION_DATA": "calibration.npz", "MODEL.onnx": "m.onnx"}
    _, *arguments = [places.get(word, word) for word in shlex.split(line)]
    arguments[arguments.index("-o") + 1] = "again.json"
    assert main(arguments) == 0
    table = trtint8.CalibrationTable.load("again.json")
    assert table.provenance.inputs.preprocessing == form
    assert table.amax == trtint8.CalibrationTable.load("m.table.json").amax
