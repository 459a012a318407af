"""Every reader of the project, with real files of its kind."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.fuzz import checkpoints, examples, uses


@dataclass(frozen=True)
class Target:
    """A reader.

    Attributes:
        name: What it reads.
        file: The name of the file that is read.
        examples: Returns the contents of real files.
        use: Reads a file, and does with it what the project does with such files.
        beside: Returns name to content of the files that lie beside it.
        kind: ``bytes``; ``json``, of which values can be exchanged; ``onnx``, of which fields can be
            exchanged; or ``checkpoint``, of which one field is exchanged and the checksum stays right.
        cost: How many cases of other readers take as long as one of this.
    """

    name: str
    file: str
    examples: Callable[[], list[bytes]]
    use: Callable[[Path], object]
    beside: Callable[[], Mapping[str, bytes]] = dict
    kind: str = "bytes"
    cost: int = 1


def _of_report(ending: str) -> Target:
    name = f"net.{ending}"

    def beside() -> Mapping[str, bytes]:
        return {other: data for other, data in examples.report_files().items() if other != name}

    def real() -> list[bytes]:
        return [examples.report_files()[name]]

    return Target(f"report, {ending}", name, real, uses.report, beside, "json", cost=20)


def _image_beside() -> Mapping[str, bytes]:
    return {"i.png": examples.pictures()[0]}


def _cache() -> Mapping[str, bytes]:
    return {"t.cache": examples.golden("model.cache")[0]}


def _cache_sidecar() -> list[bytes]:
    old = examples.golden("model.cache.json")[0]
    digest = hashlib.sha256(_cache()["t.cache"]).hexdigest()
    return [old, json.dumps({**json.loads(old), "sha256": digest}).encode()]


def _arrays_beside() -> Mapping[str, bytes]:
    return {"b.npz": examples.archives()[0]}


def _plan() -> bytes:
    return b"vtrt" + bytes(12) + (96).to_bytes(8, "little") + bytes(72)


def _plans() -> list[bytes]:
    """A plan by itself, and with the metadata that Ultralytics writes before it."""
    metadata = json.dumps({"stride": 32, "names": {"0": "person"}}).encode()
    return [_plan(), len(metadata).to_bytes(4, "little") + metadata + _plan()]


def _engine_sidecars() -> list[bytes]:
    """Sidecars of the plan, of either flavor."""
    (document,) = map(json.loads, examples.golden("model.engine.json"))
    document["plan_sha256"] = hashlib.sha256(_plan()).hexdigest()
    compatible = {**document, "flavor": "tensorrt", "hardware_compatibility": "ampere_plus"}
    return [json.dumps(one).encode() for one in (document, compatible)]


def _inspections() -> list[bytes]:
    tensor = {"Name": "x", "Format/Datatype": "Row major linear FP32"}
    layer = {
        "Name": "a + b",
        "LayerType": "CaskConvolution",
        "ParameterType": "Convolution",
        "Inputs": [tensor],
    }
    layer |= {"Outputs": [tensor], "Weights": {"Type": "Int8"}, "Metadata": "[ONNX Layer: a]"}
    return [json.dumps({"Layers": [layer, layer]}).encode()]


_NCNN = b"conv1_param_0 12.5 0 127\nconv1 31.75\nfc 0\n"
_PARAM = b"7767517\n3 3\nInput data 0 1 data 0=4\nConvolution conv1 1 1 data c 0=3\nSplit s 1 2 c c1 c2\n"
_DATASET = b"path: .\ntrain: .\nval: [., .]\nnc: 2\nnames:\n  0: cat\n  1: dog\n"
_BOXES = b"1 0.25 0.5 0.5 1\n2 0 0.5 1 0.5 0.5 0.75\n"
_COCO = (
    b'{"images": [{"id": 5, "file_name": "i.png", "width": 5, "height": 4}], "categories": [{"id": 9}], '
    b'"annotations": [{"image_id": 5, "category_id": 9, "bbox": [0, 0, 4.5, 4], "iscrowd": 0}]}'
)
_TOML = b'resize = 8\ncrop = [4, 5]\nscale = "1/255"\nmean = [0.1, 0.2, 0.3]\nlayout = "NHWC"\n'

TARGETS = (
    Target("table", "t.json", examples.tables, uses.table, kind="json", cost=4),
    Target("table, shown", "t.json", examples.tables, uses.shown_table, kind="json", cost=8),
    Target("cache", "t.cache", lambda: examples.golden("model.cache"), uses.cache),
    Target("cache, shown", "t.cache", lambda: examples.golden("model.cache"), uses.shown_table, cost=8),
    Target("sidecar of a cache", "t.cache.json", _cache_sidecar, uses.cache_sidecar, _cache, "json"),
    *(
        Target(f"ranges, {name}", "t", partial(examples.ranges, name), uses.foreign_ranges)
        for name in ("text", "csv", "onnxruntime")
    ),
    Target("ranges, ppq", "t.json", partial(examples.ranges, "ppq"), uses.table, kind="json", cost=4),
    Target("ranges, onnxruntime-json", "t.json", examples.onnxruntime_json, uses.table, kind="json", cost=4),
    Target("ranges, lines", "t.cache", lambda: [b"x 0.5\na b 1e-3\n"], uses.table, cost=4),
    Target("ranges by hand", "r.txt", partial(examples.ranges, "text"), uses.ranges_by_hand),
    Target("ncnn table", "t.table", lambda: [_NCNN], uses.ncnn_table),
    Target("ncnn network", "n.param", lambda: [_PARAM], uses.ncnn_network),
    Target(
        "sidecar of an engine",
        "e.engine.json",
        _engine_sidecars,
        uses.engine_sidecar,
        lambda: {"e.engine": _plan()},
        "json",
    ),
    Target("plan", "e.engine", _plans, uses.plan),
    Target("inspection", "i.json", _inspections, uses.inspection, kind="json"),
    Target(
        "sensitivity",
        "s.json",
        lambda: examples.golden("model.sensitivity.json"),
        uses.sensitivity,
        kind="json",
    ),
    *map(
        _of_report,
        (
            "accuracy.json",
            "bench.json",
            "sensitivity.json",
            "table.json",
            "engine.json",
            "audit.json",
            "tuning.json",
        ),
    ),
    Target("report, tune --json", "t.json", examples.printed_tunings, uses.report, kind="json", cost=20),
    *(
        Target(f"checkpoint of a {name}", "c", real, use, kind="checkpoint", cost=2)
        for name, real, use in (
            ("calibration", checkpoints.calibrations, checkpoints.continue_calibration),
            ("sensitivity", checkpoints.measurements, checkpoints.continue_measurement),
            ("search", checkpoints.searches, checkpoints.continue_search),
        )
    ),
    Target("array", "a.npy", examples.arrays, uses.data),
    Target("arrays", "a.npz", examples.archives, uses.data),
    Target("folder of arrays", "a.npz", examples.archives, uses.folder_of_arrays, _arrays_beside),
    Target("labels", "l.npy", examples.labels, uses.labels),
    Target("image", "i.png", examples.pictures, uses.folder_of_images),
    Target("boxes", "i.txt", lambda: [_BOXES], uses.boxes, _image_beside),
    Target("dataset", "d.yaml", lambda: [_DATASET], uses.dataset, _image_beside),
    Target("boxes of COCO", "c.json", lambda: [_COCO], uses.coco_boxes, _image_beside, kind="json"),
    Target("preprocessing, TOML", "p.toml", lambda: [_TOML], uses.preprocessing),
    Target(
        "preprocessing, JSON",
        "p.json",
        lambda: [b'{"resize": [8, 9], "crop": [4, 5], "scale": 0.01, "std": [0.5]}'],
        uses.preprocessing,
        kind="json",
    ),
    Target("text", "x", lambda: [b"64", b"images=1x3x4x5,2x3x4x5,8x3x4x5", b"64,images=3x4x5"], uses.text),
    Target("model", "m.onnx", examples.models, uses.model, kind="onnx", cost=8),
    Target(
        "model with external data",
        "m.onnx",
        lambda: [examples.external_model()["model.onnx"]],
        uses.external_model,
        lambda: {"weights.bin": examples.external_model()["weights.bin"]},
        kind="onnx",
        cost=8,
    ),
    Target("model with functions", "m.onnx", examples.models_with_functions, uses.model, kind="onnx", cost=8),
    Target(
        "model with functions and external data",
        "m.onnx",
        lambda: [examples.external_function()["model.onnx"]],
        uses.external_model,
        lambda: {"weights.bin": examples.external_function()["weights.bin"]},
        kind="onnx",
        cost=8,
    ),
    Target("quantized model", "m.onnx", examples.quantized_models, uses.quantized_model, kind="onnx", cost=8),
)
