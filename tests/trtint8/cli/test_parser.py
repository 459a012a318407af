"""Options between positional arguments."""

import pytest

from trtint8.cli.parser import VerbParser


@pytest.fixture
def parser():
    parser = VerbParser("build")
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("data", metavar="DATA", nargs="?")
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("--keep-float", action="append", default=[])
    parser.add_argument("--mean", default="0")
    return parser


@pytest.mark.parametrize(
    "arguments",
    [
        ["m", "d", "-o", "e"],
        ["m", "-o", "e", "d"],
        ["-o", "e", "m", "d"],
        ["m", "--keep-float", "a", "d", "-o", "e"],
        ["m", "-oe", "--keep-float=a", "d", "--keep-float", "b"],
    ],
)
def test_any_order(parser, arguments):
    options = parser.parse_args(arguments)
    assert (options.model, options.data, options.output) == ("m", "d", "e")
    given = " ".join(arguments)
    assert options.keep_float == [value for value in "ab" if f"keep-float {value}" in given.replace("=", " ")]
    assert options.mean == "0"


def test_what_is_left_out_keeps_its_default(parser):
    options = parser.parse_args(["m", "-o", "e"])
    assert (options.data, options.keep_float, options.mean) == (None, [], "0")


def test_repeated_arguments_around_an_option():
    parser = VerbParser("bench")
    parser.add_argument("engines", nargs="+")
    parser.add_argument("--json", action="store_true")
    assert parser.parse_args(["a", "--json", "b", "c"]).engines == ["a", "b", "c"]


def test_verbs_of_a_verb():
    parser = VerbParser("table")
    actions = parser.add_subparsers(dest="action", required=True)
    change = actions.add_parser("set")
    change.add_argument("table")
    change.add_argument("ranges", nargs="*")
    change.add_argument("-o", required=True)
    options = parser.parse_args(["set", "t", "-o", "s", "x=1", "y=2"])
    assert (options.action, options.table, options.ranges) == ("set", "t", ["x=1", "y=2"])
    assert parser.parse_args(["set", "-o", "s", "--", "-t", "-x=1"]).ranges == ["-x=1"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: MODEL, -o/--output"),
        (["m", "-o", "e", "d", "more"], "unrecognized arguments: more"),
        (["m", "--bad", "-o", "e"], "unrecognized arguments: --bad"),
        (["m", "d", "-o"], "argument -o/--output: expected one argument"),
    ],
)
def test_mistakes_are_named(parser, arguments, message, capsys):
    with pytest.raises(SystemExit):
        parser.parse_args(arguments)
    assert message in capsys.readouterr().err
