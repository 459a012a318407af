"""What verbs print with --json is what the site's schema says."""

import argparse
import dataclasses
import importlib
import json
import math

import numpy as np
import onnx
import pytest

from tests.trtint8.equalization.layers import two_layers
from tests.trtint8.report.samples import ACCURACY, bench_report
from trtint8.cli.main import VERBS, main
from trtint8.cli.output import print_json
from trtint8.data import DEMO_MODEL, load_digits_split
from trtint8.runtime.bench import Benchmarks
from trtint8.validation.accuracy import Measure

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
pytest.importorskip("griffe", reason="MkDocs is not installed (pip install 'trtint8[docs]')")


@pytest.fixture(scope="module")
def documented():
    """The module that makes the schema."""
    return importlib.import_module("docs.extensions.json_output")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the demo's model, data and table, and those of a model with an outlier channel."""
    pytest.importorskip("sklearn", reason="scikit-learn is not installed (pip install 'trtint8[demo]')")
    folder, split = tmp_path_factory.mktemp("json"), load_digits_split()
    (folder / "digits.onnx").write_bytes(DEMO_MODEL.read_bytes())
    np.savez(folder / "calibration.npz", images=split.calibration_images[:100])
    np.savez(folder / "heldout.npz", images=split.heldout_images[:64], labels=split.heldout_labels[:64])
    onnx.save(two_layers(), folder / "uneven.onnx")
    np.savez(folder / "uneven.npz", x=np.random.default_rng(0).standard_normal((64, 6)).astype(np.float32))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["calibrate", "uneven.onnx", "uneven.npz", "-o", "uneven.table.json"]) == 0
        assert main(["calibrate", "digits.onnx", "calibration.npz", "-o", "digits.table.json"]) == 0
        assert main(["quantize", "digits.onnx", "digits.table.json", "-o", "int8.onnx"]) == 0
        assert main(["table", "set", "digits.table.json", "images=9", "-o", "changed.json"]) == 0
        assert main(["table", "convert", "digits.table.json", "digits.cache"]) == 0
    return folder


def check(documented, verb, printed):
    """Validates a value, and looks for fields that are not described."""
    schema = documented.schema()
    value = json.loads(printed)
    found = {**schema, "$ref": f"#/$defs/verb {verb}".replace(" ", "%20")}
    jsonschema.Draft202012Validator(found).validate(value)
    definition = schema["$defs"][f"verb {verb}"]
    if "$ref" in definition:
        described = schema["$defs"][definition["$ref"].rsplit("/")[-1]]["properties"]
        assert value.keys() <= described.keys()
    return value


def run(documented, capsys, folder, monkeypatch, verb, arguments):
    monkeypatch.chdir(folder)
    capsys.readouterr()
    assert main([*verb.split(), *arguments.split(), "--json"]) == 0
    return check(documented, verb, capsys.readouterr().out)


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [
        ("doctor", ""),
        ("calibrate", "digits.onnx calibration.npz -o again.json"),
        ("calibrate", "digits.onnx calibration.npz -o mse.json --method mse"),
        ("quantize", "digits.onnx digits.table.json -o q.onnx --float16"),
        ("quantize", "uneven.onnx uneven.table.json -o e.onnx --equalize uneven.npz"),
        ("lint", "int8.onnx"),
        ("lint", "int8.onnx --fix -o mended.onnx"),
        ("migrate", "digits.onnx digits.cache -o migrated.onnx --no-proof"),
        ("validate", "int8.onnx heldout.npz --reference digits.onnx --also same=int8.onnx"),
        ("sensitivity", "digits.onnx digits.table.json heldout.npz"),
        ("tune", "digits.onnx calibration.npz heldout.npz -o t.onnx --batch-size 16 --no-round-weights"),
        ("table show", "digits.table.json"),
        ("table show", "digits.cache"),
        ("table diff", "digits.table.json changed.json"),
        ("compare", "digits.table.json changed.json"),
    ],
)
def test_verbs_print_what_the_schema_says(documented, capsys, folder, monkeypatch, verb, arguments):
    assert run(documented, capsys, folder, monkeypatch, verb, arguments)


def test_build_prints_what_the_schema_says(documented, capsys, folder, monkeypatch):
    pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")
    arguments = "digits.onnx digits.table.json -o d.engine --compute-capability 8.6 --keep-int8 *"
    printed = run(documented, capsys, folder, monkeypatch, "build", arguments)
    assert len(printed["quantized_nodes"]) == 9
    seconds, half = (printed["expected"][name] for name in ("seconds", "fp16_seconds"))
    shares = [one / other for one, other in zip(seconds, half, strict=True)]
    assert printed["expected"]["of_fp16"] == sorted(shares)
    printed = run(documented, capsys, folder, monkeypatch, "deploy", "d.engine --to docker -o docker")
    assert "docker/Dockerfile" in printed["files"]


def test_deploy_prints_what_the_schema_says(documented, capsys, folder, monkeypatch):
    pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")
    monkeypatch.chdir(folder)
    command = "build digits.onnx digits.table.json -o deployed.engine --compute-capability 8.6"
    assert main(command.split()) == 0
    printed = run(documented, capsys, folder, monkeypatch, "deploy", "deployed.engine --to cpp -o cpp")
    assert (printed["to"], len(printed["files"]) > 2) == ("cpp", True)


def test_an_audit_prints_what_the_schema_says(documented, capsys, folder, monkeypatch):
    pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")
    arguments = "digits.onnx digits.table.json --gpu A10 --target rtx"
    printed = run(documented, capsys, folder, monkeypatch, "audit", arguments)
    assert [engine["precision"] for engine in printed["engines"]] == ["FP32", "FP16", "INT8", "INT8+FP16"]


def test_measurements_are_as_the_schema_says(documented, capsys):
    print_json(Benchmarks("a GPU", "random", (bench_report("INT8", 100, 1.0),)))
    assert check(documented, "bench", capsys.readouterr().out)["reports"][0]["warnings"] is not None


def test_infinite_metrics_are_as_the_schema_says(documented, capsys):
    measure = Measure("psnr", -math.inf, math.inf, unit="dB")
    print_json(dataclasses.replace(ACCURACY, measures=(measure,)))
    assert check(documented, "validate", capsys.readouterr().out)["measures"][0]["value"] == "-inf"


def parsers(parser, name):
    """A parser and those of its actions, by the words that lead to them."""
    yield name, parser
    for action in parser._actions:
        for choice, sub in (action.choices or {}).items() if isinstance(action.choices, dict) else ():
            yield from parsers(sub, f"{name} {choice}")


def test_every_verb_with_json_is_described(documented):
    with_json = set()
    for verb in VERBS:
        parser = argparse.ArgumentParser()
        importlib.import_module(f"trtint8.cli.{verb}").configure(parser)
        with_json |= {name for name, sub in parsers(parser, verb) if "--json" in sub._option_string_actions}
    # To be described in docs/extensions/json_output.py: all but the demo, which is for people.
    assert with_json - {"demo"} == set(documented.OUTPUTS)


def test_what_does_not_fit_is_found(documented):
    with pytest.raises(jsonschema.ValidationError, match="'table' is a required property"):
        check(documented, "calibrate", '{"method": "mse", "tensors": 1, "samples": 2}')
    with pytest.raises(AssertionError):
        check(documented, "run", '{"written": "x", "outputs": {}, "more": 1}')
