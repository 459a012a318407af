"""Validation over a local Ray cluster: in every field what one process finds."""

import dataclasses
import json
import time

import numpy as np
import onnx
import pytest

import trtint8
from calibrators.errors import CalibrationDataError, ModelError, UnsupportedError
from tests.trtint8.detectors import PICKED_FROM, images, plugin_detector, ranking_detector
from tests.trtint8.onnx_models import save_external
from tests.trtint8.validation.metrics_for_workers import (
    Alone,
    DiesOnce,
    Farthest,
    Slow,
    Sum,
    boxes_of_maps,
    distance,
    largest,
    one_a_batch,
    wrong,
)
from tests.trtint8.validation.small_models import (
    OTHER,
    SQUARE,
    boxes_times,
    rows_as_they_are,
    scaled,
    shifted,
)
from trtint8 import RayExecutor
from trtint8.cli.main import main
from trtint8.data import DEMO_MODEL, PIXEL_MEAN, PIXEL_STD, load_digits_split
from trtint8.engine.file import EngineInfo, TensorSpec, save_engine
from trtint8.models.session import open_model
from trtint8.validation import opening
from trtint8.validation import validate as validation_workers
from trtint8.validation.metrics import MeanAveragePrecision

pytest.importorskip("sklearn", reason="scikit-learn is not installed (pip install 'trtint8[demo]')")

pytest.importorskip("ray", reason="Ray is not installed (pip install 'trtint8[ray]')")

#: Ray Data trips over its own deprecations.
rays_own_warnings = pytest.mark.filterwarnings("ignore::DeprecationWarning")

SAMPLES = 100  # 17 batches of 6
SPLIT = load_digits_split()
IMAGES, LABELS = SPLIT.heldout_images[:SAMPLES], SPLIT.heldout_labels[:SAMPLES]


@pytest.fixture(scope="module")
def quantized():
    table = trtint8.calibrate(DEMO_MODEL, SPLIT.calibration_images, tensors="placed")
    return trtint8.quantize(DEMO_MODEL, table)


EVERYTHING = ["top1", "top3", "agreement", "sqnr", "token_cosine", largest, one_a_batch, Sum()]


def _validated(quantized, data=IMAGES, *, labels=LABELS, batch_size=6, reference=DEMO_MODEL, **options):
    options.setdefault("threads", 1)
    if isinstance(data, dict):
        labels = None
    return trtint8.validate(
        quantized, data, reference=reference, labels=labels, batch_size=batch_size, **options
    )


@pytest.fixture(scope="module")
def expected(quantized):
    return _validated(quantized, also={"FP16": DEMO_MODEL}, metrics=EVERYTHING)


@pytest.mark.parametrize(("workers", "shard_batches"), [(1, 4), (2, 17), (3, 1), (3, 4)])
def test_the_result_is_that_of_one_process(workers, shard_batches, workers_here, quantized, expected):
    how = RayExecutor(workers=workers, shard_batches=shard_batches)
    found = _validated(quantized, also={"FP16": DEMO_MODEL}, metrics=EVERYTHING, executor=how)
    assert found == expected
    assert json.dumps(dataclasses.asdict(found)) == json.dumps(dataclasses.asdict(expected))


def test_the_result_of_other_processes_is_that_of_one(cluster, quantized, expected):
    how = RayExecutor(workers=2, shard_batches=4)
    assert _validated(quantized, also={"FP16": DEMO_MODEL}, metrics=EVERYTHING, executor=how) == expected


def test_workers_of_several_threads_divide_batches_as_one_process_does(workers_here, quantized, monkeypatch):
    opened = []

    def open_and_tell(*args, **options):
        session = open_model(*args, **options)
        opened.append(session.runs_at_once)
        return session

    for module in ("validate", "opening"):
        monkeypatch.setattr(f"trtint8.validation.{module}.open_model", open_and_tell)
    options = {"threads": 2, "metrics": EVERYTHING}
    expected = _validated(quantized, **options)
    assert opened == [2, 2]
    assert _validated(quantized, executor=RayExecutor(workers=2, shard_batches=3), **options) == expected
    assert set(opened) == {2} and len(opened) > 2


