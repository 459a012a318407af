"""Calibration over a local Ray cluster of several processes."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from hashlib import sha256
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

import trtint8
from calibrators.data.opening import open_batches
from calibrators.errors import CalibrationDataError, ModelError, UnsupportedError, WorkerError
from calibrators.host.observer import Observer
from calibrators.ray import distributed
from calibrators.ray.cluster import RayExecutor
from calibrators.ray.distributed import RayObserver
from tests.calibrators.networks import network
from tests.calibrators.ray.readers import DeadOnArrival, Dying, TellingGpus, around, halved
from tests.calibrators.specs import floats, normal
from trtint8.cli.main import main
from trtint8.data import DEMO_MODEL, load_digits_split

pytest.importorskip("sklearn", reason="scikit-learn is not installed (pip install 'trtint8[demo]')")

ray = pytest.importorskip("ray", reason="Ray is not installed (pip install 'trtint8[ray]')")

#: Ray Data trips over its own deprecations.
rays_own_warnings = pytest.mark.filterwarnings("ignore::DeprecationWarning")

SAMPLES = 102  # 17 batches of 6
INPUTS = (floats("x", "n", 3),)
DATA = normal(5, 40, 3)


@pytest.fixture(scope="module")
def images():
    return load_digits_split().calibration_images[:SAMPLES]


@pytest.fixture(scope="module")
def expected(images, tmp_path_factory):
    """The table of one process: see :func:`_digest`."""
    return _digest(trtint8.calibrate(DEMO_MODEL, images, batch_size=6), tmp_path_factory.mktemp("table"))


def _digest(table, folder):
    """The SHA-256 of a table's file. Where files differ, pytest would compare their texts for hours."""
    path = folder / "table.json"
    table.save(path)
    return sha256(path.read_bytes()).hexdigest()


def _over_ray(data, tmp_path, *, batch_size=6, threads=None, limit=None, **how):
    table = trtint8.calibrate(
        DEMO_MODEL, data, batch_size=batch_size, threads=threads, limit=limit, executor=RayExecutor(**how)
    )
    return _digest(table, tmp_path)


def _model(operator="Relu"):
    return network(f"(float[n,3] x) => (float[n,3] y) {{ y = {operator}(x) }}").SerializeToString()


def _over(model, tensors, threads, **how):
    model, here = contextlib.nullcontext(model), contextlib.nullcontext(_model())
    return RayObserver(model, here, INPUTS, tensors, threads, RayExecutor(**how), "cpu", None, divides=False)


def _observe(shards, model=None, keep=0, **how):
    observer = _over(model or _model(), ["x", "y"], None, **how)
    return observer.observe(shards, keep=keep)


def _alone(data):
    return Observer(_model(), INPUTS, ["x", "y"]).observe(open_batches(data, INPUTS))


def _dying(tmp_path, deaths):
    shards = open_batches(DATA, INPUTS, batch_size=2)
    for number in range(deaths):
        (tmp_path / str(number)).touch()
    return around(shards, Dying, tmp_path, 2)


