"""Every figure of a report, by value."""

import tests.trtint8.report.extra  # noqa: F401
from tests.trtint8.report.samples import ACCURACY
from trtint8.report.facts import gather


def test_gather(found):
    report = gather(found)
    assert report.title == "net" and report.proved and report.method == "entropy"
    assert len(report.cells) == 2 and len(report.bars) == 3 and len(report.cards) == 3
    assert report.without_histogram == 0 and report.worst is None and report.mismatches == ()
    values = dict(report.provenance)
    assert values["TensorRT for RTX"] == "1.7.1.116" and values["Route"] == "explicit"
    assert values["Fingerprint of the model"] == "model1"
    assert values["Fingerprint of the calibration table"] == found.table.fingerprint
    assert values["Fingerprint of the calibration data"] == "data1"
    assert values["Fingerprint of the sensitivity's data"] == "data2"
    assert values["Fingerprint of the engine file (SHA-256)"] == found.engine.plan_sha256
    assert values["Ranges"] == "3 tensors, entropy" and values["Calibration samples"] == "500"
    assert values["Accuracy measured with"] == f"{ACCURACY.judged}, 400 samples"
    assert values["Sensitivity measured with"] == "128 samples"
