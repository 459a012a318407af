"""Several runs side by side."""

import dataclasses
import json

import onnx
import pytest

import trtint8
from calibrators.errors import TableError, TrtInt8Error
from calibrators.tables.table import CalibrationTable
from tests.trtint8.report.samples import (
    ACCURACY,
    HOSTILE,
    audit,
    engine_info,
    printed_tuning,
    table,
    write_all,
    write_json,
)
from trtint8.cli.main import main
from trtint8.data import DEMO_MODEL
from trtint8.engine.file import save_engine
from trtint8.engine.layers import LayerReport
from trtint8.engine.profiles import ShapeRange
from trtint8.models.model import load_model
from trtint8.report.comparison import ComparedRow, compare_runs
from trtint8.report.facts import gather
from trtint8.report.files import find_report_files
from trtint8.validation.accuracy import Judgement, Measure
from trtint8.validation.significance import Share, compare_counts


@pytest.fixture
def folders(tmp_path):
    """Two runs: the second with the first layer in FP32, more correct samples and no measured latency."""
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
        write_all(folder)
    info = engine_info(table())
    layer, floating = info.layers.layers
    layer = dataclasses.replace(floating, onnx_nodes=(HOSTILE,), name=layer.name)
    save_engine(
        second / "net.engine",
        bytes(3000),
        dataclasses.replace(info, layers=LayerReport((layer, floating)), weights_bytes=9000),
    )
    better = Measure("top1", Share(318, 400), Share(320, 400))
    changed = dataclasses.replace(ACCURACY, measures=(better, *ACCURACY.measures[1:]))
    write_json(second / "net.accuracy.json", changed)
    (second / "net.bench.json").unlink()
    return first, second


def test_a_layer_that_one_engine_keeps_in_float_is_listed(folders):
    """It is not among those that were meant to run in INT8 there."""
    info = engine_info(table())
    kept = dataclasses.replace(
        info, quantized_nodes=info.quantized_nodes[1:], float_nodes=((info.quantized_nodes[0], "kept"),)
    )
    layer, floating = info.layers.layers
    changed = dataclasses.replace(floating, onnx_nodes=layer.onnx_nodes, name=layer.name)
    kept = dataclasses.replace(kept, layers=LayerReport((changed, floating)))
    save_engine(folders[1] / "net.engine", bytes(3000), kept)
    [row] = compare_runs(folders).layers
    assert (row.name, row.values) == (info.quantized_nodes[0], ("INT8", "FP32"))


def values_of(compared):
    """The values of each row, by its name."""
    return {row.name: row.values for row in compared.rows}


def row_of(compared, name):
    return {row.name: row for row in compared.rows}[name]


def test_figures_side_by_side(folders):
    compared = compare_runs(folders)
    rows = values_of(compared)
    assert compared.runs == tuple(map(str, folders))  # both runs are called 'net'
    assert rows["calibration method"] == ("entropy", "entropy")
    assert rows["calibration table"] == (table().fingerprint[:8],) * 2
    assert rows["built for"] == ("8.6, 12.0", "8.6, 12.0")
    assert rows["profile 0, 'images'"] == ("1x3x16x16,8x3x16x16,32x3x16x16",) * 2
    assert rows["weighted layers in INT8"] == ("1 of 2", "0 of 2")
    assert rows["kernels: INT8 compute"] == ("1", "0") and rows["kernels: float compute"] == ("1", "2")
    assert [name for name in rows if name.startswith("kernels: ")] == [
        "kernels: INT8 compute", "kernels: float compute",
    ]  # fmt: skip
    assert rows["bytes of weights"] == ("5,248", "9,000")
    assert rows["bytes of the engine file"] == ("1,000", "3,000")
    assert rows["top-1"] == ("79.00 % (74.7-82.7)", "79.50 % (75.3-83.2)")
    assert rows["SQNR of 'scores'"] == ("26.25 dB", "26.25 dB")
    assert rows["latency, median"] == ("0.500 ms", None)
    assert rows["samples per second"] == ("16,000", None)
    assert rows["time of INT8+FP16, estimated"] == ("0.054 ms", "0.054 ms")