def test_the_table_is_that_of_one_process(cluster, images, expected, tmp_path):
    assert _over_ray(images, tmp_path, workers=3, shard_batches=4) == expected


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_the_table_does_not_depend_on_workers_and_shards(workers, workers_here, images, expected, tmp_path):
    for shard_batches, shards in ((17, 1), (4, 5), (1, 17)):
        assert -(-17 // shard_batches) == shards
        found = _over_ray(images, tmp_path, workers=workers, shard_batches=shard_batches)
        assert found == expected, (workers, shards)


def test_the_method_auto_is_among_what_does_not_depend_on_them(images, expected, tmp_path):
    table = trtint8.calibrate(DEMO_MODEL, images, batch_size=6)
    assert table.method == "auto" and max(table.choice.samples.values()) > 6
    assert _digest(table, tmp_path) == expected


def test_workers_keep_the_samples_that_one_process_keeps(workers_here):
    alone = Observer(_model(), INPUTS, ["x", "y"]).observe(open_batches(DATA, INPUTS), keep=7)
    seen = _observe(open_batches(DATA, INPUTS, batch_size=3), keep=7, workers=2, shard_batches=2)
    found, wanted = ([sample["x"].tolist() for sample in one.kept.samples] for one in (seen, alone))
    assert found == wanted and len(wanted) == 7


def test_nor_on_threads_that_divide_batches(workers_here, images, expected, tmp_path, monkeypatch):
    divided, opened = [], Observer.open

    def noted(observer, rows=1):
        divided.append((observer._most_rows, rows))
        return opened(observer, rows)

    monkeypatch.setattr(Observer, "open", noted)
    assert _over_ray(images, tmp_path, threads=2, workers=1, shard_batches=4) == expected
    assert divided[0] == (32, 6)


@pytest.mark.parametrize("batch_size", [1, 25, None])
def test_nor_on_the_batch_size(batch_size, workers_here, images, expected, tmp_path):
    assert _over_ray(images, tmp_path, batch_size=batch_size, threads=2) == expected


@pytest.mark.parametrize("kind", ["npz", "folder", "iterable"])
def test_nor_on_where_the_samples_lie(kind, workers_here, images, expected, tmp_path):
    data = tmp_path / kind
    if kind == "npz":
        np.savez(data := data.with_suffix(".npz"), images=images)
    elif kind == "folder":
        data.mkdir()
        for number, start in enumerate(range(0, SAMPLES, 40)):
            np.save(data / f"{number}.npy", images[start : start + 40])
    else:
        data = [{"images": images[start : start + 10]} for start in range(0, SAMPLES, 10)]
    assert _over_ray(data, tmp_path, shard_batches=4) == expected
    assert _over_ray(data, tmp_path, shard_batches=2, workers=2, batch_size=25) == expected


@rays_own_warnings
def test_a_ray_dataset_that_is_there(ray_data, workers_here, images, expected, tmp_path):
    dataset = ray_data.from_numpy(np.array_split(images, 7))  # blocks of 15 and 14, batches of 6
    assert _over_ray(dataset, tmp_path, shard_batches=4) == expected
    assert _over_ray(dataset, tmp_path, batch_size=40, workers=1) == expected


@rays_own_warnings
def test_ray_data_reports_no_usage_from_here(ray_data, images):
    ray_data.from_numpy(images).map_batches(halved, batch_size=10).materialize()
    assert not [thread.name for thread in threading.enumerate() if "usage" in thread.name]


@rays_own_warnings
def test_a_ray_dataset_that_is_computed_meanwhile(ray_data, images, expected, tmp_path):
    dataset = ray_data.from_numpy(np.array_split(2 * images, 7)).map_batches(halved, batch_size=10)
    assert _over_ray(dataset, tmp_path, shard_batches=2, workers=3) == expected


@rays_own_warnings
def test_a_ray_dataset_is_limited_and_checked(ray_data, workers_here, images, tmp_path):
    dataset = ray_data.from_numpy(np.array_split(images, 7))
    alone = _digest(trtint8.calibrate(DEMO_MODEL, images, batch_size=6, limit=50), tmp_path)
    assert _over_ray(dataset, tmp_path, limit=50) == alone
    with pytest.raises(CalibrationDataError, match="cannot shuffle"):
        trtint8.calibrate(DEMO_MODEL, dataset, shuffle=True, executor="ray")
    with pytest.raises(CalibrationDataError, match=r"^input 'images' takes float32"):
        _over_ray(ray_data.from_numpy(images.astype(np.float64)), tmp_path)


@rays_own_warnings
def test_a_ray_dataset_and_a_fixed_batch(ray_data, workers_here):
    shards = open_batches(ray_data.from_numpy(np.array_split(DATA, 3)), (floats("x", 6, 3),))
    with pytest.warns(UserWarning, match="left out the last 4 samples"):
        seen = _observe(shards)
    assert seen.histograms == _alone(DATA[:36]).histograms


@pytest.mark.parametrize("deaths", [1, 2])
def test_a_worker_that_is_killed_within_a_shard_leaves_no_trace(deaths, cluster, tmp_path):
    seen = _observe(_dying(tmp_path, deaths), workers=2, shard_batches=5)
    alone = _alone(DATA)
    assert list(tmp_path.iterdir()) == []  # they did die
    assert seen.histograms == alone.histograms
    assert seen.data_fingerprint == alone.data_fingerprint
    assert seen.samples == 40


def test_workers_that_are_killed_from_outside_leave_no_trace(cluster, images, expected, tmp_path):
    killed = []

    def feeds():
        for start in range(0, SAMPLES, 6):
            if start in (36, 72) and (workers := _workers_of(os.getpid())):
                os.kill(workers[0], signal.SIGKILL)
                killed.append(workers[0])
            yield {"images": images[start : start + 6]}

    assert _over_ray(feeds, tmp_path, batch_size=None, shard_batches=1, workers=3) == expected
    assert killed


def _workers_of(driver, doing=""):
    """Ids of the processes of workers, which descend from the driver; ``.work``: of those with a shard."""
    parents, names = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            names[int(folder.name)] = (folder / "cmdline").read_text()
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # it ended meanwhile
            continue

    def is_ours(process):
        while process in parents:
            if process == driver:
                return True
            process = parents[process]
        return False

    return [
        process
        for process, name in names.items()
        if name.startswith(f"ray::_ObservationWork{doing}") and is_ours(process)
    ]


def test_workers_that_die_again_and_again(cluster, tmp_path):
    with pytest.raises(WorkerError, match=r"3 workers died while at work on samples \d+ to \d+; if memory"):
        _observe(_dying(tmp_path, 99), workers=1, shard_batches=5)


def test_workers_that_die_before_they_are_ready(cluster):
    shards = around(open_batches(DATA, INPUTS), DeadOnArrival)
    with pytest.raises(WorkerError, match="3 workers died while opening the model; if memory"):
        _observe(shards)


def test_no_more_shards_are_made_than_workers_have_time_for(cluster, monkeypatch):
    made, done, in_flight = [], [], []

    def feeds():
        for start in range(0, 40, 2):
            made.append(2)
            in_flight.append((sum(made) - sum(done)) // 2)
            yield {"x": DATA[start : start + 2]}

    bar = contextlib.contextmanager(lambda *_args, **_options: iter([done.append]))
    monkeypatch.setattr(distributed, "progress_bar", bar)
    seen = _observe(open_batches(feeds, INPUTS), workers=2, shard_batches=1)
    assert seen.histograms == _alone(DATA).histograms
    assert done == made == [2] * 20
    # Four for each worker, and one that is merged meanwhile.
    assert 2 <= max(in_flight) <= 9


def test_an_error_of_a_worker_is_one_sentence_and_ends_the_others(cluster):
    bad = DATA.copy()
    bad[33, 1] = np.nan
    with pytest.raises(
        CalibrationDataError,
        match=r"^the data for input 'x' has 1 value that is NaN or infinite, the first in sample 33; ",
    ):
        _observe(open_batches(bad, INPUTS, batch_size=5), shard_batches=2)
    with pytest.raises(CalibrationDataError, match=r"^tensor 'y' held NaN"):
        _observe(open_batches(DATA, INPUTS), _model("Sqrt"))
    with pytest.raises(ModelError, match=r"^ONNX Runtime cannot run the model"):
        _observe(open_batches(DATA, INPUTS), _model("NoSuchOperator"))
    _wait_until(lambda: not _workers_of(os.getpid()))


@pytest.mark.slow
def test_one_broken_image_is_one_line_and_workers_import_nothing_of_the_current_folder(tmp_path):
    """Both are about processes of Ray that the program starts itself."""
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    for name in ("numpy", "onnx", "pandas", "cupy"):
        (tmp_path / f"{name}.py").write_text(f"open(r'{tmp_path}/trap', 'a').write('{name} ')\n")
    (tmp_path / "images").mkdir()
    for number in range(24):
        image.new("L", (8, 8), number).save(tmp_path / "images" / f"{number:02}.png")
    (tmp_path / "images" / "17.png").write_bytes(b"broken")
    command = [Path(sys.executable).with_name("trtint8"), "calibrate", DEMO_MODEL, "images", "-o", "t.json"]
    command += ["--mean", "0.5", "--std", "0.25"]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    done = subprocess.run(
        [*command, "--ray"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert f"'{tmp_path / 'images' / '17.png'}'" in done.stderr
    assert not (tmp_path / "trap").exists()


#: A data set that only its module has, and what that imports when it is asked for a sample.
LIKE_HUGGING_FACE = """
import numpy as np

class Data:
    column_names = ["images"]

    def with_format(self, *_, **__):
        return self

    def __len__(self):
        return 24

    def __getitem__(self, index):
        if not isinstance(index, (int, np.integer)):
            return {"images": [self[int(each)]["images"] for each in index]}
        import own_lazy_over_ray
        return {"images": np.full((1, 8, 8), own_lazy_over_ray.value(index), "f4")}

data = Data()
"""


def test_workers_find_the_users_own_modules(cluster, tmp_path):
    (tmp_path / "own_over_ray.py").write_text(LIKE_HUGGING_FACE)
    (tmp_path / "own_lazy_over_ray.py").write_text("def value(index):\n    return index / 24\n")
    program = Path(sys.executable).with_name("trtint8")
    tables = []
    for name, options in (("here", []), ("there", ["--ray", ray.get_runtime_context().gcs_address])):
        command = [program, "calibrate", DEMO_MODEL, "own_over_ray:data", "-o", f"{name}.json", *options]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        tables.append((tmp_path / f"{name}.json").read_bytes())
    assert tables[0] == tables[1]


def _wait_until(reached):
    for _ in range(6000):  # so that what never happens fails in the end
        if reached():
            return
        time.sleep(0.1)
    pytest.fail("not within 10 minutes")


def test_warnings_are_those_of_all_the_data(workers_here):
    blank = np.full((40, 3), 2.5, np.float32)
    expected = ["input 'x' is 2.5 in all 40 samples; check that the data is not blank"]
    assert _observe(open_batches(blank, INPUTS, batch_size=5), shard_batches=1).warnings() == expected
    blank[39] = 2.25
    assert _observe(open_batches(blank, INPUTS, batch_size=5), shard_batches=1).warnings() == []


def test_data_without_samples(workers_here):
    seen = _observe(open_batches(lambda: iter(()), INPUTS))
    with pytest.raises(CalibrationDataError, match="the data has no samples"):
        seen.warnings()


def test_a_model_on_disk_must_be_seen_by_the_worker(workers_here, tmp_path):
    path = tmp_path / "model.onnx"
    shards = open_batches(DATA, INPUTS)
    with pytest.raises(ModelError, match=r"does not see '.*model.onnx'"):
        _observe(shards, path)
    path.write_bytes(_model())
    assert _observe(shards, path).histograms == _alone(DATA).histograms


def test_workers_see_the_gpus_that_ray_reserves_for_them(cluster, images, expected, tmp_path):
    assert _over_ray(images, tmp_path, num_gpus=0.5) == expected
    with pytest.raises(CalibrationDataError, match="sees GPU '0'"):
        _observe(around(open_batches(DATA, INPUTS), TellingGpus), num_gpus=0.5)


def test_more_workers_than_there_is_room_for(cluster, images, expected, tmp_path):
    assert _over_ray(images, tmp_path, workers=9, shard_batches=1) == expected


@pytest.mark.parametrize(
    ("how", "threads", "sentence"),
    [
        (
            {"num_gpus": 2},
            1,
            "a worker needs 1 CPU and 2 GPU, but the largest machine of the Ray cluster has 3 and 1",
        ),
        ({}, 4, "a worker needs 4 CPU and 0 GPU"),
        ({"address": "somewhere"}, 1, "connected to a Ray cluster already"),
    ],
)
def test_what_the_cluster_cannot_do(how, threads, sentence, cluster):
    observer = _over(_model(), ["x"], threads, **how)
    with pytest.raises(UnsupportedError, match=sentence):
        observer.observe(open_batches(DATA, INPUTS))


def test_workers_without_gpus_are_not_asked_to_run_on_them(images):
    with pytest.raises(UnsupportedError, match="device 'cuda' would find none; set num_gpus"):
        trtint8.calibrate(DEMO_MODEL, images, executor="ray", device="cuda")


@pytest.mark.skipif("CUDAExecutionProvider" in ort.get_available_providers(), reason="it would run")
def test_workers_run_where_they_are_told(images, cluster):
    executor = RayExecutor(num_gpus=1)  # the cluster says that it has one
    with pytest.raises(UnsupportedError, match="has no CUDA provider; run pip"):
        trtint8.calibrate(DEMO_MODEL, images, executor=executor, device="cuda")


@pytest.mark.parametrize(("name", "value"), [("workers", 0), ("shard_batches", -1), ("num_gpus", -0.5)])
def test_an_executor_that_makes_no_sense(name, value):
    with pytest.raises(CalibrationDataError, match=f"{name} is {value}"):
        RayExecutor(**{name: value})


def test_an_unknown_executor():
    with pytest.raises(UnsupportedError, match="executor is 'dask'"):
        trtint8.calibrate(DEMO_MODEL, DATA, executor="dask")


def test_on_the_command_line(cluster, images, expected, tmp_path):
    np.savez(tmp_path / "data.npz", images=images)
    arguments = ["calibrate", str(DEMO_MODEL), str(tmp_path / "data.npz"), "-o", str(tmp_path / "t.json")]
    assert main([*arguments, "--batch-size", "6", "--ray"]) == 0
    assert sha256((tmp_path / "t.json").read_bytes()).hexdigest() == expected
    assert not (tmp_path / "t.json.checkpoint").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("address", "reason"),
    [("127.0.0.1:1", ".*Connection refused"), ("nonsense", "Invalid address|Port is not specified")],
)
def test_a_cluster_that_is_not_there(address, reason, tmp_path):
    arguments = ["calibrate", str(DEMO_MODEL), "random:8", "-o", str(tmp_path / "t.json"), "--ray", address]
    code = f"import sys; from trtint8.cli.main import main; sys.exit(main({arguments!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert re.fullmatch(
        r"warning: the calibration data is 'random:8': .*\n"
        f"trtint8 calibrate: cannot connect to the Ray cluster '{address}': ({reason}).*\n",
        done.stderr,
    )


@pytest.mark.slow
def test_without_ray_it_says_what_to_install():
    code = (
        "import sys; sys.modules['ray'] = None; import trtint8;"
        f"trtint8.calibrate({str(DEMO_MODEL)!r}, 'random:4', executor='ray')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "UnsupportedError: Ray is not installed" in done.stderr


@pytest.mark.slow
def test_ctrl_c_stops_the_workers(tmp_path):
    output = tmp_path / "t.json"
    command = [sys.executable, "-m", "trtint8.cli.main", "calibrate", str(DEMO_MODEL), "random:2000000"]
    process = subprocess.Popen(
        [*command, "-o", str(output), "--ray", "local"],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        # From then on the driver waits for results.
        _wait_until(lambda: _workers_of(process.pid, ".work"))
        workers = _workers_of(process.pid)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=600)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130
    assert re.fullmatch("warning: .*'random:2000000'.*\ninterrupted.*\n", said)
    assert not output.exists()
    _wait_until(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))
