"""What was given on the command line, as keywords of a call."""

import argparse

import pytest

from calibrators.data.images.preprocessing import Preprocessing
from calibrators.errors import CalibrationDataError, OutputError
from trtint8.cli.arguments import data_keywords, keywords, refuse_overwriting_arguments
from trtint8.cli.data_options import add_data_options


def parsed(*arguments):
    parser = argparse.ArgumentParser()
    add_data_options(parser)
    return parser.parse_args(arguments)


def test_arguments_by_name():
    options = argparse.Namespace(first=1, second=None, third=3)
    assert keywords(options, "first", "second") == {"first": 1, "second": None}
    assert keywords(options) == {}


def test_keywords_of_data():
    assert data_keywords(parsed()) == {"batch_size": None, "limit": None, "preprocessing": None}
    given = data_keywords(parsed("--batch-size", "4", "--limit", "9", "--scale", "1"))
    assert given == {"batch_size": 4, "limit": 9, "preprocessing": Preprocessing(scale=1.0)}
    with pytest.raises(CalibrationDataError, match="--mean: 'a' is not a number"):
        data_keywords(parsed("--mean", "a"))


@pytest.mark.parametrize(
    "given",
    [
        {"model": "f"},
        {"data": "f"},
        {"labels": "f"},
        {"preprocess": "f"},
        {"judge": None, "dynamic_ranges": "f"},
        {"paths": ["g", "f"]},
        {"runs": ["f"]},
    ],
)
def test_what_the_command_line_names_is_not_overwritten(tmp_path, monkeypatch, given):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f").touch()
    (tmp_path / "g").touch()
    with pytest.raises(OutputError, match=r"^cannot write '.*f': it is read as well; give another name$"):
        refuse_overwriting_arguments([tmp_path / "f"], argparse.Namespace(**given))
    refuse_overwriting_arguments([tmp_path / "h"], argparse.Namespace(**given))


def test_other_arguments_may_have_the_name_of_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "build").touch()
    refuse_overwriting_arguments([tmp_path / "build"], argparse.Namespace(verb="build", output="build"))