def test_differences_are_named(folders):
    compared = compare_runs(folders)
    assert compared.differences == (
        "weighted layers in INT8",
        "kernels: INT8 compute",
        "kernels: float compute",
        "bytes of weights",
        "bytes of the engine file",
    )
    # Of 400 samples, 316 and 318 are no difference.
    top1 = row_of(compared, "top-1")
    assert (top1.significant, top1.differs, top1.mark) == (False, False, "within chance")
    assert compared.layers == (ComparedRow(HOSTILE, ("INT8", "FP32")),)


def test_sizes_and_times_differ_from_a_percent_on(folders):
    sizes = (100_000, 100_900), (100_000, 101_100)
    for pair, marks in zip(sizes, ("within 1 %", "differs"), strict=True):
        for folder, size in zip(folders, pair, strict=True):
            save_engine(folder / "net.engine", bytes(size), engine_info(table()))
        compared = compare_runs(folders)
        row = row_of(compared, "bytes of the engine file")
        assert row.values == tuple(f"{size:,}" for size in pair) and row.mark == marks
        assert (row.name in compared.differences) is row.differs is (marks == "differs")


def test_engines_for_other_gpus_of_other_tables_and_profiles(folders):
    info = dataclasses.replace(
        engine_info(table()),
        table_fingerprint="0123456789abcdef",
        compute_capabilities=("8.0", "12.0"),
        profiles=({"images": ShapeRange((1, 3, 8, 8), (8, 3, 8, 8), (16, 3, 8, 8))},),
    )
    for folder in folders:
        for path in [*folder.glob("*.json"), folder / "net.qdq.onnx"]:
            path.unlink()
    save_engine(folders[0] / "net.engine", bytes(1000), engine_info(table()))
    save_engine(folders[1] / "net.engine", bytes(1000), info)
    compared = compare_runs(folders)
    rows = values_of(compared)
    assert rows["calibration table"] == (table().fingerprint[:8], "01234567")
    assert rows["built for"] == ("8.6, 12.0", "8.0, 12.0")
    assert rows["profile 0, 'images'"][1] == "1x3x8x8,8x3x8x8,16x3x8x8"
    assert compared.differences == ("calibration table", "built for", "profile 0, 'images'")
    assert compared.files == tuple(
        folder / name for folder in folders for name in ("net.engine", "net.engine.json")
    )


def test_a_run_with_itself(folders):
    compared = compare_runs([folders[0] / "net.engine", folders[0]])
    assert compared.differences == compared.layers == ()


def test_files_alone_have_their_own_names(folders):
    first, second = folders
    (second / "net.accuracy.json").rename(second / "other.accuracy.json")
    compared = compare_runs([first / "net.accuracy.json", second / "other.accuracy.json"])
    assert compared.runs == ("net", "other") and compared.differences == ()


def test_a_file_without_a_name_of_its_own_is_called_by_its_path(folders):
    first, second = folders
    accuracy = first / "accuracy.json"
    (first / "net.accuracy.json").rename(accuracy)
    assert compare_runs([accuracy, second]).runs == (str(accuracy), str(second))


def test_an_accuracy_of_another_model_is_named(folders):
    second = folders[1]
    other = dataclasses.replace(ACCURACY, judged_fingerprint="0a")
    write_json(second / "net.accuracy.json", other)
    (said,) = [one for one in compare_runs(folders).warnings if "another model or build" in one]
    assert said.startswith(f"{second}: the accuracy ")


def test_a_budget_that_is_missed_is_named(folders):
    goal = "top1: at least 99 %"
    judgement = Judgement(goal, False, 80.0, 1.0, 0.25, False, (f"{goal} is missed",), True)
    write_json(folders[0] / "net.accuracy.json", dataclasses.replace(ACCURACY, judgement=judgement))
    assert compare_runs(folders).warnings[0] == f"{folders[0]}: {goal} is missed"
    assert gather(find_report_files([folders[0]])).doubts == (f"{goal[0].upper()}{goal[1:]} is missed.",)


