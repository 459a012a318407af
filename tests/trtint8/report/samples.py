"""A model's files with numbers that tests know, and a name that pages must escape."""

import contextlib
import dataclasses
import json
from pathlib import Path

import numpy as np
import onnx

from calibrators import records
from calibrators.histograms.histogram import Histogram
from calibrators.tables.table import CalibrationTable, Provenance
from tests.trtint8.auditing import kernels
from tests.trtint8.onnx_models import conv_relu_conv
from trtint8.auditing.audit import estimate_engine, judge
from trtint8.auditing.costs import costs_of
from trtint8.auditing.gpus import find_gpu
from trtint8.auditing.results import Audit
from trtint8.cli.output import print_json
from trtint8.engine.file import EngineInfo, TensorSpec, save_engine
from trtint8.engine.layers import Layer, LayerReport
from trtint8.engine.profiles import ShapeRange
from trtint8.runtime.bench import BenchReport, Summary
from trtint8.sensitivity.effects import Effect
from trtint8.sensitivity.results import LayerSensitivity, Sensitivity, Suspect
from trtint8.tuning.candidates import Trial
from trtint8.tuning.tune import TuningLog, Written
from trtint8.validation.accuracy import Accuracy, Measure
from trtint8.validation.budget import Score
from trtint8.validation.fidelity import Fidelity
from trtint8.validation.significance import Comparison, Share

#: A name of a node that is markup where it is not escaped.
HOSTILE = '</script><b>&"conv"\'' + "long" * 20

GPU = find_gpu("RTX 4090")

PROFILE = {"images": ShapeRange((1, 3, 16, 16), (8, 3, 16, 16), (32, 3, 16, 16))}

TOP1 = Comparison("FP32", -0.01, (-0.02, 0.001), 0.04, "McNemar", 400, gained=2, lost=6)

ACCURACY = Accuracy(
    "the Q/DQ model as fake quantization in ONNX Runtime",
    400,
    Share(316, 400),
    None,
    Share(320, 400),
    None,
    Share(390, 400),
    (Fidelity("scores", 26.25, 0.998, 1.5),),
    (
        Measure("top1", Share(316, 400), Share(320, 400), (TOP1,)),
        Measure("agreement", Share(390, 400)),
        Measure("kappa", 0.75, 0.8, (Comparison("FP32", -0.05, (-0.1, 0.0), 0.5, "bootstrap", 400),)),
    ),
)


def bench_report(name, inferences, median):
    times = Summary(0.5, 2.0, 1.0, median, 1.2, 1.3, 1.75)
    phases = dict.fromkeys(("latency", "enqueue", "compute", "h2d", "d2h"), times)
    return BenchReport(name, 8, True, False, inferences, 2.0, phases)


def effect(sqnr_db, half=0.5, agreement=390):
    return Effect(
        sqnr_db, (sqnr_db - half, sqnr_db + half), 0.99, Share(agreement, 400), Share(316, 400), TOP1
    )


SENSITIVITY = Sensitivity(
    samples=128,
    converged=True,
    tolerance_db=1.0,
    quantized=effect(26.0),
    reference_top1=Share(320, 400),
    layers=(
        LayerSensitivity("second", "Conv", effect(40.0), effect(26.5), 44.0, 41.0, 33.0, 0.2, ()),
        LayerSensitivity(
            HOSTILE,
            "Conv",
            effect(30.0),
            effect(31.0),
            20.0,
            30.0,
            42.0,
            0.75,
            (Suspect("clipped", "2.0 % of 'images' lies beyond its range of 2.64 and is cut off"),),
        ),
        LayerSensitivity("add", "Add", effect(float("inf"), 0.0), effect(26.0), None, 50.0, None, 0.05, ()),
    ),
    model_fingerprint="1a",
    table_fingerprint="",
    data_fingerprint="data2",
    shown=96,
)


#: The log of a search that restores one layer to float.
TUNING_LOG = TuningLog(
    "trtint8 quantize net.onnx net.table.json -o net.qdq.onnx --keep-float second",
    ("second",),
    (),
    0.125,
    (
        Trial("as calibrated", Score(2.5, 20.0, 77.5, True), True, 0, 0.0, 1.0),
        Trial("bias correction", Score(2.0, 21.0, 78.0, True), False, 0, 0.0, 1.0),
        Trial("2 layers in float", Score(0.0, 40.0, 80.0, True), True, 2, 0.5, 1.0),
        Trial(f"'{HOSTILE}' back in INT8", Score(0.5, 30.0, 79.5, True), True, 1, 0.125, 1.0),
        Trial("'second' back in INT8", Score(float("nan"), 5.0, float("nan"), True), False, 1, 0.375, 1.0),
    ),
    "top1: a drop of at most 1 point",
    None,
    "top1",
    "%",
    3,
)


