"""How a comparison shows itself."""

import dataclasses

import pytest

from tests.trtint8.report.samples import ACCURACY
from trtint8.validation.accuracy import (
    Accuracy,
    Measure,
    SeenSamples,
    accuracy_frame,
    accuracy_html,
    accuracy_rows,
    accuracy_summary,
    percent,
    verdicts,
)
from trtint8.validation.fidelity import Fidelity
from trtint8.validation.significance import Comparison, SameAnswer, Share


def test_the_text_is_one_line():
    short = "top-1 79.00 % (FP32 80.00 %), SQNR of 'scores' 26.25 dB"
    assert (repr(ACCURACY), accuracy_summary(ACCURACY)) == (f"<Accuracy: 400 samples, {short}>", short)
    assert accuracy_summary(dataclasses.replace(ACCURACY, measures=())) == "SQNR of 'scores' 26.25 dB"
    assert repr(Accuracy("a test", 4, None, None, None, None, None, ())) == "<Accuracy: 4 samples>"


HALF = Share(1, 2)


def _verdict(comparison, value=HALF, name="top1"):
    measures = (Measure(name, value, value, (comparison,)),)
    (line,) = verdicts(Accuracy("a test", 4, None, None, None, None, None, (), measures), "INT8")
    return line


def test_verdicts_in_plain_words():
    noise = Comparison("FP32", -0.0005, (-0.0061, 0.0051), 0.9, "McNemar", 2000)
    assert _verdict(noise) == (
        "top-1: INT8 is 0.05 points below FP32 (95 % interval -0.61 to +0.51): no difference that "
        "2,000 samples can show (McNemar p = 0.90)"
    )
    loss = Comparison("FP32", -0.012, (-0.019, -0.005), 0.0004, "McNemar", 50_000)
    assert _verdict(loss, name="agreement") == (
        "same class as FP32: INT8 is 1.20 points below FP32 (95 % interval -1.90 to -0.50): more than chance "
        "on 50,000 samples (McNemar p = 0.0004)"
    )
    one = Comparison("FP32", 0.0, (-0.79, 0.79), 1.0, "McNemar", 1)
    assert "no difference that 1 sample can show" in _verdict(one)
    gain = Comparison("FP32", 0.25, (0.125, 0.5), 0.01, "bootstrap", 7, "batches")
    assert _verdict(gain, value=3.5, name="loss") == (
        "loss: INT8 is 0.25 above FP32 (95 % interval +0.125 to +0.5): more than chance on 7 batches "
        "(bootstrap p = 0.01)"
    )


@pytest.mark.parametrize(("same", "said"), [(0.5, 0), (0.25, 1)])
def test_nothing_is_said_of_a_metric_of_which_samples_show_nothing(same, said):
    level = Comparison("FP32", 0.0, (-0.1, 0.1), 1.0, "McNemar", 12)
    measure = Measure("top1", HALF, HALF, (level,), same_answer=SameAnswer(same, is_beaten=False))
    accuracy = Accuracy(
        "a test", 12, None, None, None, None, None, (), (measure,), seen=SeenSamples(12, 1, {})
    )
    assert len(verdicts(accuracy, "INT8")) == said


def test_a_row_for_each_measure_and_each_figure_of_an_output():
    measures = (Measure("top1", HALF, Share(1, 1)), Measure("loss", 0.25, 0.5))
    output = Fidelity("y", 30.0, 0.999, 0.125)
    other = Accuracy("other", 4, None, None, None, None, None, (output,), measures)
    accuracy = Accuracy("a test", 4, None, None, None, None, None, (output,), measures, also={"FP16": other})
    rows = accuracy_rows(accuracy)
    assert rows[1] == ("loss", "0.5", "0.25", "0.25")
    assert rows[0][0] == "top-1" and rows[0][2] == rows[0][3] == percent(HALF)
    assert [row[0] for row in rows[2:]] == ["SQNR of 'y'", "cosine of 'y'", "largest error of 'y'"]
    assert rows[2][2:] == ("30.00 dB", "30.00 dB")
    assert rows[4][2] == "0.125"
    low, high = Share(9, 10).interval
    assert percent(Share(9, 10)) == f"90.00 % ({100 * low:.1f}-{100 * high:.1f})" and percent(None) == "-"


def test_metrics_of_other_tasks_in_their_units():
    worse = Comparison("FP32", -1.25, (-2.0, -0.5), 0.01, "bootstrap", 18)
    less = Comparison("FP32", -0.0125, (-0.02, -0.005), 0.01, "bootstrap", 18)
    measures = (
        Measure("psnr", 26.0, 27.25, (worse,), "PSNR of 'hr' against the labels", "dB"),
        Measure("pixels", 0.95, 0.9625, (less,), "positions of 'y' with the label's class", "%"),
        Measure("top1:aux", HALF, HALF, unit="%"),
    )
    accuracy = Accuracy("a test", 18, None, None, None, None, None, (), measures)
    assert accuracy_rows(accuracy) == [
        ("PSNR of 'hr' against the labels", "27.25 dB", "26.00 dB"),
        ("positions of 'y' with the label's class", "96.25 %", "95.00 %"),
        ("top-1:aux", percent(HALF), percent(HALF)),
    ]
    psnr, pixels = verdicts(accuracy, "INT8")
    assert psnr.startswith(f"{measures[0].title}: INT8 is 1.25 dB below FP32 (95 % interval -2 to -0.5)")
    assert pixels.startswith(f"{measures[1].title}: INT8 is 1.25 points below FP32")


def test_a_table_has_every_model_and_what_differences_mean():
    page = accuracy_html("title", dataclasses.replace(ACCURACY, also={"FP16": ACCURACY}), "INT8")
    assert page.count("80.00 % (75.8-83.6)") == 1 and page.count("79.00 % (74.7-82.7)") == 2
    assert "top-1: INT8 is 1.00 points below FP32" in page and "top-1: FP16 is 1.00 points below" in page
    page = accuracy_html("title", ACCURACY, "tuned", ("a note",))
    assert ">tuned</th>" in page and "<div>a note</div>" in page and "tuned is 1.00 points below" in page
    page = dataclasses.replace(ACCURACY, chosen="chosen by <shape>")._repr_html_()
    assert "400 samples; INT8 is the Q/DQ model as fake quantization" in page
    assert "chosen by &lt;shape&gt;" in page


def test_the_data_frame_has_numbers():
    pytest.importorskip("pandas", reason="pandas is not installed (pip install 'trtint8[notebook]')")
    assert ACCURACY.to_pandas()["FP32"].isna().tolist() == [False, True, False, True, True, True]
    frame = accuracy_frame(dataclasses.replace(ACCURACY, also={"FP16": ACCURACY})).set_index("metric")
    assert list(frame.columns) == ["FP32", "INT8", "FP16"]
    assert frame.loc["top1"].tolist() == [0.8, 0.79, 0.79]
    assert frame["INT8"].tolist() == [0.79, 0.975, 0.75, 26.25, 0.998, 1.5]
    assert list(frame.index[3:]) == ["sqnr:scores", "cosine:scores", "max_error:scores"]
    # Cosines of tokens, where there are some.
    (scores,) = ACCURACY.outputs
    outputs = (scores, dataclasses.replace(scores, name="tokens", token_cosine=0.875))
    frame = accuracy_frame(dataclasses.replace(ACCURACY, outputs=outputs)).set_index("metric")
    assert frame.loc["token_cosine:tokens", "INT8"] == 0.875
    assert frame["FP32"].isna().sum() == 8  # agreement, and seven of single outputs
    assert "token_cosine:scores" not in frame.index
