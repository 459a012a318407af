"""What models were made from: by what they say, and by the scales of their tables."""

import dataclasses
import shutil

import numpy as np
import onnx
import pytest

import trtint8
from calibrators.tables.table import CalibrationTable, Provenance
from tests.trtint8.equalization.layers import two_layers
from tests.trtint8.onnx_models import conv_relu_conv
from trtint8.cli.main import main
from trtint8.models.model import load_model, record_calibration, record_float_model
from trtint8.report.facts import find_mismatches, gather
from trtint8.report.files import ReportFiles, find_origins, find_report_files

#: The ranges of the activations of the quantized model, whose scales are all 0.02.
RANGES = {"images": 2.54, "relu_out": 2.54}


def quantized(float_model, data=None):
    """A Q/DQ model that says what it was made from and calibrated with."""
    model = load_model(conv_relu_conv())
    if float_model:
        record_float_model(model.graph_model, float_model)
    record_calibration(model.graph_model, data, 100)
    return model


def built_from(found, qdq_fingerprint, model, data="samples", ranges=RANGES):
    """Files whose engine was built from a model, and whose table is of a model and of samples."""
    engine = dataclasses.replace(
        found.engine, model_fingerprint="qdq", qdq_fingerprint=qdq_fingerprint, table_fingerprint=None
    )
    table = CalibrationTable(ranges, provenance=Provenance(model=model, data=data, samples=100))
    return ReportFiles(found.paths, engine=engine, table=table)


class TestOriginsOfModels:
    def test_an_engine_of_a_qdq_model_is_of_its_float_model(self, found):
        files, qdq = built_from(found, "qdq", "float"), quantized("float")
        origins = find_origins(files, None, qdq)
        assert origins == {"qdq": "float", qdq.fingerprint: "float"}
        assert find_mismatches(files, model_fingerprint="float", origins=origins) == ()
        assert find_mismatches(files, model_fingerprint="other", origins=origins) == (
            "The FP32 model given is of another model than the engine: their numbers do not belong together.",
        )

    def test_an_engine_of_a_qdq_model_that_does_not_say_what_it_is_of(self, found):
        files, qdq = built_from(found, "qdq", "float"), quantized(None)
        assert find_origins(files, None, qdq) == {"qdq": None, qdq.fingerprint: None}
        assert find_origins(files, None, None) == {"qdq": None}
        assert find_mismatches(files, model_fingerprint="float", origins={"qdq": None}) == ()

    def test_an_engine_of_a_float_model(self, found):
        qdq = quantized(None)
        origins = find_origins(built_from(found, "other", "float"), None, qdq)
        assert origins == {"qdq": "qdq", qdq.fingerprint: None}

    def test_a_table_of_changed_weights_is_known_by_its_samples_and_scales(self, found):
        files, qdq = built_from(found, "qdq", "changed"), quantized("float", "samples")
        origins = find_origins(files, None, qdq)
        assert origins == {"qdq": "float", qdq.fingerprint: "float", "changed": "float"}
        assert find_mismatches(files, model_fingerprint="float", origins=origins) == ()
        # Several networks are often calibrated with the same samples.
        for others in ({"data": "others"}, {"ranges": {"images": 2.5, "relu_out": 3.0}}):
            files = built_from(found, "qdq", "changed", **others)
            origins = find_origins(files, None, qdq)
            assert find_mismatches(files, origins=origins) == (
                "The calibration table is of another model than the engine: "
                "their numbers do not belong together.",
            )

    def test_a_table_that_names_no_samples_is_known_by_its_scales(self, found):
        """As one that was tuned from a calibration cache."""
        for ranges, origin in ((RANGES, "float"), ({"images": 1.0}, None)):
            files = built_from(found, "qdq", "changed", data=None, ranges=ranges)
            assert find_origins(files, None, quantized("float")).get("changed") == origin

    def test_the_model_given_may_have_changed_weights(self):
        changed = load_model(conv_relu_conv())
        assert find_origins(ReportFiles({}), changed, None) == {changed.fingerprint: changed.fingerprint}
        record_float_model(changed.graph_model, "float")
        assert find_origins(ReportFiles({}), changed, None) == {changed.fingerprint: "float"}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """What the verbs write of two networks with the same names, of the same samples."""
    folder = tmp_path_factory.mktemp("written")
    paths = {name: str(folder / name) for name in ("d.npz", "held.npz")}
    for seed, path in enumerate(paths.values()):
        samples = np.random.default_rng(seed).standard_normal((64, 6)).astype(np.float32)
        np.savez(path, x=samples)
    for name, uneven in (("one", 100.0), ("two", 3.0)):
        model, table, qdq = (str(folder / f"{name}.{end}") for end in ("onnx", "table.json", "int8.onnx"))
        onnx.save(two_layers(uneven), model)
        trtint8.calibrate(model, paths["d.npz"], method="mse", output=table)
        trtint8.write_quantized(model, table, qdq)
    one = str(folder / "one.onnx")
    table, equalized = folder / "one.table.json", folder / "equalized.onnx"
    trtint8.write_quantized(one, table, equalized, equalize=paths["d.npz"])
    command = ["tune", one, paths["d.npz"], paths["held.npz"], "--metric", "sqnr", "--min", "20"]
    assert main([*command, "-o", str(folder / "tuned.onnx")]) == 0
    return folder


