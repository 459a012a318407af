import contextlib

import numpy as np
import onnx
import pytest

from calibrators.data.inputs import DataOptions
from calibrators.data.opening import open_batches, open_data
from calibrators.errors import CalibrationDataError, ModelError
from calibrators.host import cuda_session
from calibrators.host.observer import Observer
from calibrators.host.session import open_session
from tests.calibrators.histograms.kernels import whole
from tests.calibrators.networks import network
from tests.calibrators.specs import floats, normal

INPUTS = (floats("x", "n", 3),)
DATA = normal(5, 40, 3)
WEIGHT = normal(6, 3, 4)


def _model(operator="Relu"):
    text = f"(float[n,3] x) => (float[n,4] y) {{ product = MatMul(x, w) y = {operator}(product) }}"
    return network(text, w=WEIGHT).SerializeToString()


def _observe(model, data=DATA, tensors=("x", "product", "y"), batch_size=7):
    batches = open_batches(data, INPUTS, batch_size=None if callable(data) else batch_size)
    return Observer(model, INPUTS, tensors).observe(batches)


def test_histograms_of_input_intermediate_and_output():
    seen = _observe(_model())
    assert seen.samples == 40
    assert seen.histograms["product"].amax == pytest.approx(np.abs(DATA @ WEIGHT).max(), rel=1e-6)
    assert seen.histograms["y"].zeros == int((DATA @ WEIGHT <= 0).sum())
    assert seen.histograms["x"] == whole(DATA)
    totals = {name: histogram.total for name, histogram in seen.histograms.items()}
    assert totals == {"x": 120, "product": 160, "y": 160}


