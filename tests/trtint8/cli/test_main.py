"""The command line as a user meets it: exit status, one sentence, nothing left behind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trtint8.cli.main import VerbParser, main, spaced_values, typed_words
from trtint8.data import DEMO_MODEL

ROOT = Path(__file__).parents[3]
MODEL = str(DEMO_MODEL)

PROFILE = "images=1x1x8x8,2x1x8x8,4x1x8x8"

VERBS = [
    "demo",
    "doctor",
    "calibrate",
    "quantize",
    "migrate",
    "lint",
    "build",
    "validate",
    "sensitivity",
    "tune",
    "run",
    "bench",
    "table",
]


def test_these_are_all_verbs(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    listed = [line.split()[0] for line in lines if line.startswith("    ") and line[4:5].strip()]
    assert [word for word in listed if word in VERBS] == VERBS


@pytest.mark.parametrize("verb", VERBS)
def test_help_has_an_example(verb, capsys):
    with pytest.raises(SystemExit) as stop:
        main([verb, "--help"])
    assert stop.value.code == 0
    assert f"trtint8 {verb}" in capsys.readouterr().out.split("example")[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["calibrate", "missing.onnx", "{data}", "-o", "{out}/t.json"], "there is no model 'missing.onnx'"),
        (["calibrate", MODEL, "missing.npz", "-o", "{out}/t.json"], "missing.npz"),
        (["calibrate", MODEL, "{data}", "-o", "{out}/t.xyz"], "end it in .json, .cache, .txt"),
        (["calibrate", MODEL, "{data}", "-o", "{out}/no/t.json"], "does not exist"),
        (["calibrate", MODEL, "{data}", "-o", "{out}/t.json", "--mean", "a"], "--mean: 'a' is not a number"),
        (["calibrate", MODEL, "{data}", "-o", "{out}/t.json", "--batch-size", "0"], "0"),
        (
            ["quantize", MODEL, "{table}", "-o", "{out}/q.onnx", "--keep-float", "zz*"],
            "'zz*' matches no node",
        ),
        (["quantize", MODEL, "{bad}", "-o", "{out}/q.onnx"], "line 3"),
        (["quantize", MODEL, "{nan}", "-o", "{out}/q.onnx"], "'images' (nan)"),
        (
            ["build", MODEL, "{table}", "-o", "{out}/d.engine", "--profile", "images=1x1x8x8"],
            "NAME=MIN,OPT,MAX",
        ),
        (["build", MODEL, "{table}", "-o", "{out}/d.engine", "--route", "implicit"], "neither calibrators"),
        (["build", MODEL, "{table}", "-o", "{out}/d.engine", "--bf16", "--target", "rtx"], "no BF16 switch"),
        (["build", MODEL, "{table}", "-o", "{out}/d.engine", "--memory-pool", "x=y"], "'y' is not a size"),
        (
            ["build", MODEL, "{table}", "-o", "{out}/d.engine", "--dynamic-ranges", "no.txt"],
            "cannot read the",
        ),
        (
            ["build", MODEL, "{table}", "-o", "{out}/d.engine", "--state", "h=out"],
            "--state has no effect without samples as DATA_OR_TABLE; leave it out",
        ),
        (
            ["build", MODEL, "{table}", "-o", "{out}/d.engine", "--batch-axis", "images=0"],
            "--batch-axis has no effect without samples as DATA_OR_TABLE; leave it out",
        ),
        (
            ["build", MODEL, "{table}", "-o", "{out}/d.engine", "--keep-int8", "*"],
            "--keep-int8 names layers that would be in FP16 otherwise; add --fp16",
        ),
        (
            ["quantize", MODEL, "{table}", "-o", "{out}/q.onnx", "--state", "h=out"],
            "has no effect without --equalize",
        ),
        (
            ["quantize", MODEL, "{table}", "-o", "{out}/q.onnx", "--batch-axis", "images=0"],
            "has no effect without --equalize",
        ),
        (
            ["tune", MODEL, "{table}", "{data}", "-o", "{out}/q.onnx", "--profile", PROFILE],
            "--profile gives the shapes that --speed estimates times for; add --speed GPU",
        ),
        (
            ["audit", MODEL, "{table}", "--gpu", "A10", "--profile", PROFILE, "--profile", PROFILE],
            "--profile gives 'images' twice; give each name once",
        ),
        (
            [
                *["tune", MODEL, "{table}", "{data}", "-o", "{out}/q.onnx", "--speed", "A10"],
                *["--profile", PROFILE, "--profile", PROFILE],
            ],
            "--profile gives 'images' twice; give each name once",
        ),
        (["run", "missing.engine", "{data}", "-o", "{out}/o.npz"], "'missing.engine' cannot be read"),
        (["run", "{table}", "{data}", "-o", "{out}/o.npz"], "is not a TensorRT engine"),
        (["run", "missing.engine", "{data}", "-o", "{out}/no/o.npz"], "does not exist"),
        (["table", "set", "{table}", "images=-1", "-o", "{out}/t.json"], "'images' (-1.0)"),
        (["table", "set", "{table}", "images", "-o", "{out}/t.json"], "'images' is not TENSOR=AMAX"),
    ],
)
def test_bad_input_is_one_sentence_and_status_two(rtx, arguments, words, files, table, tmp_path, capsys):
    (tmp_path / "in").mkdir()
    out = tmp_path / "out"
    out.mkdir()
    bad, nan = tmp_path / "in" / "bad.cache", tmp_path / "in" / "nan.cache"
    bad.write_text("TRT-8601-EntropyCalibration2\nimages: 3c010204\nnonsense\n")
    nan.write_text("TRT-8601-EntropyCalibration2\nimages: 7fc00000\n")
    known = {"data": files / "calibration.npz", "table": table, "out": out, "bad": bad, "nan": nan}
    capsys.readouterr()
    assert main([argument.format(**known) for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert len(error.strip().splitlines()) == 1 and "Traceback" not in error
    assert list(out.iterdir()) == []


@pytest.mark.slow
def test_import_needs_neither_tensorrt_nor_onnx_runtime():
    code = (
        "import sys, trtint8; "
        "print([m for m in ('onnx', 'onnxruntime', 'numpy', 'tensorrt', 'tensorrt_rtx') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize(("number", "status", "said"), [(2, 130, "interrupted\n"), (15, 143, "")])
def test_a_signal_while_a_verb_is_imported(number, status, said):
    program = (
        "import os, signal, sys, importlib\n"
        "from trtint8.cli.main import main\n"
        # A shell that runs the tests in the background has them ignore it.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"importlib.import_module = lambda _name: os.kill(os.getpid(), {number})\n"
        "sys.exit(main(['doctor']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", said)


def test_what_is_logged_cannot_steer_the_terminal():
    program = (
        "import logging, sys\n"
        "from trtint8.cli import main as module, table\n"
        "table.run = lambda _: logging.getLogger('onnx_ir').warning('node \\x1b[2J %s', 'x' * 600)\n"
        "sys.exit(module.main(['table', 'show', 'x']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("node \\x1b[2J xxx")
    assert len(done.stderr.splitlines()) == 1 and len(done.stderr) == 500


def test_a_terminated_verb_removes_its_temporary_files(tmp_path):
    program = (
        "import os, sys\n"
        "from trtint8.cli import main as module, table\n"
        "from calibrators.files import write_atomically\n"
        "def pieces():\n    yield b'a'\n    os.kill(os.getpid(), 15)\n    yield b'b'\n"
        f"table.run = lambda _options: write_atomically({str(tmp_path / 'out')!r}, pieces())\n"
        "sys.exit(module.main(['table', 'show', 'x']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (143, "", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("number", "status", "said"), [(2, 130, "interrupted\n"), (15, 143, "")])
def test_a_signal_during_a_build(rtx, number, status, said, table, tmp_path):
    """TensorRT calls Python, swallows what is raised there, and prints where that was."""
    program = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from tests.trtint8.builder.building import Bar\n"
        "from trtint8 import __main__\n"
        "from trtint8.builder import build\n"
        f"build.progress_bar = Bar(lambda _steps: os.kill(os.getpid(), {number}))\n"
        f"sys.argv[1:] = ['build', {MODEL!r}, {table!r}, '-o', {str(tmp_path / 'a.engine')!r}]\n"
        "sys.exit(__main__.main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, cwd=ROOT
    )
    assert (done.returncode, done.stdout, done.stderr) == (status, "", said)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("redirection", "status", "said"),
    [
        (">&-", 0, ""),
        ("2>&- >/dev/null", 0, ""),
        ("> >(exec true)", 0, ""),
        (
            ">/dev/full",
            2,
            "trtint8 table: cannot print the results: No space left on device; what was to be written to "
            "files is there\n",
        ),
    ],
)
def test_a_standard_output_that_takes_nothing(tmp_path, redirection, status, said):
    (tmp_path / "t.txt").write_text("a: 1.0\n")
    command = (
        f"sleep 0.2; '{sys.executable}' -m trtint8.cli.main table show '{tmp_path / 't.txt'}' {redirection}"
    )
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (status, said)


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


def completions(line, tmp_path):
    """What the shell would offer behind a command line."""
    answers = tmp_path / "answers"
    asked = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answers),
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "COMP_TYPE": "9",
    }
    done = subprocess.run(
        [sys.executable, "-m", "trtint8"],
        env=os.environ | asked,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return answers.read_text().split("\n")


@pytest.mark.slow
def test_verbs_options_choices_and_files_are_completed(tmp_path):
    pytest.importorskip("argcomplete", reason="argcomplete is not installed")
    (tmp_path / "resnet50.onnx").touch()
    (tmp_path / "resnet50.npz").touch()
    assert completions("trtint8 va", tmp_path) == ["validate"]
    assert completions("trtint8 calibrate --resu", tmp_path) == ["--resume"]
    found = completions("trtint8 calibrate --method m", tmp_path)
    assert sorted(found) == ["minmax", "mse"]
    assert completions("trtint8 lint resnet50.o", tmp_path) == ["resnet50.onnx"]
    assert completions("trtint8 table con", tmp_path) == ["convert"]


def test_without_argcomplete_nothing_is_printed(monkeypatch, capsys):
    from trtint8.cli.main import main

    monkeypatch.setenv("_ARGCOMPLETE", "1")
    monkeypatch.setitem(sys.modules, "argcomplete", None)
    with pytest.raises(SystemExit) as stop:
        main(["calibrate"])
    assert stop.value.code == 1 and capsys.readouterr() == ("", "")


def test_words_of_an_unfinished_line():
    assert typed_words("trtint8 build 'a b.onnx' -o") == ["trtint8", "build", "a b.onnx", "-o"]
    assert typed_words("trtint8 build 'a b") == ["trtint8", "build", "'a", "b"]


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
