"""The command line as a user meets it: exit status, one sentence, nothing left behind."""

import errno
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

import trtint8
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


CALIBRATE, QUANTIZE = (
    f"calibrate {MODEL} {{data}} -o {{out}}/t.json",
    f"quantize {MODEL} {{table}} -o {{out}}/q.onnx",
)
BUILD, TUNE = (
    f"build {MODEL} {{table}} -o {{out}}/d.engine",
    f"tune {MODEL} {{table}} {{data}} -o {{out}}/q.onnx",
)
AGAIN = f"--profile {PROFILE} --profile {PROFILE}"


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("calibrate missing.onnx {data} -o {out}/t.json", "'missing.onnx'"),
        (f"calibrate {MODEL} missing.npz -o {{out}}/t.json", "missing.npz"),
        (f"calibrate {MODEL} {{data}} -o {{out}}/t.xyz", ".json, .cache, .txt"),
        (f"calibrate {MODEL} {{data}} -o {{out}}/no/t.json", "does not exist"),
        (f"{CALIBRATE} --mean a", "--mean: 'a'"),
        (f"{CALIBRATE} --mean 0.5 0.5 0.5", "--mean 0.5,0.5,0.5"),
        (
            f"{CALIBRATE} --letterbox 160x160",
            "--letterbox: '160x160' is not an integer; give an integer, or H,W",
        ),
        (f"{CALIBRATE} --batch-size 0", "0"),
        (f"{QUANTIZE} --keep-float zz*", "'zz*'"),
        (f"quantize {MODEL} {{bad}} -o {{out}}/q.onnx", "line 3"),
        (f"quantize {MODEL} {{nan}} -o {{out}}/q.onnx", "'images' (nan)"),
        (f"{BUILD} --profile images=1x1x8x8", "NAME=MIN,OPT,MAX"),
        (f"{BUILD} --route implicit", "neither calibrators"),
        (f"{BUILD} --bf16 --target rtx", "no BF16 switch"),
        (f"{BUILD} --memory-pool x=y", "--memory-pool: 'x=y'"),
        (f"{BUILD} --dynamic-ranges no.txt", "no.txt"),
        (f"{BUILD} --state h=out", "--state has no effect without samples as DATA_OR_TABLE"),
        (f"{BUILD} --batch-axis images=0", "--batch-axis has no effect without samples as DATA_OR_TABLE"),
        (f"{BUILD} --keep-int8 * --no-fp16", "leave out --no-fp16"),
        (f"{QUANTIZE} --state h=out", "without --equalize"),
        (f"{QUANTIZE} --batch-axis images=0", "without --equalize"),
        (f"{TUNE} --profile {PROFILE}", "add --speed GPU"),
        (f"audit {MODEL} {{table}} --gpu A10 {AGAIN}", "--profile gives 'images' twice"),
        (f"{TUNE} --speed A10 {AGAIN}", "--profile gives 'images' twice"),
        ("run missing.engine {data} -o {out}/o.npz", "'missing.engine'"),
        ("run {table} {data} -o {out}/o.npz", "is not a TensorRT engine"),
        ("run missing.engine {data} -o {out}/no/o.npz", "does not exist"),
        ("table set {table} images=-1 -o {out}/t.json", "'images' (-1.0)"),
        ("table set {table} images -o {out}/t.json", "TENSOR=AMAX: 'images' is not"),
    ],
)
def test_bad_input_is_one_sentence_and_status_two(rtx, line, named, files, table, tmp_path, refused):
    out, within = tmp_path / "out", tmp_path / "in"
    out.mkdir()
    within.mkdir()
    bad, nan = within / "bad.cache", within / "nan.cache"
    bad.write_text("TRT-8601-EntropyCalibration2\nimages: 3c010204\nnonsense\n")
    nan.write_text("TRT-8601-EntropyCalibration2\nimages: 7fc00000\n")
    known = {"data": files / "calibration.npz", "table": table, "out": out, "bad": bad, "nan": nan}
    error = refused(*[argument.format(**known) for argument in line.split()])
    assert named in error
    assert len(error.strip().splitlines()) == 1 and "Traceback" not in error
    assert list(out.iterdir()) == []


def ran(program):
    """Status, output and what is said of a program in Python, in the repository."""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
def test_import_needs_neither_tensorrt_nor_onnx_runtime():
    heavy = ("onnx", "onnxruntime", "numpy", "tensorrt", "tensorrt_rtx")
    assert ran(f"import sys, trtint8; print([m for m in {heavy} if m in sys.modules])") == (0, "[]\n", "")


SIGNALS = pytest.mark.parametrize(("number", "status", "said"), [(2, 130, "interrupted"), (15, 143, "")])


