"""Values with spaces between them."""

import pytest

from trtint8.cli.main import main
from trtint8.cli.spaced_values import spaced_values
from trtint8.data import DEMO_MODEL


@pytest.mark.parametrize(
    ("words", "option", "values"),
    [
        ("m.onnx d --mean 0.5 0.5 0.5 -o t.json", "--mean", ["0.5", "0.5", "0.5"]),
        ("m.onnx --std 1e-3, .5, 1 d", "--std", ["1e-3", ".5", "1"]),
        ("--crop 224 224 m.onnx d", "--crop", ["224", "224"]),
    ],
)
def test_they_are_named(words, option, values):
    assert spaced_values(words.split()) == (
        f"{option} takes one value, and '{' '.join(values)}' are {len(values)}; write them with commas and "
        f"without spaces: {option} {','.join(values)}"
    )


def test_what_is_no_second_value(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "5").mkdir()
    for words in (
        "--mean 0.5,0.5,0.5 m.onnx",
        "--resize 256 5",
        "--resize 256 -o 5",
        "--mean",
        "--limit 1 2",
    ):
        assert spaced_values(words.split()) is None


def test_a_user_reads_one_sentence(capsys):
    assert main(["calibrate", str(DEMO_MODEL), "--mean", "0.5", "0.5", "0.5", "-o", "t.json"]) == 2
    assert capsys.readouterr().err == (
        "trtint8 calibrate: --mean takes one value, and '0.5 0.5 0.5' are 3; write them with commas and "
        "without spaces: --mean 0.5,0.5,0.5\n"
    )
