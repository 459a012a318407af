"""Arguments in messages: data that each door spells in its own way."""

import copy
import pickle

import pytest

from calibrators.errors import Argument, ModelError, TableError, TrtInt8Error, parts_of

OPTIONS = {"batch_size": "--batch-size", "gpu_fallback": "--no-gpu-fallback", "model": "MODEL"}


def refused():
    return ModelError(f"{Argument('batch_size')} is 0 in 'batch_size'; add {Argument('fp16', 'True')}")


def test_python_reads_the_names_of_parameters():
    error = refused()
    assert str(error) == f"{error}" == error.args[0] == "batch_size is 0 in 'batch_size'; add fp16=True"
    assert str(Argument("batch_size")) == "batch_size"


def test_arguments_are_data():
    parts = refused().parts
    assert parts == (Argument("batch_size"), " is 0 in 'batch_size'; add ", Argument("fp16", "True"))
    assert TrtInt8Error("nothing").parts == ("nothing",)
    assert TrtInt8Error().parts == () and str(TrtInt8Error()) == ""


@pytest.mark.parametrize(
    ("argument", "spelled"),
    [
        (Argument("batch_size"), "--batch-size"),
        (Argument("batch_size", "..."), "--batch-size"),
        (Argument("batch_size", "COUNT"), "--batch-size COUNT"),
        (Argument("gpu_fallback", "False"), "--no-gpu-fallback"),
        (Argument("model"), "MODEL"),
        (Argument("dla_core"), "dla core"),
    ],
)
def test_a_command_line_reads_its_options(argument, spelled):
    assert argument.spelled(OPTIONS) == spelled


def test_they_stay_data_in_another_message_and_in_another_process():
    outer = TableError(f"sample 3: {refused().template}")
    assert outer.parts[:2] == ("sample 3: ", Argument("batch_size"))
    for copied in (pickle.loads(pickle.dumps(outer)), copy.copy(outer)):
        assert (copied.parts, str(copied)) == (outer.parts, str(outer))


def test_a_text_of_a_user_is_only_text():
    assert parts_of("'{batch_size}' \ufdd0 --limit") == ("'{batch_size}' \ufdd0 --limit",)