@SIGNALS
def test_a_signal_while_a_verb_is_imported(number, status, said):
    program = (
        "import os, sys, importlib\n"
        "from trtint8.cli.main import main\n"
        f"importlib.import_module = lambda _name: os.kill(os.getpid(), {number})\n"
        "sys.exit(main(['doctor']))"
    )
    ended, printed, lines = ran(program)
    assert (ended, printed, lines.partition(":")[0]) == (status, "", said)


def test_a_disk_that_fails_anywhere_is_one_sentence(monkeypatch, refused):
    def failing(_options):
        raise OSError(errno.EIO, os.strerror(errno.EIO), "t.json")

    monkeypatch.setattr("trtint8.cli.table.run", failing)
    line = refused("table show t.json")
    assert line.startswith("trtint8 table: ") and "'t.json'" in line and os.strerror(errno.EIO) in line


def test_what_is_logged_cannot_steer_the_terminal():
    status, printed, said = ran(
        "import logging, sys\n"
        "from trtint8.cli import main as module, table\n"
        "table.run = lambda _: logging.getLogger('onnx_ir').warning('node \\x1b[2J %s', 'x' * 600)\n"
        "sys.exit(module.main(['table', 'show', 'x']))"
    )
    assert (status, printed) == (0, "") and said.startswith("node \\x1b[2J xxx")
    assert len(said.splitlines()) == 1 and len(said) == 500


def test_a_terminated_verb_removes_its_temporary_files(tmp_path):
    program = (
        "import os, sys\n"
        "from trtint8.cli import main as module, table\n"
        "from calibrators.files import write_atomically\n"
        "def pieces():\n    yield b'a'\n    os.kill(os.getpid(), 15)\n    yield b'b'\n"
        f"table.run = lambda _options: write_atomically({str(tmp_path / 'out')!r}, pieces())\n"
        "sys.exit(module.main(['table', 'show', 'x']))"
    )
    assert ran(program) == (143, "", "")
    assert list(tmp_path.iterdir()) == []


