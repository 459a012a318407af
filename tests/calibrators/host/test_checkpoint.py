import base64
import hashlib
import subprocess
import sys
import zlib

import numpy as np
import onnx
import pytest

import trtint8
from calibrators import records
from calibrators.data.opening import open_batches
from calibrators.errors import CalibrationDataError, OutputError, TableError
from calibrators.histograms.histogram import Histogram
from calibrators.host import checkpoint as checkpoint_module
from calibrators.host import cuda_session, observer
from calibrators.host.checkpoint import CALIBRATION, Checkpoint, Counted
from tests.calibrators.histograms.kernels import whole
from tests.calibrators.host.checkpoint_files import change, document_of
from tests.calibrators.killing import AFTER, BEFORE, kill_at_write
from tests.calibrators.networks import network
from tests.calibrators.specs import NO_FILES, floats, normal
from trtint8.cli.main import main
from trtint8.data import DEMO_MODEL

INPUTS = (floats("x", "n", 3),)
DATA = normal(5, 40, 3)
IDENTITY = {"model": "abc", "onnxruntime": "1.2"}


def _model():
    weight = normal(6, 3, 4)
    return network("(float[n,3] x) => (float[n,4] y) { y = MatMul(x, w) }", w=weight)


def _feeds(data, size, stop=None):
    for start in range(0, len(data), size):
        if stop is not None and start >= stop:
            raise ConnectionError("the disk is gone")
        yield {"x": data[start : start + size]}


def _observe(path, feeds, resume=True, tensors=("x", "y")):
    checkpoint = Checkpoint(path, IDENTITY, CALIBRATION, resume, seconds=0) if path else None
    batches = open_batches(lambda: feeds, INPUTS)
    watching = observer.Observer(_model().SerializeToString(), INPUTS, tensors)
    return watching.observe(batches, checkpoint=checkpoint)


def _interrupted(path, stop, size=4):
    with pytest.raises(ConnectionError):
        _observe(path, _feeds(DATA, size, stop))


def _same(first, second):
    assert first.histograms == second.histograms
    assert (first.samples, first.data_fingerprint) == (second.samples, second.data_fingerprint)


@pytest.mark.parametrize("size", [4, 7, 40])
def test_an_interrupted_run_continues_with_the_same_result_whatever_the_batch_size(
    tmp_path, size, monkeypatch
):
    whole = _observe(None, _feeds(DATA, 8))
    _interrupted(tmp_path / "c", 24)
    fed = []
    run = cuda_session.run_in_place
    monkeypatch.setattr(
        cuda_session,
        "run_in_place",
        lambda session, names, feed: fed.append(feed["x"]) or run(session, names, feed),
    )
    _same(_observe(tmp_path / "c", _feeds(DATA, size)), whole)
    # The last batch before the interruption was read, but not yet counted and written.
    np.testing.assert_array_equal(np.concatenate(fed), DATA[20:])


def test_interrupted_again_and_again(tmp_path):
    for stop in (8, 20, 20, 36):
        _interrupted(tmp_path / "c", stop)
    _same(_observe(tmp_path / "c", _feeds(DATA, 4)), _observe(None, _feeds(DATA, 4)))


def test_a_finished_checkpoint_runs_nothing_again(tmp_path, monkeypatch):
    whole = _observe(tmp_path / "c", _feeds(DATA, 4))
    monkeypatch.setattr(cuda_session, "run_in_place", None)
    _same(_observe(tmp_path / "c", _feeds(DATA, 5)), whole)


def test_without_resume_it_begins_anew(tmp_path):
    _interrupted(tmp_path / "c", 24)
    other = DATA + 1
    _same(_observe(tmp_path / "c", _feeds(other, 4), resume=False), _observe(None, _feeds(other, 4)))


@pytest.mark.parametrize(
    "data", [DATA + 1, DATA[::-1], DATA[:10], DATA[4:]], ids=["other", "order", "fewer", "moved"]
)
def test_other_data_is_refused(tmp_path, data):
    _interrupted(tmp_path / "c", 24)
    with pytest.raises(CalibrationDataError, match="first 20 samples"):
        _observe(tmp_path / "c", _feeds(data, 4))


