"""Reads a file of each kind, and does with it what the verbs do with such files."""

from __future__ import annotations

import contextlib
import io
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from calibrators.data.images.preprocessing import Preprocessing
from calibrators.data.images.true_boxes import read_coco_boxes, read_dataset, read_true_boxes
from calibrators.data.inputs import InputSpec
from calibrators.data.opening import open_batches
from calibrators.data.samples import check_feed
from calibrators.data.sources.arrays import load_labels
from calibrators.errors import TrtInt8Error
from calibrators.tables.cache_origin import CacheOrigin
from calibrators.tables.files import FORMATS
from calibrators.tables.formats import ncnn
from calibrators.tables.ranges import read_ranges
from calibrators.tables.table import CalibrationTable
from calibrators.tensorrt.calibration_cache import read_cache
from trtint8.auditing.audit import at_shapes, count_work
from trtint8.cli.main import main
from trtint8.cli.output import shown
from trtint8.engine.file import engine_rows, read_engine_info
from trtint8.engine.plan import (
    check_capability,
    check_plan_version,
    check_version,
    parse_inspection,
    plan_flavor,
    without_metadata,
)
from trtint8.engine.profiles import check_profile, parse_profile
from trtint8.interop.lint import lint, mend
from trtint8.interop.unquantize import extract_table
from trtint8.models.model import load_model, prepare
from trtint8.models.outputs.picked import cut_model
from trtint8.models.serialization import to_proto
from trtint8.quantization.placement import place
from trtint8.quantization.quantize import QuantizeOptions, quantize_graph
from trtint8.quantization.targets import TARGETS
from trtint8.report.writing import write_report
from trtint8.sensitivity.results import Sensitivity

#: An input that images, arrays and random numbers can feed.
_IMAGES = (InputSpec("images", np.dtype(np.float32), ("N", 3, 4, 5)),)

#: A TensorRT of which no more is used than its version.
_FLAVOR: Any = SimpleNamespace(version="1.7.1", library_version=(1, 7, 1))

#: The longest message, in characters, and the statuses that a verb may end with.
_LONGEST, _STATUSES = 500, (0, 2)

#: Sides of images: those up to the first fit a case, those beyond the second are refused.
_LARGE, _TOO_LARGE = 1000, 10_000

#: A byte of a file that no model may read.
_SECRET = b"\xa7"

_refused = contextlib.suppress(TrtInt8Error)


def table(path: Path) -> None:
    """Computes all that a table offers, and writes it in every format."""
    loaded = CalibrationTable.load(path)
    assert len(loaded.fingerprint) == 64
    assert set(loaded.peaks) <= set(loaded.amax)  # without histograms a range may be less than the peak
    loaded.diff(loaded.override({"y": 1.0}))
    loaded.merged(loaded)
    with _refused:  # of one tensor nothing would be left
        loaded.without(list(loaded.amax)[:1])
    for name in loaded.amax:
        assert loaded.scale(name) >= 0
        assert isinstance(loaded.method_of(name), str)
    assert loaded.excessive_losses is not None
    assert loaded.choice is None or isinstance(loaded.choice.reason, str)
    with _refused:
        loaded.check_model("0a" * 32, ["images"], ["images", "y"])
    for ending in (".json", ".cache", ".txt", ".csv", ".flatbuffers"):
        with _refused:
            again = CalibrationTable.load(loaded.save(path.with_name(f"again{ending}")))
            written = {name for name in loaded.amax if ending != ".cache" or loaded.scale(name) > 0}
        assert set(again.amax) == written, ending
    if loaded.histograms:
        loaded.with_method("mse")


def shown_table(path: Path) -> None:
    """Shows a table; no message may be long, and no character may steer the terminal."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(["table", "show", str(path)])
    assert status in _STATUSES
    steering = {letter for letter in out.getvalue() + err.getvalue() if shown(letter) != letter}
    assert steering <= {"\n"}
    assert all(len(line) <= _LONGEST for line in err.getvalue().splitlines())


def foreign_ranges(path: Path) -> None:
    """Reads each format of other tools from any content, and writes the ranges again."""
    data = path.read_bytes()
    for found in FORMATS.values():
        with _refused:
            found.render(found.parse(data, "f"))


def ranges_by_hand(path: Path) -> None:
    """Reads dynamic ranges."""
    assert all(value > 0 for value in read_ranges(path).values())


def cache(path: Path) -> None:
    """Reads a calibration cache as a calibrator does, and as a table."""
    origin = CacheOrigin("EntropyCalibration2", "8.6.1", "0a" * 32, "1b" * 32, 500, 50, True)
    with _refused:
        read_cache(path, origin)
    CalibrationTable.load(path)


def cache_sidecar(path: Path) -> None:
    """Reads the cache that a sidecar belongs to."""
    cache(path.with_suffix(""))


def ncnn_table(path: Path) -> None:
    """Reads a table of ncnn, and writes it again."""
    content = ncnn.parse(path.read_bytes(), "f")
    CalibrationTable(content.tensors(dict.fromkeys(content.activations, "x")))
    ncnn.render(content)


def ncnn_network(path: Path) -> None:
    """Reads a network of ncnn."""
    assert isinstance(ncnn.layer_inputs(path.read_bytes(), "f"), dict)


def engine(path: Path) -> None:
    """Looks at an engine as far as that is possible without TensorRT."""
    info = read_engine_info(path)
    plan_flavor(path.read_bytes(), "e")
    engine_rows(info)
    with _refused:
        check_version(info, _FLAVOR, "e")
    for capability in ("8.6", "12.0"):
        with _refused:
            check_capability(info, capability, "e")
    for profile in info.profiles:
        with _refused:
            check_profile(profile, _IMAGES)


def engine_sidecar(path: Path) -> None:
    """Looks at the engine that a sidecar belongs to."""
    engine(path.with_suffix(""))


def plan(path: Path) -> None:
    """Finds out what kind of plan a file holds."""
    content = without_metadata(path.read_bytes())
    plan_flavor(content, "e")
    with _refused:
        check_plan_version(content, _FLAVOR, "e")


def inspection(path: Path) -> None:
    """Reads what TensorRT's engine inspector says."""
    report = parse_inspection(path.read_bytes().decode("utf-8", "replace"))
    assert report is None or report.layers


