import json

import pytest

from calibrators.errors import TableError
from tests.trtint8.auditing.kernels import GPU, product, report, requantization
from trtint8.auditing.audit import estimate_engine
from trtint8.auditing.results import Audit
from trtint8.cli.output import print_json
from trtint8.report.files import parse

WORK = {"a": 1000}
HALF = estimate_engine("FP16", report(product("a", "Half", "Half", 1000)), WORK, GPU, 10)
LAYERS = report(product("a", "Int8", "Float", 1000), requantization("a", -1))
INT8 = estimate_engine("INT8", LAYERS, WORK, GPU)
AUDIT = Audit(
    "m.onnx", GPU, "rtx", "1.7", "8.6", {"x": (1, 2)}, (HALF, INT8), "a verdict", ("a",), (), "abc", "def"
)


def test_what_is_printed_is_read_back(capsys):
    print_json(AUDIT)
    assert parse("audit", json.loads(capsys.readouterr().out), "a.json") == AUDIT


def test_an_audit_in_one_line():
    assert repr(AUDIT) == f"<Audit: 'm.onnx' on {GPU.name}: a verdict>"


def test_engines_by_precision():
    assert AUDIT.engine("INT8") is INT8
    with pytest.raises(KeyError):
        AUDIT.engine("FP8")
    assert not AUDIT.of_another_gpu


def test_a_file_that_is_something_else():
    with pytest.raises(
        TableError, match=r"^'a.json' is no output of 'trtint8 audit --json' \(Object missing req"
    ):
        parse("audit", {"gpu": {}, "engines": []}, "a.json")