@pytest.mark.parametrize("batch_size", [1, 25, None])
def test_usual_metrics_and_other_batches(batch_size, workers_here, quantized):
    options = {"batch_size": batch_size, "limit": 70, "also": {"FP16": DEMO_MODEL}, "max_drop": 2.0}
    options["groups"] = 7
    found = _validated(quantized, executor="ray", **options)
    assert found == _validated(quantized, **options)
    assert found.top5 is not None and found.samples == 70
    assert found.judgement.step == 100 / 70
    low, high = found.judgement.interval
    assert 100 * found.top1.interval[0] > low and high <= 100  # ten groups say less than 70 samples


def test_onnxruntime_does_not_read_the_external_data_of_a_model_that_workers_open_by_its_path(
    workers_here, quantized, tmp_path, monkeypatch
):
    """What its message says of files may have been exchanged since it was checked."""
    path, opened = save_external(onnx.load(DEMO_MODEL), tmp_path), []
    monkeypatch.setattr(validation_workers, "fits_message", lambda graph_model: False)
    monkeypatch.setattr(validation_workers, "open_session", lambda model, **options: opened.append(model))
    options = {"reference": path, "executor": RayExecutor(workers=2, shard_batches=2)}
    assert _validated(quantized, IMAGES[:12], labels=LABELS[:12], **options).samples == 12
    assert not opened


def test_metrics_of_other_tasks(workers_here):
    random = np.random.default_rng(0)
    maps, by = (random.standard_normal((count, 3, 4, 4)).astype(np.float32) for count in (23, 1))
    same_boxes = trtint8.DetectionAgreement(boxes_of_maps)
    metrics = ["psnr", "pixels", "miou", same_boxes, distance, Farthest(), "sqnr"]
    models = {"reference": shifted(0 * by), "also": {"other": shifted(by)}}
    options = {**models, "metrics": metrics, "batch_size": 5, "labels": None}
    for labels in (None, maps * 2, maps.argmax(axis=1)):
        data = {"x": maps} if labels is None else {"x": maps, "labels": labels}
        found, expected = (
            _validated(shifted(by / 2), data, executor=executor, **options)
            for executor in (RayExecutor(workers=2, shard_batches=2), "local")
        )
        assert found == expected and len(found.measures) == 6 and found.chosen is None
        assert all(measure.comparisons for measure in found.measures[:5])


def _folder_of_classes(tmp_path):
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    for number, (sample, label) in enumerate(zip(IMAGES, LABELS, strict=True)):
        folder = tmp_path / str(label)
        folder.mkdir(exist_ok=True)
        pixels = np.rint((sample[0] * PIXEL_STD + PIXEL_MEAN) * 240).astype(np.uint8)
        image.fromarray(pixels).save(folder / f"{number}.png")
    return tmp_path


@pytest.mark.filterwarnings("ignore:.*was calibrated with arrays")
@pytest.mark.parametrize("kind", ["npz", "classes", "array", "file", "iterable"])
def test_labels_from_anywhere(kind, workers_here, quantized, tmp_path, monkeypatch):
    data, labels, options = IMAGES, LABELS, {}
    monkeypatch.chdir(tmp_path)
    if kind == "npz":
        data, labels = "data.npz", None
        np.savez(data, images=IMAGES, labels=LABELS)
    elif kind == "classes":
        data, labels = _folder_of_classes(tmp_path), None
        options["preprocessing"] = trtint8.Preprocessing(scale=1 / 240, mean=(PIXEL_MEAN,), std=(PIXEL_STD,))
    elif kind == "file":
        labels = "labels.npy"
        np.save(labels, LABELS)
    elif kind == "iterable":
        data = [{"images": IMAGES[start : start + 7]} for start in range(0, SAMPLES, 7)]
    how = RayExecutor(shard_batches=2)
    found = _validated(quantized, data, labels=labels, executor=how, **options)
    assert found == _validated(quantized, data, labels=labels, **options)
    few = {**options, "limit": 30}
    assert _validated(quantized, data, labels=labels, executor=how, **few) == _validated(
        quantized, data, labels=labels, **few
    )
    assert found.reference_top1.total == SAMPLES and found.reference_top1.value > 0.9