def test_external_data_beside_the_model(tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(
        onnx.load_from_string(_model()), path, save_as_external_data=True, location="m.data", size_threshold=0
    )
    inline = _observe(_model())
    assert _observe(path).histograms == inline.histograms


@pytest.mark.parametrize("threads", [1, 2])
def test_nan_in_an_activation_names_the_tensor(threads):
    observer = Observer(_model("Sqrt"), INPUTS, ("y",), threads, most_rows=32)
    with pytest.raises(CalibrationDataError, match="'y' held NaN"):
        observer.observe(open_batches(DATA, INPUTS, batch_size=8))


def test_what_looks_odd_comes_back_as_a_warning():
    seen = _observe(_model(), np.full((8, 3), 2.5, np.float32))
    assert any("constant" in warning or "2.5" in warning for warning in seen.warnings())


def test_a_sample_without_meaning_is_named_by_its_place_in_the_data():
    bad = DATA.copy()
    bad[7, 1] = np.nan
    observer = Observer(_model(), INPUTS, ("y",))
    with pytest.raises(CalibrationDataError, match=r"1 value .* the first in sample 7;"):
        observer.observe(open_batches(bad, INPUTS, shuffle=True))


def test_what_the_runtime_or_the_observer_refuses():
    model = _model("NoSuchOperator")
    with pytest.raises(ModelError, match="NoSuchOperator"):
        _observe(model)
    with pytest.raises(ModelError, match="NoSuchOperator"):
        Observer(model, INPUTS, ("y",)).open().result()
    with pytest.raises(CalibrationDataError, match="threads is 0"):
        Observer(model, INPUTS, ("y",), 0)


def test_a_file_is_needed_until_the_model_is_open(tmp_path):
    path = tmp_path / "model.onnx"
    left = []

    @contextlib.contextmanager
    def written():
        path.write_bytes(_model())
        yield path
        path.unlink()
        left.append(path)

    observer = Observer(written(), INPUTS, ("y",))
    assert not left
    seen = observer.observe(open_batches(DATA, INPUTS))
    assert seen.histograms["y"].total == 40 * 4
    assert left == [path]
    unused = Observer(written(), INPUTS, ("y",))
    unused.close()
    assert left == [path] * 2


def test_data_that_nobody_has_divided_is_divided_by_what_fits(monkeypatch):
    """Found from the first sample; feeds of a stream stay as they are, and are run in pieces."""
    rows, seen = _rows_of_runs(monkeypatch), []

    def fitting(feed):
        seen.append(feed["x"].shape)
        return 4

    model, options = _model(), DataOptions(default_batch_size=None)
    whole = Observer(model, INPUTS, ("y",), 1, most_rows=fitting, divides=False)
    whole.observe(open_data(DATA[:10], INPUTS, options))
    assert (rows, seen) == ([4, 4, 2], [(1, 3)])
    rows.clear()
    whole.observe(open_data([{"x": DATA[:10]}], INPUTS, options))
    assert rows == [10]
    rows.clear()
    pieces = Observer(model, INPUTS, ("y",), 1, most_rows=fitting)
    pieces.observe(open_data([{"x": DATA[:10]}], INPUTS, options))
    assert rows == [4, 3, 3]
    rows.clear()
    pieces.observe(open_data(DATA[:3], INPUTS, options), alone=True)
    assert rows == [1, 1, 1]


@pytest.mark.parametrize("threads", [1, 3])
def test_parts_of_the_data_merge_to_the_whole(threads):
    observer = Observer(_model(), INPUTS, ("x", "product", "y"), threads)
    whole = observer.observe(open_batches(DATA, INPUTS))
    parts = [
        observer.observe(open_batches(part, INPUTS, batch_size=size))
        for part, size in ((DATA[25:], 4), (DATA[:3], 1), (DATA[3:25], 9))
    ]
    merged = parts[0].merge(parts[1]).merge(parts[2])
    assert merged.histograms == whole.histograms
    assert (merged.samples, merged.data_fingerprint) == (40, whole.data_fingerprint)
    assert merged.warnings() == whole.warnings() == []


def test_parts_that_look_odd_alone_need_not_be_odd_together():
    observer = Observer(_model(), INPUTS, ("y",))
    blank, other = (
        observer.observe(open_batches(np.full((2, 3), value, np.float32), INPUTS)) for value in (2.0, 3.5)
    )
    (warning,) = blank.warnings()
    assert blank.merge(other).warnings() == []
    assert blank.merge(blank).warnings() == [warning.replace("all 2 samples", "all 4 samples")]


def test_a_loader_may_overwrite_its_buffer():
    buffer = np.empty((4, 3), np.float32)

    def feeds():
        for start in range(0, 40, 4):
            buffer[:] = DATA[start : start + 4]
            yield {"x": buffer}

    seen = _observe(_model(), feeds)
    assert seen.histograms == _observe(_model()).histograms


def test_ctrl_c_in_the_data_comes_through():
    def feeds():
        yield {"x": DATA[:4]}
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _observe(_model(), feeds)


@pytest.mark.parametrize("batch_size", [1, 7, 40])
def test_the_samples_that_are_kept_depend_on_the_data_alone(batch_size):
    observer = Observer(_model(), INPUTS, ("y",))

    def kept(data, skip=0):
        batches = open_batches(data, INPUTS, batch_size=batch_size)
        seen = observer.observe(batches, keep=5, skip=skip).kept.samples
        return [sample["x"].tolist() for sample in seen]

    wanted = kept(DATA)
    assert len(wanted) == 5 and all(sample[0] in DATA.tolist() for sample in wanted)
    assert kept(DATA[::-1].copy()) == kept(DATA, skip=40) == wanted


def test_a_model_of_a_fixed_batch_keeps_whole_batches():
    inputs = (floats("x", 8, 3),)
    observer = Observer(_model(), inputs, ("y",))
    seen = observer.observe(open_batches(DATA, inputs), keep=3)
    assert [sample["x"].shape for sample in seen.kept.samples] == [(8, 3)] * 3


def _rows_of_runs(monkeypatch):
    """Notes how many samples each run has."""
    run, found = cuda_session.run_in_place, []

    def noted(session, names, feed):
        found.append(len(feed["x"]))
        return run(session, names, feed)

    monkeypatch.setattr(cuda_session, "run_in_place", noted)
    return found


@pytest.mark.parametrize("most_rows", [3, lambda feed: 3 if len(feed["x"]) > 1 else 1])
def test_batches_are_run_in_pieces(monkeypatch, most_rows):
    whole = Observer(_model(), INPUTS, ("x", "product", "y"))
    pieces = Observer(_model(), INPUTS, ("x", "product", "y"), 1, most_rows=most_rows)
    rows = _rows_of_runs(monkeypatch)
    wanted, found = (
        observer.observe(open_batches(DATA[:10], INPUTS, batch_size=8)) for observer in (whole, pieces)
    )
    assert rows == [8, 2, 3, 3, 2, 2]
    assert found.histograms == wanted.histograms and found.samples == 10


@pytest.mark.parametrize(
    ("threads", "usual_rows", "parts"), [(1, 8, 1), (2, 8, 2), (3, 2, 2), (8, 8, 4), (2, 1, 1)]
)
def test_threads_have_parts_of_a_batch(monkeypatch, threads, usual_rows, parts):
    opened, open_one = [], cuda_session.open_session

    def noted(model, **how):
        opened.append(how["threads"])
        return open_one(model, **how)

    monkeypatch.setattr(cuda_session, "open_session", noted)
    observer = Observer(_model(), INPUTS, ("x", "product", "y"), threads, most_rows=32)
    observer.open(usual_rows)
    rows = _rows_of_runs(monkeypatch)
    found = observer.observe(open_batches(DATA, INPUTS, batch_size=8), keep=5)
    assert rows == [8 // parts] * (5 * parts)
    assert opened == [threads - (parts - 1)]
    assert found.histograms == _observe(_model()).histograms


def test_parts_of_a_batch_are_no_larger_than_what_is_run_at_once(monkeypatch):
    rows = _rows_of_runs(monkeypatch)
    observer = Observer(_model(), INPUTS, ("y",), 2, most_rows=4)
    observer.observe(open_batches(DATA[:21], INPUTS, batch_size=10))
    assert sorted(rows) == [1] * 5 + [2] * 8


def test_the_model_that_was_observed_is_a_reference():
    model = _model()
    observer = Observer(model, INPUTS, ("product",))
    (found,) = observer.reference({"x": DATA[:4]})
    (wanted,) = open_session(model, optimize=True).run(None, {"x": DATA[:4]})
    np.testing.assert_array_equal(found, wanted)


def _outputs(observer, skip=0, **keeping):
    batches = open_batches(DATA, INPUTS, batch_size=16)
    return observer.observe(batches, keep=5, skip=skip, **keeping).kept


@pytest.mark.parametrize("tensors", [("product",), ("x", "product", "y")])
@pytest.mark.parametrize("most_rows", [None, 1, 3, 16])
def test_the_outputs_for_kept_samples_are_kept_where_that_is_wanted(tensors, most_rows):
    model = _model()
    observer = Observer(model, INPUTS, tensors, 3, most_rows=most_rows)
    kept = _outputs(observer, keep_outputs=True)
    for sample, outputs in zip(kept.samples, kept.outputs, strict=True):
        (wanted,) = observer.reference(sample)
        np.testing.assert_array_equal(outputs, [wanted])
    assert _outputs(observer).outputs == [None] * 5


def test_the_outputs_for_samples_that_are_skipped_are_not_known():
    observer = Observer(_model(), INPUTS, ("y",))
    every = [outputs is None for outputs in _outputs(observer, skip=40, keep_outputs=True).outputs]
    some = [outputs is None for outputs in _outputs(observer, skip=20, keep_outputs=True).outputs]
    assert all(every) and any(some) and not all(some)