def printed_tuning():
    """What `trtint8 tune --json` prints of the tuning that the log is of."""
    written = Written(
        Path("net.qdq.onnx"), Path("net.table.json"), None, Path("net.tuning.json"), TUNING_LOG.command
    )
    log = {field.name: getattr(TUNING_LOG, field.name) for field in dataclasses.fields(TUNING_LOG)}
    del log["command"]
    return {**log, "fits": True, "complete": True, "accuracy": ACCURACY, "files": written}


def table():
    random = np.random.default_rng(0)
    histograms = {}
    for name, spread in (("images", 1.0), (HOSTILE, 4.0)):
        histograms[name] = Histogram()
        histograms[name].observe(random.laplace(0, spread, 50_000).astype(np.float32))
    histograms[HOSTILE].observe(np.zeros(50_000, np.float32))
    histograms["silent"] = Histogram()
    histograms["silent"].observe(np.zeros(100, np.float32))
    return CalibrationTable.from_histograms(
        histograms, "entropy", Provenance("1a", "data1", 500, {"trtint8": "0.1.0"})
    )


def engine_info(ranges):
    layer = Layer("conv_myl0_2", "correlation", ("Int8",), ("Int8", "Float"), ("Int8",), (HOSTILE,))
    floating = Layer("conv_myl0_3", "correlation", ("Float",), ("Float",), ("Float",), ("second",))
    return EngineInfo(
        flavor="rtx",
        tensorrt_version="1.7.1.116",
        compute_capabilities=("8.6", "12.0"),
        inputs=(TensorSpec("images", "float32", ("N", 3, 16, 16)),),
        outputs=(TensorSpec("second_out", "float32", ("N", 16, 16, 16)),),
        profiles=(PROFILE,),
        layers=LayerReport((layer, floating)),
        quantized_nodes=(HOSTILE, "second"),
        weights_bytes=5248,
        model_fingerprint="1a",
        table_fingerprint=ranges.fingerprint,
        method="entropy",
        qdq_model="net.qdq.onnx",
    )


def audit(ranges):
    """Two products, in INT8 with the kernels that requantize their sums."""
    work = {HOSTILE: 40_000_000, "second": 10_000_000}
    sizes = {HOSTILE: 4_000_000, "second": 1_000_000}
    half = kernels.report(*(kernels.product(node, "Half", "Half", size) for node, size in sizes.items()))
    int8 = kernels.report(
        *(kernels.product(node, "Int8", "Float", size) for node, size in sizes.items()),
        *(kernels.requantization(node, size) for node, size in sizes.items()),
    )
    engines = (
        estimate_engine("FP16", half, work, GPU, 100_000),
        estimate_engine("INT8+FP16", int8, work, GPU, 50_000),
    )
    verdict, reasons = judge(engines, GPU.name, "TensorRT for RTX", work)
    shapes = {"images": (8, 3, 16, 16)}
    return Audit(
        "net.onnx",
        GPU,
        "rtx",
        "1.7.1.116",
        "8.9",
        shapes,
        engines,
        verdict,
        reasons,
        (),
        "1a",
        ranges.fingerprint,
        costs=costs_of(engines[0].kernels, engines[1].kernels, work),
    )


def write_all(folder):
    """Every file of a model called ``net``."""
    ranges = table()
    ranges.save(folder / "net.table.json")
    model = onnx.shape_inference.infer_shapes(conv_relu_conv(names=(HOSTILE, "second")))
    onnx.save(model, folder / "net.qdq.onnx")
    save_engine(folder / "net.engine", bytes(1000), engine_info(ranges))
    dataclasses.replace(SENSITIVITY, table_fingerprint=ranges.fingerprint).save(
        folder / "net.sensitivity.json"
    )
    write_json(folder / "net.accuracy.json", ACCURACY)
    write_json(folder / "net.audit.json", audit(ranges))
    (folder / "net.tuning.json").write_bytes(records.render(TUNING_LOG))
    reports = [bench_report("net.engine", 4000, 0.5), bench_report("FP32", 1000, 2.0)]
    printed = [{**dataclasses.asdict(one), "throughput": one.throughput, "warnings": []} for one in reports]
    write_json(folder / "net.bench.json", {"gpu": "GPU 1", "inputs": "random", "reports": printed})


def write_json(path, value):
    """What a verb prints with `--json`, in a file."""
    with path.open("w") as file, contextlib.redirect_stdout(file):
        print_json(value)
    assert json.loads(path.read_text())