@rays_own_warnings
def test_a_ray_dataset_has_its_labels_in_a_column(ray_data, workers_here, quantized):
    def rows(start):
        return {"pictures": IMAGES[start : start + 15], "labels": LABELS[start : start + 15]}

    dataset = ray_data.from_blocks([_block(rows(start)) for start in range(0, SAMPLES, 15)])
    found = _validated(quantized, dataset, labels=None, executor=RayExecutor(shard_batches=2))
    assert found == _validated(quantized)
    with pytest.raises(CalibrationDataError, match="put them into a column 'labels'"):
        _validated(quantized, dataset, executor="ray")
    unlabelled = ray_data.from_numpy(np.array_split(IMAGES, 7))
    found = _validated(quantized, unlabelled, labels=None, executor="ray")
    assert found == _validated(quantized, labels=None)


def _block(columns):
    from ray.data.block import BlockAccessor

    return BlockAccessor.batch_to_block(columns)


def test_workers_that_are_killed_leave_no_trace(cluster, quantized, tmp_path):
    metrics = ["top1", DiesOnce(tmp_path)]
    alone = _validated(quantized, metrics=metrics)
    for number in range(2):
        (tmp_path / str(number)).touch()
    found = _validated(quantized, metrics=metrics, executor=RayExecutor(workers=2, shard_batches=3))
    assert list(tmp_path.iterdir()) == []  # they did die
    assert found == alone


def test_mean_average_precision(workers_here):
    pytest.importorskip("faster_coco_eval", reason="faster-coco-eval is not installed")
    boxes = np.array([SQUARE, OTHER, SQUARE, OTHER, SQUARE], np.float32)
    boxes += np.arange(5, dtype=np.float32)[:, None]

    def decode(outputs):
        return [(box[None], [box[3] / 100], [0]) for box in outputs["boxes"]]

    def run(truth, labels=None, **options):
        metric = MeanAveragePrecision(decode, truth)
        models = {"reference": boxes_times(1.0), "also": {"half": boxes_times(0.9)}}
        return _validated(
            boxes_times(1.1), boxes, labels=labels, metrics=[metric], batch_size=2, **models, **options
        )

    truth = [([box], [0]) for box in boxes]
    how = RayExecutor(workers=2, shard_batches=1)
    found = run(truth, executor=how)
    assert found == run(truth)
    assert 0 < found.measures[0].value < found.measures[0].reference == pytest.approx(1.0)
    labels = np.concatenate([boxes, np.zeros((5, 1), np.float32)], axis=1)[:, None]
    assert run(None, labels, executor=how) == run(None, labels) == found
    for options in ({}, {"executor": how}):
        with pytest.raises(CalibrationDataError, match="has 4"):
            run(truth[:4], **options)


NAN = IMAGES.copy()
NAN[33, 0, 2, 2] = np.nan
PARTS = [{"images": IMAGES[:40]}, {"images": IMAGES[40:]}]


