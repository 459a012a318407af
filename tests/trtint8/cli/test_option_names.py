"""The command line names options, and not the keywords of Python."""

import argparse

import numpy as np
import pytest

from trtint8.cli.main import main
from trtint8.cli.option_names import names_of_options, with_options
from trtint8.data import DEMO_MODEL

OPTIONS = {
    "batch_size": "--batch-size",
    "limit": "--limit",
    "minimum": "--min",
    "max_drop": "--max-drop",
    "allow_host_code": "--allow-host-code",
    "preprocessing": "--preprocess",
    "gpu_fallback=False": "--no-gpu-fallback",
}


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("batch_size is 0; give a positive integer", "--batch-size is 0; give a positive integer"),
        ("limit is 0; give a positive integer", "--limit is 0; give a positive integer"),
        ("beyond the limit is 0; give more", "beyond the limit is 0; give more"),
        ("the limit is what it is", "the limit is what it is"),
        ("give it with max_drop (--max-drop) or minimum (--min)", "give it with --max-drop or --min"),
        ("load it with allow_host_code=True, or --allow-host-code", "load it with --allow-host-code"),
        (
            "with preprocessing=Preprocessing(...) or --mean and --std",
            "with --mean and --std",
        ),
        ("use a smaller batch_size, or another GPU", "use a smaller --batch-size, or another GPU"),
        ("input 'batch_size' of 'my batch_size.onnx'", "input 'batch_size' of 'my batch_size.onnx'"),
        ("max_batch_size is 0, no batch_sizes", "max_batch_size is 0, no batch_sizes"),
        ("set last_batch='pad'", "set last_batch='pad'"),
        ("limit=... has no effect; leave it out", "--limit has no effect; leave it out"),
        ("add limit=COUNT", "add --limit COUNT"),
        ("pass allow_host_code=True", "pass --allow-host-code"),
        ("it was made, so limit has no effect; add", "it was made, so --limit has no effect; add"),
        ("gpu_fallback=False needs a DLA; give", "--no-gpu-fallback needs a DLA; give"),
    ],
)
def test_keywords_become_options(message, words):
    assert with_options(message, OPTIONS) == words


def test_the_options_of_a_parser():
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("data")
    parser.add_argument("--min", dest="minimum")
    parser.add_argument("-o", "--output")
    parser.add_argument("--fp16", action=argparse.BooleanOptionalAction)
    assert names_of_options(parser) == {"minimum": "--min", "output": "--output", "fp16": "--fp16"}
    parser.add_argument("--preprocess")
    assert names_of_options(parser)["preprocessing"] == "--preprocess"
    parser.add_argument("--no-gpu-fallback", action="store_true")
    assert names_of_options(parser)["gpu_fallback=False"] == "--no-gpu-fallback"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--batch-size", "0"], "--batch-size is 0; give a positive integer or leave it out"),
        (["--limit", "-2"], "--limit is -2; give a positive integer or leave it out"),
        (["--threads", "0"], "--threads is 0; give a positive integer or leave it out"),
        (["--checkpoint-seconds", "-1"], "--checkpoint-seconds is -1.0; give 0 or more"),
    ],
)
def test_what_a_user_of_the_command_line_reads(tmp_path, capsys, more, message):
    np.savez(tmp_path / "d.npz", images=np.zeros((4, 1, 8, 8), np.float32))
    arguments = ["calibrate", str(DEMO_MODEL), str(tmp_path / "d.npz"), "-o", str(tmp_path / "t.json")]
    assert main([*arguments, *more]) == 2
    assert capsys.readouterr().err == f"trtint8 calibrate: {message}\n"
