"""Metrics of the user's on the command line."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import trtint8
from tests.trtint8.validation.small_models import shifted
from trtint8.cli.main import main
from trtint8.cli.own_metrics import metric_from

METRICS = """
import numpy as np

def smallest(feeds, outputs):
    return outputs["y"].min(axis=(1, 2, 3))

def shift(feeds, outputs, reference_outputs):
    return float((outputs["y"] - reference_outputs["y"]).mean())

def divides(feeds, outputs):
    return 1 / 0

class Largest:
    name = "largest"

    def __init__(self):
        self.values = []

    def fresh(self):
        return Largest()

    def update(self, feeds, outputs, labels):
        self.values.append(float(outputs["y"].max()))

    def value(self):
        return max(self.values)

class Raised(Largest):
    name = "raised"

    def fresh(self):
        return self

    def update(self, feeds, outputs, labels):
        raise KeyError("z")

class Late(Largest):
    name = "late"

    def fresh(self):
        return self

    def value(self):
        raise RuntimeError("no values")

class Needs(Largest):
    def __init__(self, count):
        pass

ready = Largest()
number = 3
"""


@pytest.fixture
def arguments(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("own_metrics_here.py").write_text(METRICS)
    onnx.save(shifted(0.0), "fp32.onnx")
    onnx.save(shifted(0.25), "int8.onnx")
    np.save("held.npy", np.arange(6 * 3 * 4 * 4, dtype=np.float32).reshape(6, 3, 4, 4))
    return ["validate", "int8.onnx", "held.npy", "--reference", "fp32.onnx"]


def test_names_stay_names():
    for name in ("top1", "top3:logits", "psnr:y", "sqnr", "map50", "detections", "ssim", "a:b:c"):
        assert metric_from(name) == name


@pytest.mark.parametrize(
    ("name", "fp32", "int8"),
    [
        ("smallest", 120.0, 120.25),
        ("shift", None, 0.25),
        ("Largest", 287.0, 287.25),
        ("ready", 287.0, 287.25),
    ],
)
def test_validate_measures_them(arguments, name, fp32, int8, capsys):
    assert main([*arguments, "--metric", f"own_metrics_here:{name}", "--json"]) == 0
    (measure,) = json.loads(capsys.readouterr().out)["measures"]
    assert measure["name"] == name.replace("ready", "largest").lower()
    assert measure["value"] == pytest.approx(int8)
    assert (measure["reference"] is None) if fp32 is None else measure["reference"] == fp32


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "own_metrics_here:divides",
            "metric 'divides' failed on the batch that begins with sample 0: ZeroDiv",
        ),
        (
            "own_metrics_here:Raised",
            "the method update of metric 'raised' failed on the batch that begins with",
        ),
        (
            "own_metrics_here:Late",
            "the method value of metric 'late' failed: RuntimeError: no values; correct",
        ),
        ("own_metrics_here:Needs", "the class cannot be called without arguments: TypeError: "),
        ("own_metrics_here:number", "3 is not a metric; give a name, a function of feeds and outputs, or an"),
        (
            "own_metrics_here:other",
            "the module 'own_metrics_here' has no 'other'; name a function or a metric",
        ),
        (
            "no_such_module:f",
            "the metric 'no_such_module:f' is neither a metric of trtint8 nor a function: th",
        ),
    ],
)
def test_mistakes_are_one_sentence(arguments, name, message, capsys):
    assert main([*arguments, "--metric", name]) == 2
    (said,) = (line for line in capsys.readouterr().err.splitlines() if not line.startswith("warning: "))
    assert message in said


def test_the_error_of_a_function_is_the_cause(arguments):
    def divides(_feeds, _outputs):
        return 1 / 0

    with pytest.raises(trtint8.CalibrationDataError) as caught:
        trtint8.validate("int8.onnx", "held.npy", reference="fp32.onnx", metrics=[divides])
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