def mismatches(folder, *names, model=None):
    """What a report of files says does not belong together."""
    files = find_report_files([folder / name for name in names])
    original = load_model(folder / model) if model else None
    qdq = files.qdq_model()
    return find_mismatches(
        files,
        model_fingerprint=original.fingerprint if original else None,
        qdq_fingerprint=qdq.fingerprint,
        origins=find_origins(files, original, qdq),
    )


@pytest.mark.parametrize("name", ["equalized", "tuned"])
def test_what_was_made_of_changed_weights_belongs_together(written, name):
    changed = load_model(written / f"{name}.float.onnx").fingerprint
    table = CalibrationTable.load(written / f"{name}.table.json")
    assert table.provenance.model == changed != load_model(written / "one.onnx").fingerprint
    files = (f"{name}.onnx", f"{name}.table.json")
    for model in (None, "one.onnx", f"{name}.float.onnx"):
        assert mismatches(written, *files, model=model) == ()
    assert mismatches(written, f"{name}.onnx", "one.table.json", model="one.onnx") == ()
    assert mismatches(written, *files, model="two.onnx") == (
        "The FP32 model given is of another model than the Q/DQ model: their numbers do not belong together.",
    )


@pytest.mark.parametrize("name", ["equalized", "tuned"])
def test_commands_take_the_float_model_that_the_table_fits(written, tmp_path, monkeypatch, name):
    for path in (*written.glob(f"{name}.*"), written / "held.npz"):
        shutil.copy(path, tmp_path)
    monkeypatch.chdir(tmp_path)

    def lines(model):
        report = gather(find_report_files([f"{name}.onnx", f"{name}.table.json"]), model=model)
        return [one.line for one in (*report.missing, *report.rebuild)]

    words = f"{name}.float.onnx {name}.table.json"
    for model in (written / "one.onnx", written / "two.onnx", None):
        found = lines(model)
        assert f"trtint8 audit {words} --gpu GPU --json > {name}.audit.json" in found
        assert not any(line.startswith("trtint8 calibrate") for line in found)
        (measured,) = [line for line in found if line.startswith("trtint8 sensitivity")]
        assert main(measured.replace("HELDOUT_DATA", "held.npz").split()[1:]) == 0
    (tmp_path / f"{name}.float.onnx").write_bytes(b"damaged")
    assert f"trtint8 sensitivity MODEL.onnx {name}.table.json HELDOUT_DATA -o {name}.sensitivity.json" in (
        lines(written / "one.onnx")
    )


@pytest.mark.parametrize("name", ["one", "equalized", "tuned"])
def test_two_networks_of_the_same_samples_are_told_apart(written, name):
    wanted = (
        "The calibration table is of another model than the Q/DQ model: "
        "their numbers do not belong together.",
    )
    assert mismatches(written, "two.int8.onnx", f"{name}.table.json") == wanted
    assert mismatches(written, "two.int8.onnx", "two.table.json", model="two.onnx") == ()


def test_a_model_without_quantized_activations_has_no_other_scales(found):
    bare = load_model(conv_relu_conv(quantized=False))
    record_calibration(bare.graph_model, "samples", 100)
    assert find_origins(built_from(found, "qdq", "changed"), None, bare)["changed"] is None