def test_another_model_version_or_set_of_tensors_is_refused(tmp_path):
    _interrupted(tmp_path / "c", 24)
    for other, named in (
        ({"model": "xyz"}, "model .*abc .*xyz"),
        ({"onnxruntime": "2"}, "onnxruntime .*1.2 .*2"),
    ):
        with pytest.raises(TableError, match=named):
            Checkpoint(tmp_path / "c", {**IDENTITY, **other}, CALIBRATION, resume=True).load()
    with pytest.raises(TableError, match="tensors"):
        _observe(tmp_path / "c", _feeds(DATA, 4), tensors=("y",))


def _flipped(content):
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize(
    "damage", [lambda _: b"", lambda _: b"no archive", lambda content: content[:-500], _flipped]
)
def test_a_damaged_file_is_refused_and_stays(tmp_path, damage):
    path = tmp_path / "c"
    _interrupted(path, 24)
    content = damage(path.read_bytes())
    path.write_bytes(content)
    with pytest.raises(TableError, match=r"c' \(.*\); remove it"):
        _observe(path, _feeds(DATA, 4))
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("work", "named"),
    [
        (lambda document: document.update(version=0), "trtint8-checkpoint 0"),
        (lambda document: document.update(format="trtint8-sensitivity"), "trtint8-sensitivity 1"),
        (lambda document: document.pop("format"), "another version"),
        (lambda document: document.update(kind="search"), "'search'"),
        (lambda document: document.update(more=1), "`more`"),
        (lambda document: document.update(identity=[]), r"\$.identity"),
        (lambda document: document.update(progress=[]), r"\$.progress"),
        (lambda document: document["progress"].update(samples=-4), r"\$.samples"),
    ],
)
def test_a_file_that_no_calibration_of_this_version_has_written_is_refused(work, named, tmp_path):
    path = tmp_path / "c"
    _interrupted(path, 24)
    change(path, work)
    with pytest.raises(TableError, match=f"c' .*{named}"):
        _observe(path, _feeds(DATA, 4))


@pytest.mark.parametrize("content", [b"PK\x03\x04 an archive", b'{"identity": {}, "progress": {}}'])
def test_files_of_earlier_versions_are_refused_and_may_be_overwritten(content, tmp_path):
    path = tmp_path / "c"
    path.write_bytes(content + b"\nsha256:" + hashlib.sha256(content).hexdigest().encode())
    with pytest.raises(TableError, match=r"c' \(another version of trtint8 has written it.*; remove it"):
        _checkpoint(path).load()
    assert _checkpoint(path, resume=False).load() is None


@pytest.mark.slow
def test_killed_while_it_writes_it_ends_with_the_same_table(tmp_path):
    model, data = tmp_path / "m.onnx", tmp_path / "d.npy"
    onnx.save(_model(), model)
    np.save(data, normal(1, 40, 3))
    command = ["calibrate", str(model), str(data), "--batch-size", "1", "--checkpoint-seconds", "0", "-o"]
    assert main([*command, str(tmp_path / "whole.json")]) == 0
    assert not (tmp_path / "whole.json.checkpoint").exists()

    output, checkpoint = tmp_path / "killed.json", tmp_path / "killed.json.checkpoint"
    reached = []
    for place, number in ((BEFORE, 1), (AFTER, 4), (BEFORE, 6), (AFTER, 2)):
        kill_at_write(place, number, [*command, output, "--resume"])
        reached.append(_samples(checkpoint))
    # What was killed before the rename has left what it had written the time before.
    assert reached[0] is None
    assert 0 < reached[1] < reached[2] < reached[3] < 40
    assert (reached[2] - reached[1], reached[3] - reached[2]) == (5, 2)
    assert not output.exists()
    assert main([*command, str(output), "--resume"]) == 0
    assert output.read_bytes() == (tmp_path / "whole.json").read_bytes()
    assert not checkpoint.exists()


def _samples(path):
    return document_of(path)["progress"]["samples"] if path.exists() else None