def report(path: Path) -> None:
    """Writes the report of a folder."""
    write_report([path.parent], path.parent / "page.html")


def sensitivity(path: Path) -> None:
    """Reads a measurement of sensitivity, and writes it again."""
    loaded = Sensitivity.load(path)
    assert len(loaded.worst_first) == len(loaded.layers)
    loaded.save(path)


def data(path: Path) -> None:
    """Feeds a model."""
    for options in ({"limit": 1}, {"shuffle": True}):
        for feed in open_batches(str(path), _IMAGES, batch_size=2, **options):
            check_feed(feed, _IMAGES)


def folder_of_arrays(path: Path) -> None:
    """Feeds a model with the arrays of a folder."""
    data(path.parent)


def folder_of_images(path: Path) -> None:
    """Feeds a model with the images of a folder."""
    for feed in open_batches(str(path.parent), _IMAGES, batch_size=2, preprocessing=Preprocessing()):
        check_feed(feed, _IMAGES)


def boxes(path: Path) -> None:
    """Reads the true boxes of an image."""
    found = read_true_boxes([path.with_suffix(".png")], [path.parent], Preprocessing(letterbox=(8, 8)), 1)
    assert found is None or (found.ndim == 3 and np.isfinite(found).all())


def dataset(path: Path) -> None:
    """Reads a dataset file of ultralytics, and the images of its splits."""
    found = read_dataset(path)
    assert found.class_names and all(name.isprintable() for name in found.class_names)
    for split in found.splits:
        assert found.images(split, {".png"})


def coco_boxes(path: Path) -> None:
    """Reads the true boxes of an image from COCO's file."""
    found = read_coco_boxes(path, [path.with_name("i.png")], Preprocessing(letterbox=(8, 8)))
    assert found.shape[2] == 5


def labels(path: Path) -> None:
    """Reads labels."""
    assert load_labels(path, None).ndim


def preprocessing(path: Path) -> None:
    """Prepares an image as a file says."""
    loaded = Preprocessing.load(path)
    resize = loaded.resize if isinstance(loaded.resize, tuple) else (loaded.resize,)
    sizes = (*resize, *(loaded.crop or ()), *(loaded.letterbox or ()))
    # Large images are what a person may want, and take the memory that they need.
    if all(size is None or size <= _LARGE or size > _TOO_LARGE for size in sizes):
        loaded(np.zeros((1, 6, 7, 3), np.uint8))


def text(path: Path) -> None:
    """Takes what a person may write on the command line."""
    written = path.read_bytes().decode("utf-8", "surrogateescape")
    with _refused:
        name, shapes = parse_profile(written)
        check_profile({name: shapes}, _IMAGES)
    for read in (
        load_model,
        partial(load_labels, count=None),
        Preprocessing.load,
        CalibrationTable.load,
        read_ranges,
    ):
        with _refused:
            read(written)
    with _refused:
        write_report([written], path.parent / "page.html")
    with _refused:
        open_batches(written, _IMAGES)
    open_batches(f"random:{written}", _IMAGES)


def model(path: Path) -> None:
    """Quantizes a model with a range for every tensor."""
    loaded = load_model(path)
    assert all(spec.name for spec in loaded.inputs)
    prepared = prepare(loaded)
    with _refused:
        count_work(at_shapes(prepared, {}).graph_model)
    with _refused:
        cut_model(prepared, [value.name for node in prepared.graph_model.graph for value in node.outputs][:1])
    for target in TARGETS.values():
        placement = place(prepared.graph_model, target=target)
    table = CalibrationTable(dict.fromkeys(placement.tensors, 1.0))
    quantize_graph(prepared, table, QuantizeOptions(target=target))


def external_model(path: Path) -> None:
    """Quantizes a model, none of whose weights may come from outside of its folder, also by way of links."""
    secret = path.parent.with_name("secret.bin")
    secret.write_bytes(_SECRET * 4096)
    (path.parent / "link.bin").symlink_to(secret)
    loaded = load_model(path)
    assert all(file.parent == path.parent.resolve() for file in loaded.data_files)
    written = to_proto(prepare(loaded).graph_model).SerializeToString()
    assert _SECRET * 4 not in written
    model(path)


def quantized_model(path: Path) -> None:
    """Lints and mends a model, and extracts its table."""
    loaded = load_model(path)
    for step in (lint, mend, extract_table):
        with _refused:
            step(loaded)
