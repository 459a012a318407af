"""What was given on the command line, as keywords of a call."""

import argparse

import pytest

from calibrators.data.preprocessing import Preprocessing
from calibrators.errors import CalibrationDataError
from trtint8.cli.arguments import data_keywords, keywords
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