def judged(folder, name, count, total=400, reference=320):
    """Writes what `validate` prints of a run that has so many samples right."""
    share = Share(count, total)
    lost, gained = max(reference - count, 0) + 1, 1 + max(count - reference, 0)
    both = count - gained
    comparison = compare_counts(both, gained, lost, total - both - gained - lost, "FP32")
    measure = Measure("top1", share, Share(reference, total), (comparison,))
    accuracy = dataclasses.replace(ACCURACY, samples=total, top1=share, agreement=None, measures=(measure,))
    write_json(folder / f"{name}.accuracy.json", accuracy)
    return folder / f"{name}.accuracy.json"


@pytest.mark.parametrize(
    ("counts", "significant", "best"),
    [
        ((320, 320), False, None),
        ((316, 318), False, "b"),
        ((318, 290), True, "a"),
        ((290, 318), True, "b"),
        ((318, 290, 317), True, "a"),
        ((250, 320), True, "b"),
        ((398, 396), False, "a"),
    ],
)
def test_only_what_a_test_says_differs(tmp_path, counts, significant, best):
    files = [judged(tmp_path, name, count) for name, count in zip("abc", counts, strict=False)]
    compared = compare_runs(files)
    row = row_of(compared, "top-1")
    assert (row.significant, "top-1" in compared.differences) == (significant, significant)
    (verdict,) = compared.verdicts
    assert verdict.startswith("top-1: ") and "400 samples" in verdict
    if best:
        points = 100 * (max(counts) - sorted(counts)[-2]) / 400
        assert f"'{best}' is {points:.2f} points above" in verdict


def test_which_run_is_faster_and_which_is_closer_to_fp32(folders):
    (first,) = compare_runs(folders).verdicts
    assert f"'{folders[1]}' is 0.50 points above '{folders[0]}'" in first
    write_all(folders[1])
    faster = json.loads((folders[1] / "net.bench.json").read_text())
    latency = faster["reports"][0]["phases"]["latency"]
    faster["reports"][0]["phases"]["latency"] = {name: value / 2 for name, value in latency.items()}
    write_json(folders[1] / "net.bench.json", faster)
    for folder, level in zip(folders, (26.0, 24.5), strict=True):
        outputs = tuple(dataclasses.replace(one, sqnr_db=level) for one in ACCURACY.outputs)
        write_json(folder / "net.accuracy.json", dataclasses.replace(ACCURACY, measures=(), outputs=outputs))
    accurate, fast = compare_runs(folders).verdicts
    assert f"'{folders[0]}' is 1.50 dB above '{folders[1]}'" in accurate
    assert f"'{folders[1]}' is 2.00 times as fast as '{folders[0]}'" in fast
    row = row_of(compare_runs(folders), "SQNR of 'scores'")
    assert row.significant is None and row.mark == "differs"


def test_one_run_is_not_enough(folders):
    with pytest.raises(TableError, match="needs at least two runs; give two or more"):
        compare_runs(folders[:1])


def test_what_was_tuned(tmp_path):
    write_json(tmp_path / "one.json", printed_tuning())
    other = {
        **printed_tuning(),
        "remedies": ("bias correction",),
        "keep_float": (),
        "float_cost": 0.0,
        "goal": "",
    }
    write_json(tmp_path / "other.json", other)
    rows = values_of(compare_runs([tmp_path / "one.json", tmp_path / "other.json"]))
    assert rows["top-1"] == ("79.00 % (74.7-82.7)",) * 2
    assert rows["tuned for"] == ("top1: a drop of at most 1 point", None)
    assert rows["changed weights"] == ("none", "bias correction")
    assert rows["layers in float"] == ("1, 12.5 % of the arithmetic", "0, 0.0 % of the arithmetic")
    assert rows["candidates tried"] == ("5", "5")


@pytest.fixture
def quantized(tmp_path):
    """Two Q/DQ models, the second with the first layer in float."""
    made = trtint8.calibrate(DEMO_MODEL, "random:4", tensors="placed")
    paths = tmp_path / "all.qdq.onnx", tmp_path / "most.onnx"
    onnx.save(trtint8.quantize(DEMO_MODEL, made), paths[0])
    onnx.save(trtint8.quantize(DEMO_MODEL, made, keep_float=["/stem/conv/Conv"]), paths[1])
    return paths