@pytest.mark.parametrize(
    ("data", "labels", "options"),
    [
        (NAN, LABELS, {}),
        (IMAGES, np.where(np.arange(SAMPLES) == 71, 10, LABELS), {}),
        (lambda: iter(()), None, {}),
        (PARTS, LABELS[:50], {}),
        (PARTS, np.tile(LABELS, 2), {}),
        ([PARTS[0], [1]], None, {}),
        (IMAGES, None, {"metrics": ["top1"]}),
        (IMAGES, None, {"metrics": ["top"]}),
        (IMAGES, None, {"metrics": [wrong]}),
        (IMAGES[:, :, :4], None, {}),
        (IMAGES, LABELS[:9], {}),
        (IMAGES, None, {"also": {"other": scaled(1.0)}}),
        (IMAGES, None, {"also": {"other": "nowhere.onnx"}}),
        (IMAGES, None, {"threads": 0}),
    ],
)
def test_errors_are_those_of_one_process(data, labels, options, workers_here, quantized):
    error = ModelError if "also" in options else CalibrationDataError
    with pytest.raises(error) as alone:
        _validated(quantized, data, labels=labels, **options)
    with pytest.raises(error) as shared:
        how = RayExecutor(workers=3, shard_batches=1)
        _validated(quantized, data, labels=labels, executor=how, **options)
    assert str(shared.value) == str(alone.value)


@pytest.mark.parametrize("executor", ["local", RayExecutor(workers=2, shard_batches=1)])
@pytest.mark.parametrize("metrics", [None, ["top1"]])
@pytest.mark.parametrize(
    ("labelled", "found"),
    [((True, True, False), "no labels, unlike those before it"), ((False, False, True), "labels, and those")],
)
def test_labels_of_some_batches_only(labelled, found, metrics, executor, workers_here, quantized):
    items = [
        (IMAGES[first : first + 6], LABELS[first : first + 6]) if has else (IMAGES[first : first + 6],)
        for first, has in zip((0, 6, 12), labelled, strict=True)
    ]
    options = {"labels": None, "batch_size": None, "executor": executor, "metrics": metrics}
    message = "metric 'top1' needs labels"
    if metrics is None or labelled[0]:
        message = f"^the batch that begins with sample 12 has {found}"
    with pytest.raises(CalibrationDataError, match=message):
        _validated(quantized, items, **options)


def test_a_metric_that_does_not_merge_or_fails_is_named(workers_here, quantized):
    with pytest.raises(UnsupportedError, match=r"'sum' .*merge\(other\)"):
        _validated(quantized, metrics=[Alone()], executor="ray")
    found = _validated(quantized, metrics=[Alone()]).measures[0]
    assert found.value == pytest.approx(_validated(quantized, metrics=[Sum()]).measures[0].value)
    with pytest.raises(CalibrationDataError, match=r"'slow' .*sample 0: ZeroDivisionError"):
        _validated(quantized, metrics=[Slow()], executor="ray")


def test_the_first_error_in_the_data_is_raised_not_the_first_in_time(
    cluster, quantized, tmp_path, monkeypatch
):
    data, refused = IMAGES.copy(), tmp_path / "refused"
    data[90] = np.nan

    class Telling(validation_workers._ValidationWork):
        """Leaves a file where it refuses the batch with the later error."""

        def open(self):
            function = super().open()

            def run(feed, labels, first, name_of):
                try:
                    return function(feed, labels, first, name_of)
                except CalibrationDataError:
                    if first == 90:
                        refused.touch()
                    raise

            return run

    def late(feeds, outputs):
        if len(feeds["images"]) == 6 and (feeds["images"] == IMAGES[48:54]).all():
            # On a machine where the other workers do not start, this one would wait for ever.
            latest = time.monotonic() + 300
            while not refused.exists() and time.monotonic() < latest:
                time.sleep(0.01)
            return "bad"
        return 1.0

    monkeypatch.setattr(validation_workers, "_ValidationWork", Telling)

    with pytest.raises(CalibrationDataError, match=r"metric 'late' returned 'bad'"):
        _validated(quantized, data, metrics=[late], executor=RayExecutor(workers=3, shard_batches=1))