@pytest.mark.parametrize("content", [b'{"mine": 1}', b"", b"mine\nsha256:abc"])
def test_a_file_that_is_something_else_is_neither_overwritten_nor_removed(content, tmp_path, capsys):
    path, beside = tmp_path / "notes.json", tmp_path / "t.json.checkpoint"
    path.write_bytes(content)
    beside.write_bytes(content)
    with pytest.raises(OutputError, match=r"notes\.json'"), pytest.warns(UserWarning, match="random:8"):
        trtint8.calibrate(DEMO_MODEL, "random:8", checkpoint=path, checkpoint_seconds=0)
    assert main(["calibrate", str(DEMO_MODEL), "random:8", "-o", str(tmp_path / "t.json")]) == 2
    assert str(beside) in capsys.readouterr().err
    assert path.read_bytes() == beside.read_bytes() == content


def _progress():
    histogram = whole(np.float32([0.5, 3.0]))
    return Counted(2, "data", {"x": histogram})


def _checkpoint(path, resume=True):
    return Checkpoint(path, IDENTITY, CALIBRATION, resume)


@pytest.mark.parametrize("target", ["a checkpoint", "a file", "nothing"])
@pytest.mark.parametrize("resume", [True, False])
def test_a_link_is_neither_read_nor_written_through(target, resume, tmp_path):
    """Verbs choose the name of the checkpoint: anyone may have put a link there."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    if target == "a checkpoint":
        _checkpoint(folder / "file").save(_progress())
    elif target == "a file":
        (folder / "file").write_bytes(b"secret")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    (tmp_path / "c").symlink_to(folder / "file")
    checkpoint = _checkpoint(tmp_path / "c", resume)
    with pytest.raises(OutputError, match="is a symbolic link"):
        checkpoint_module.check_place(tmp_path / "c")
    with pytest.raises((OutputError, TableError), match="c'"):
        checkpoint.load()
    with pytest.raises(OutputError, match="is a symbolic link"):
        checkpoint.save(_progress())
    checkpoint.remove()
    assert not (tmp_path / "c").is_symlink()
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("verb", ["calibrate", "sensitivity", "tune"])
def test_verbs_refuse_a_link_in_the_place_of_their_checkpoint(verb, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("d.npy", np.zeros((4, 1, 8, 8), np.float32))
    model, output = str(DEMO_MODEL), "o.onnx" if verb == "tune" else "o.json"
    trtint8.CalibrationTable({"x": 1.0}).save("t.json")
    arguments = {"sensitivity": ["t.json", "d.npy"], "tune": ["d.npy", "d.npy"]}.get(verb, ["d.npy"])
    kept = "o.json.partial" if verb == "sensitivity" else f"{output}.checkpoint"
    (tmp_path / kept).symlink_to("elsewhere")
    before = sorted(tmp_path.iterdir())
    assert main([verb, model, *arguments, "-o", output]) == 2
    assert "is a symbolic link" in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("make", NO_FILES)
def test_what_is_no_file_is_refused_and_not_waited_for(make, tmp_path):
    make(tmp_path / "c")
    with pytest.raises(TableError, match="cannot read the checkpoint"):
        _checkpoint(tmp_path / "c").load()
    with pytest.raises(OutputError, match="cannot write the checkpoint"):
        _checkpoint(tmp_path / "c", resume=False).load()


def test_what_would_be_too_large_to_be_read_again_is_not_written(tmp_path, monkeypatch):
    checkpoint = _checkpoint(tmp_path / "c")
    checkpoint.save(_progress())
    size = (tmp_path / "c").stat().st_size
    monkeypatch.setattr(records, "MOST_BYTES", size)
    checkpoint.save(_progress())
    assert checkpoint.load() == _progress()
    monkeypatch.setattr(records, "MOST_BYTES", size - 1)
    with pytest.raises(TableError, match=f"larger than {size - 1:,} bytes"):
        checkpoint.load()
    checkpoint.remove()
    with pytest.warns(UserWarning, match="is not written"):
        checkpoint.save(_progress())
    assert checkpoint.load() is None


def test_with_the_checkpoint_goes_what_killed_runs_have_left_of_it(tmp_path):
    """A run that is killed while it writes leaves a temporary; the one that goes on may write no more."""
    checkpoint = _checkpoint(tmp_path / "c")
    killed = (
        "import os, sys; from calibrators.files import write_atomically\n"
        "os.fsync = lambda _descriptor: os.kill(os.getpid(), 9)\n"
        "write_atomically(sys.argv[1], b'progress')"
    )
    subprocess.run([sys.executable, "-c", killed, str(tmp_path / "c")], check=False)
    assert len(list(tmp_path.iterdir())) == 1
    checkpoint.remove()
    assert not list(tmp_path.iterdir())


def test_a_file_holds_identity_and_progress_exactly(tmp_path):
    checkpoint = _checkpoint(tmp_path / "c")
    assert checkpoint.load() is None
    histogram = whole(np.float32([1e-44, 0.1, 3e38, np.inf, np.nan, 0]))
    counted = Counted(3, "fingerprint", {"a/b:0": histogram, "nothing seen": Histogram()})
    checkpoint.save(counted)
    assert _checkpoint(tmp_path / "c").load() == counted
    assert document_of(tmp_path / "c")["identity"] == IDENTITY
    checkpoint.remove()
    assert checkpoint.load() is None


def _number(name, value):
    return lambda progress: progress["histograms"]["x"]["histogram"].update({name: value})


def _counts(work, packed=zlib.compress):
    def changed(progress):
        stored = progress["histograms"]["x"]["histogram"]
        counts = np.frombuffer(zlib.decompress(base64.b64decode(stored["counts"])), "<i8")
        stored["counts"] = base64.b64encode(packed(work(counts).tobytes())).decode()

    return changed


def _progress_with(name, *values):
    return [lambda progress, value=value: progress.update({name: value}) for value in values]


def _tensor_with(**values):
    return lambda progress: progress["histograms"]["x"].update(values)


@pytest.mark.parametrize(
    "work",
    [
        *(_number("bin_width", width) for width in (1e-300, 1.0, 1e300, -1.0, 0, None, "nan")),
        *(_number("amax", amax) for amax in (1e30, 1e-30, 0.0, 3.0000001, 10**400, "nan", "inf")),
        *(_number("zeros", count) for count in (10**30, 1 << 62, 1 << 50, -1, 0.5, None)),
        *(_number("infs", count) for count in (10**30, 1 << 62, 1 << 50, -1, 0.5, None)),
        *(_number("octave", octave) for octave in (-1, 1 << 40, 0.5, "1")),
        *(_number("octaves", octaves) for octaves in ("", "AAAA", 7)),
        *(_number("counts", counts) for counts in ("", "AAAA")),
        *(_tensor_with(nans=count) for count in (10**30, 1 << 50, -1, 0.5, None)),
        *_progress_with("histograms", [], {"x": None}),
        *_progress_with("samples", 1 << 70, -3, 0, 4.5),
        *_progress_with("data", 5),
        *_progress_with("more", 1),
        lambda progress: progress["histograms"]["x"]["histogram"].pop("counts"),
        lambda progress: progress.pop("data"),
        _counts(lambda counts: -counts),
        _counts(lambda counts: counts[:1024]),
        _counts(lambda counts: counts[:-1]),
        _counts(lambda counts: np.concatenate([counts, counts])),
        _counts(lambda counts: np.roll(counts, 1)),
        _counts(lambda counts: counts, packed=lambda raw: zlib.compress(raw)[:-5]),
        _counts(lambda counts: counts, packed=bytes),
        _counts(lambda counts: np.zeros(1 << 24, np.int64)),  # a small file that fills memory
    ],
)
def test_a_file_that_no_calibration_has_written_is_refused(work, tmp_path):
    histogram = whole(np.float32([0, 0.25, 3.0]))
    checkpoint = _checkpoint(tmp_path / "c")
    checkpoint.save(Counted(3, "fingerprint", {"x": histogram, "y": Histogram(zeros=3)}))
    assert checkpoint.load().samples == 3
    change(tmp_path / "c", lambda document: work(document["progress"]))
    with pytest.raises(TableError, match=r"c' \("):
        checkpoint.load()