@SIGNALS
def test_a_signal_during_a_build(rtx, number, status, said, table, tmp_path):
    """TensorRT calls Python, swallows what is raised there, and prints where that was."""
    program = (
        "import os, sys\n"
        "from tests.trtint8.builder.building import Bar\n"
        "from trtint8 import __main__\n"
        "from trtint8.builder import build\n"
        f"build.progress_bar = Bar(lambda _steps: os.kill(os.getpid(), {number}))\n"
        f"sys.argv[1:] = ['build', {MODEL!r}, {table!r}, '-o', {str(tmp_path / 'a.engine')!r}]\n"
        "sys.argv.append('--keep-int8=*')\n"
        "sys.exit(__main__.main())"
    )
    ended, printed, lines = ran(program)
    assert (ended, printed, lines.partition(":")[0]) == (status, "", said)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("redirection", "status", "said"),
    [
        (">&-", 0, ""),
        ("2>&- >/dev/null", 0, ""),
        ("> >(exec true)", 0, ""),
        (">/dev/full", 2, "trtint8 table: cannot print the results: No space left on device;"),
    ],
)
def test_a_standard_output_that_takes_nothing(tmp_path, redirection, status, said):
    (tmp_path / "t.txt").write_text("a: 1.0\n")
    shown = f"'{sys.executable}' -m trtint8.cli.main table show '{tmp_path / 't.txt'}'"
    command = ["bash", "-c", f"sleep 0.2; {shown} {redirection}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == status and done.stderr.startswith(said)
    assert done.stderr.count("\n") == bool(said)


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
    ("line", "kept"),
    [
        ("m d -o e", []),
        ("m -o e d", []),
        ("-o e m d", []),
        ("m --keep-float a d -o e", ["a"]),
        ("m -oe --keep-float=a d --keep-float b", ["a", "b"]),
    ],
)
def test_any_order(parser, line, kept):
    options = parser.parse_args(line.split())
    assert (options.model, options.data, options.output) == ("m", "d", "e")
    assert (options.keep_float, options.mean) == (kept, "0")
    assert parser.parse_args(["m", "-o", "e"]).data is None


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
    ("words", "named"),
    [
        ("", ("MODEL", "-o", "build MODEL [DATA] -o")),
        ("m -o e d more", ("'more'", "MODEL is 'm'", "DATA is 'd'")),
        ("m --bad -o e", ("--bad", "build --help")),
        ("m --kep-float=a -o e", ("--kep-float", "--keep-float")),
        ("m --keep_float a", ("--keep_float", "--keep-float")),
        ("m -mean 1 -o e", ("-mean", "--mean")),
        ("m d --ouput e", ("--ouput", "--output")),
        ("m --data d -o e", ("--data", "DATA", "build MODEL [DATA] -o")),
        ("m d -o", ("-o OUTPUT",)),
        ("m d e", ("-o", "MODEL is 'm'", "DATA is 'd'")),
    ],
)
def test_mistakes_are_named(parser, words, named, capsys):
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(words.split())
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2 and line.startswith("build: ")
    assert all(name in line for name in named)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("-v", ("-v", "trtint8 --help")),
        ("--verson build m.onnx", ("--verson", "--version")),
        ("calibrate m.onnx a.npz -o t.json --methd mse", ("--methd", "--method")),
        ("calibrate m.onnx a.npz -o t.json --target rtx", ("--target", "build", "quantize")),
        ("calibrate m.onnx a.npz -o t.json --batch-size x", ("--batch-size", "'x'", "integer")),
        ("calibrate m.onnx a.npz -o t.json --method Mse", ("--method", "'Mse'", "mean mse?", "entropy")),
        ("calibrate m.onnx a.npz -o t.json --batch 2", ("--batch-size", "--batch-axis")),
        ("calibrate m.onnx a.npz -o t.json --resume=yes", ("--resume", "yes")),
        ("calibrate a.npz -o t.json", ("DATA is missing", "MODEL is 'a.npz'")),
        ("validate m.onnx a.npz --max-drop x", ("--max-drop", "'x'", "number")),
        ("deploy a.engine --to triton --to cpp -o d", ("--to", "triton", "cpp")),
        ("table", ("ACTION", "table ACTION ...")),
        ("table convert t.json --output t.cache", ("--output", "TO", "table convert FROM TO")),
        ("table shw t.json", ("'shw'", "mean show?", "convert")),
        ("table set t.json --methd mse -o o.json", ("table set: ", "--methd", "--method")),
        ("doctor --jsn", ("--jsn", "--json")),
    ],
)
def test_a_wrong_command_line_is_one_sentence(words, named, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2 and line.startswith("trtint8")
    assert all(name in line for name in named)
    assert list(tmp_path.iterdir()) == []


def test_the_help_begins_with_what_has_to_be_given(capsys):
    with pytest.raises(SystemExit):
        main(["build", "--help"])
    first = " ".join(capsys.readouterr().out.partition("\n\n")[0].split())
    assert first == "usage: trtint8 build MODEL [DATA_OR_TABLE] -o OUT.engine [OPTION ...]"


def completions(line, tmp_path):
    """What the shell would offer behind a command line."""
    asked = {"_STDOUT_FILENAME": str(tmp_path / "answers"), "": "1", "_SUPPRESS_SPACE": "1", "_IFS": "\n"}
    asked = {f"_ARGCOMPLETE{name}": value for name, value in asked.items()}
    asked |= {"COMP_LINE": line, "COMP_POINT": str(len(line)), "COMP_TYPE": "9"}
    command = [sys.executable, "-m", "trtint8"]
    done = subprocess.run(command, env=os.environ | asked, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return (tmp_path / "answers").read_text().split("\n")


@pytest.mark.slow
def test_verbs_options_choices_and_files_are_completed(tmp_path):
    pytest.importorskip("argcomplete", reason="argcomplete is not installed")
    (tmp_path / "resnet50.onnx").touch()
    (tmp_path / "resnet50.npz").touch()
    for line, offered in (
        ("va", ["validate"]),
        ("calibrate --resu", ["--resume"]),
        ("calibrate --method m", ["minmax", "mse"]),
        ("lint resnet50.o", ["resnet50.onnx"]),
        ("table con", ["convert"]),
    ):
        assert sorted(completions(f"trtint8 {line}", tmp_path)) == offered


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
    said = spaced_values(words.split())
    assert f"'{' '.join(values)}' are {len(values)};" in said
    assert said.startswith(f"{option} ") and said.endswith(f"{option} {','.join(values)}")


def test_what_is_no_second_value(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "5").mkdir()
    lines = "--mean 0.5,0.5,0.5 m.onnx|--resize 256 5|--resize 256 -o 5|--mean|--limit 1 2"
    for line in lines.split("|"):
        assert spaced_values(line.split()) is None


@pytest.mark.parametrize(
    ("words", "named"), [([], "--help"), (["calbrate"], "mean calibrate?"), (["xyz"], "'xyz'")]
)
def test_no_verb_and_a_wrong_one(words, named, capsys):
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert named in line and "--help" in line


@pytest.mark.parametrize(("words", "named"), [(["help"], "calibrate"), (["help", "calibrate"], "--method")])
def test_help_as_a_verb(words, named, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 0 and named in capsys.readouterr().out


#: What stands in the place of something else, and what the message has to say besides its name.
MISPLACED = [
    ("calibrate cal.npz net.onnx -o o.json", "cal.npz", "model first"),
    ("calibrate net.onnx net.onnx -o o.json", "net.onnx", "model first"),
    ("calibrate t.json cal.npz -o o.json", "t.json", "ONNX model in its place"),
    ("calibrate net.pt cal.npz -o o.json", "net.pt", "torch.onnx.export"),
    ("calibrate a.zip cal.npz -o o.json", "a.zip", "unpack"),
    ("calibrate net.onnx a.zip -o o.json", "a.zip", "unpack"),
    ("calibrate net.onnx zipped.npz -o o.json", "zipped.npz", "readme.txt"),
    ("calibrate net.onnx objects.npz -o o.json", "objects.npz", "astype"),
    ("calibrate folder cal.npz -o o.json", "folder", ".onnx"),
    ("calibrate empty.onnx cal.npz -o o.json", "empty.onnx", "export"),
    ("calibrate nowhere.onnx cal.npz -o o.json", "nowhere.onnx", "path"),
    ("calibrate net.onnx split -o o.json", "split", "split/train"),
    ("quantize t.json net.onnx -o o.onnx", "t.json", "TABLE after it"),
    ("quantize net.onnx net.onnx -o o.onnx", "net.onnx", "the table after it"),
    ("quantize net.onnx cal.npz -o o.onnx", "cal.npz", "trtint8 calibrate"),
    ("quantize net.onnx folder -o o.onnx", "folder", "file"),
    ("sensitivity net.onnx cal.npz t.json -o o.json", "cal.npz", "trtint8 calibrate"),
    ("calibrate net.tflite cal.npz -o o.json", "net.tflite", "tf2onnx"),
    ("calibrate net.onnx net.engine -o o.json", "net.engine", "samples in its place"),
    ("build net.onnx t.json -o o.json", "'o.json'", ".engine"),
    ("deploy cal.npz --to triton -o o", "cal.npz", "holds arrays"),
    ("deploy net.pt --to triton -o o", "net.pt", "torch.onnx.export"),
    ("deploy t.json --to triton -o o", "t.json", "engine in its place"),
    ("validate net.pt cal.npz --reference net.onnx", "net.pt", "torch.onnx.export"),
    ("run net.onnx cal.npz -o o.npz", "net.onnx", "trtint8 build"),
    ("run cal.npz net.engine -o o.npz", "cal.npz", "engine first and DATA"),
    ("table drop t.json nothing -o o.json", "'nothing'", "'images'"),
    ("table extract net.onnx -o o.json", "net.onnx", "quantized model"),
    ("demo --output t.json", "'t.json'", "another one"),
    ("calibrate net.pth cal.npz -o o.json", "net.pth", "torch.onnx.export"),
    ("calibrate net.onnx net.pt -o o.json", "net.pt", "numpy.savez"),
]


@pytest.fixture
def of_every_kind(tmp_path, monkeypatch):
    """A folder with files of every kind."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(DEMO_MODEL, "net.onnx")
    images = np.ones((4, 1, 8, 8), np.float32)
    np.savez("cal.npz", images=images)
    np.savez("objects.npz", images=images.astype(object))
    np.save("words.npy", np.array(["a", "b"]))
    trtint8.CalibrationTable({"images": 1.0}).save("t.json")
    for archive in ("a.zip", "zipped.npz"):
        with zipfile.ZipFile(archive, "w") as written:
            written.writestr("readme.txt", "no array")
    for network in ("net.pt", "net.pth", "net.tflite", "net.engine"):
        Path(network).write_bytes(b"PK\x03\x04")
    Path("empty.onnx").touch()
    for folder in ("folder", "split/train/cat"):
        Path(folder).mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize(("words", "name", "advice"), MISPLACED)
def test_what_stands_in_the_wrong_place_is_said_with_what_to_do(words, name, advice, of_every_kind, refused):
    before = sorted(of_every_kind.rglob("*"))
    said = refused(words)
    assert name in said and advice in said
    assert sorted(of_every_kind.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "advised", "not_advised"),
    [
        ("lint cal.npz", "give an ONNX model", "DATA"),
        ("lint t.json", "give an ONNX model", "TABLE"),
        ("calibrate cal.npz net.onnx -o t.json", "DATA", "TABLE"),
        ("build cal.npz net.onnx -o e.engine", "DATA_OR_TABLE", "the data"),
        ("table show net.onnx", "give a table", "MODEL"),
        ("table extract t.json -o o.json", "give an ONNX model", "MODEL.onnx"),
        ("deploy cal.npz --to cpp -o d", "give an engine", "DATA"),
        ("calibrate net.onnx words.npy -o t.json", "give numbers", "astype"),
        ("quantize net.onnx t.json -o q.onnx --keep-float nothing", "--keep-float", "keep_float"),
    ],
)
def test_advice_names_what_the_verb_takes(arguments, advised, not_advised, of_every_kind, refused):
    said = refused(arguments)
    assert advised in said and not_advised not in said