def test_an_engine_is_judged_through_the_model_beside_it(workers_here, quantized, tmp_path, monkeypatch):
    onnx.save(quantized, tmp_path / "e.qdq.onnx")
    spec, result = (TensorSpec(name, "float32", (None,)) for name in ("images", "logits"))
    info = EngineInfo("tensorrt", "10.0", ("8.6",), (spec,), (result,), (), None, (), None, "")
    save_engine(tmp_path / "e.engine", b"plan", dataclasses.replace(info, qdq_model="e.qdq.onnx"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(opening, "gpu_problem", lambda: "there is none")  # nor is one for workers
    found = _validated("e.engine", executor="ray")
    assert found == _validated("e.engine")
    assert found.judged.startswith("the engine's Q/DQ model 'e.qdq.onnx' as fake quantization")


def test_models_on_disk_must_be_seen_by_the_workers(workers_here, quantized, tmp_path, monkeypatch):
    paths = {"reference": tmp_path / "r.onnx", "model": tmp_path / "q.onnx"}
    onnx.save(onnx.load(DEMO_MODEL), paths["reference"])
    onnx.save(quantized, paths["model"])
    monkeypatch.setattr(validation_workers, "fits_message", lambda _graph: False)
    monkeypatch.chdir(tmp_path)
    options = {"reference": "r.onnx", "metrics": ["top1"]}
    assert _validated("q.onnx", executor="ray", **options) == _validated("q.onnx", **options)
    with pytest.raises(ModelError, match=rf"the worker on '.*' does not see '{tmp_path}/no.engine', and eng"):
        _validated("no.engine", executor="ray", **options)


def test_different_stand_ins_are_not_mixed(workers_here, quantized, monkeypatch):
    """As where only some machines have a GPU."""

    class Different(validation_workers._ValidationWork):
        def open(self):
            function = super().open()

            def run(feed, labels, first, name_of):
                result = function(feed, labels, first, name_of)
                return dataclasses.replace(result, descriptions={"INT8": f"number {first}"})

            return run

    monkeypatch.setattr(validation_workers, "_ValidationWork", Different)
    with pytest.raises(ModelError, match=r"number 0.*number 6"):
        _validated(quantized, executor=RayExecutor(shard_batches=1))


def test_on_the_command_line(cluster, quantized, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(quantized, "q.onnx")
    np.savez("d.npz", images=IMAGES, labels=LABELS)
    line = f"validate q.onnx d.npz --reference {DEMO_MODEL} --also FP16={DEMO_MODEL}"
    line += " --batch-size 6 --threads 1 --json"
    assert main(line.split()) == 0
    alone = capsys.readouterr().out
    assert main(f"{line} --ray".split()) == 0
    assert capsys.readouterr().out == alone
    assert main(f"{line} --ray somewhere".split()) == 2
    assert "connected to a Ray cluster already" in capsys.readouterr().err


@pytest.mark.parametrize("build", [ranking_detector, plugin_detector])
def test_what_detections_are_picked_from(build, workers_here):
    model = build()
    table = trtint8.calibrate(model, images(8))
    how = {"reference": model, "labels": None, "batch_size": 2}
    found, alone = (
        _validated(trtint8.quantize(model, table), images(6), executor=executor, **how)
        for executor in (RayExecutor(shard_batches=2), "local")
    )
    assert found == alone and [output.name for output in found.outputs] == list(PICKED_FROM)


def test_workers_read_detections_as_the_first_batches_show_them(workers_here):
    """Large objects alone, of which the second worker has only some, could be boxes by their corners, too."""
    rows = np.array([[[50, 50, side, side, 0.9, 2]] for side in (20, 30, 90, 80, 90, 80)], np.float32)
    labels = np.array([[[50 - one / 2] * 2 + [50 + one / 2] * 2 + [2]] for one in rows[:, 0, 2]], np.float32)
    how = {"reference": rows_as_they_are(6), "metrics": ["detections"], "batch_size": 1}
    for executor in (RayExecutor(workers=2, shard_batches=2), "local"):
        data = {"x": rows, "labels": labels}
        found = _validated(rows_as_they_are(6), data, executor=executor, **how)
        assert found.measures[0].value == 1.0
