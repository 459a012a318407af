"""What is installed, and what works."""

import platform

import trtint8


def test_findings_in_words():
    found = dict(trtint8.doctor())
    assert found["Python"] == platform.python_version()
    assert found["trtint8"] == trtint8.__version__ or found["trtint8"] == "?"
    assert {"ONNX Runtime", "GPU", "build, explicit route", "build, implicit route"} <= found.keys()
