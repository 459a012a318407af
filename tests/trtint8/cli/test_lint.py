"""The verb, on what ONNX Runtime's own quantizer writes."""

import pytest

from tests.trtint8.cli.calls import succeeds
from tests.trtint8.interop.pairs_by_hand import rules
from trtint8 import build_int8_engine, validate
from trtint8.cli.main import main
from trtint8.data import DEMO_MODEL
from trtint8.models.model import load_model


@pytest.fixture(scope="module")
def foreign(tmp_path_factory, split):
    quantization = pytest.importorskip("onnxruntime.quantization")

    class Reader(quantization.CalibrationDataReader):
        def __init__(self):
            self._batches = iter([{"images": split.calibration_images[:100]}])

        def get_next(self):
            return next(self._batches, None)

    path = tmp_path_factory.mktemp("foreign") / "foreign.onnx"
    quantization.quantize_static(str(DEMO_MODEL), str(path), Reader())
    return path


@pytest.mark.slow
def test_onnxruntimes_default_is_mended(rtx, foreign, tmp_path, split, capsys, as_json):
    mended = tmp_path / "mended.onnx"
    found = as_json("lint", foreign)["findings"]
    assert {"zero-point", "bias-int32"} <= {finding["rule"] for finding in found}
    succeeds("lint", foreign, "--fix -o", mended, "--json")
    capsys.readouterr()
    assert rules(load_model(mended)) == []
    built = build_int8_engine(mended, None, tmp_path / "x.engine", target="rtx")
    summary = built.info.layers.weighted_summary(built.info.quantized_nodes)
    assert {precision: len(nodes) for precision, nodes in summary.items()} == {"INT8": 9}
    accuracy = validate(mended, split.heldout_images, reference=DEMO_MODEL, labels=split.heldout_labels)
    assert accuracy.top1.value >= accuracy.reference_top1.value - 0.005
    assert accuracy.outputs[0].sqnr_db > 25


def test_findings_decide_the_status_where_that_is_asked_for(foreign, tmp_path, prints, refused):
    for more, status in (([], 0), (["--strict"], 1), (["--strict", "--json"], 1)):
        assert main(["lint", str(foreign), *more]) == status
    mended = tmp_path / "mended.onnx"
    assert main(["lint", str(foreign), "--strict", "--fix", "-o", str(mended)]) == 1
    assert prints("lint", mended, "--strict").startswith("no findings")
    assert "--fix and --output" in refused("lint", foreign, "--fix")