@pytest.mark.filterwarnings("ignore:the calibration data is 'random")
def test_models_without_engines(quantized):
    compared = compare_runs(quantized)
    assert compared.runs == ("all", "most")
    rows = values_of(compared)
    assert rows["weighted layers with Q/DQ pairs"] == ("9 of 9", "8 of 9")
    assert rows["Q/DQ model"] == tuple(load_model(path).fingerprint[:8] for path in quantized)
    assert compared.layers == (ComparedRow("/stem/conv/Conv", ("INT8", "float"), module="stem.conv"),)
    assert compared.differences == ("Q/DQ model", "weighted layers with Q/DQ pairs")
    again = compare_runs([quantized[0], quantized[0]])
    assert again.differences == again.layers == ()


@pytest.mark.filterwarnings("ignore:the calibration data is 'random")
def test_what_a_model_asks_for_is_not_set_beside_what_an_engine_runs(quantized, folders):
    compared = compare_runs([*quantized, folders[0]])
    rows = values_of(compared)
    assert rows["weighted layers with Q/DQ pairs"] == ("9 of 9", "8 of 9", None)
    assert rows["weighted layers in INT8"] == (None, None, "1 of 2")
    assert compared.layers == ()


@pytest.mark.filterwarnings("ignore:the calibration data is 'random")
def test_runs_without_a_figure_in_common_are_refused(quantized, folders):
    with pytest.raises(TableError) as caught:
        compare_runs([quantized[1], folders[0]])
    assert str(caught.value) == (
        "no figure of 'most' stands in the files of another run; compare files of the same kind, or folders "
        "that 'trtint8 build' wrote to"
    )


def test_warnings_have_the_names_of_their_runs_and_notes_stay_notes(folders, capsys):
    for folder, said in zip(folders, (("doubt",), ("note: fact", "doubt")), strict=True):
        dataclasses.replace(table(), warnings=said).save(folder / "net.table.json")
    first, second = map(str, folders)
    kept = compare_runs(folders).warnings
    assert kept == (f"{first}: doubt", f"{second}: doubt", f"note: {second}: fact")
    assert main(["compare", first, second]) == 0
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("doubtful", "note"))]
    assert shown == [f"doubtful: {first}: doubt", f"doubtful: {second}: doubt", f"note: {second}: fact"]


def test_files_of_which_nothing_is_compared(folders):
    with pytest.raises(TableError, match=r"nothing in '.*net\.sensitivity\.json' is compared; give engines"):
        compare_runs([folder / "net.sensitivity.json" for folder in folders])


def test_times_of_small_networks(folders):
    """All in one unit, so that equal times are equal texts."""
    whole = audit(table())
    small = dataclasses.replace(whole.engines[0], precision="INT8", seconds=2e-7)
    write_json(folders[1] / "net.audit.json", dataclasses.replace(whole, engines=(whole.engines[0], small)))
    rows = values_of(compare_runs(folders))
    assert rows["time of FP16, estimated"] == ("21.841 us", "21.841 us")
    assert rows["time of INT8, estimated"] == (None, "0.200 us")


def test_kernels_of_one_of_several_profiles(folders):
    info = engine_info(table())
    first, second = info.layers.layers
    other = dataclasses.replace(first, name="conv [profile 1]_myl1_2")
    profiles = (*info.profiles, *info.profiles)
    two = dataclasses.replace(info, layers=LayerReport((first, second, other)), profiles=profiles)
    save_engine(folders[0] / "net.engine", bytes(1000), two)
    rows = values_of(compare_runs(folders))
    assert rows["kernels"] == ("2", "2") and rows["kernels: INT8 compute"] == ("1", "0")
    assert rows["kernels and bytes"] == ("those of profile 0", None)


def test_the_method_is_that_of_the_engine(folders):
    CalibrationTable(dict(table().amax), "minmax").save(folders[1] / "net.table.json")
    rows = values_of(compare_runs(folders))
    assert rows["calibration method"] == ("entropy", "entropy")


@pytest.mark.parametrize("sources", [[1, 2], 3, [b"first", b"second"]])
def test_what_is_no_path(sources):
    with pytest.raises(TrtInt8Error, match=r"give the path|give a string"):
        compare_runs(sources)
