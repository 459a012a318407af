import signal
import sys
import time
from importlib.machinery import ExtensionFileLoader

import pytest

from calibrators.errors import UnsupportedError
from trtint8.cli import interruption, main
from trtint8.cli.interruption import heeding_signals


@pytest.fixture(autouse=True)
def ctrl_c(monkeypatch):
    """As in a program in the foreground; the suite may run in the background."""
    monkeypatch.setattr(interruption, "_received", None)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    hook, termination = sys.unraisablehook, signal.getsignal(signal.SIGTERM)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is termination
    assert sys.unraisablehook is hook
    signal.signal(signal.SIGINT, before)


def test_the_status_of_the_program(capsys):
    assert heeding_signals(lambda: 7) == 7
    assert capsys.readouterr().err == ""


#: Each signal with the exit status after it and what is said then.
SIGNALS = pytest.mark.parametrize(
    ("number", "status", "said"), [(signal.SIGINT, 130, "interrupted\n"), (signal.SIGTERM, 143, "")]
)


@SIGNALS
def test_a_signal(number, status, said, capsys):
    assert heeding_signals(lambda: signal.raise_signal(number)) == status
    assert capsys.readouterr().err == said


@SIGNALS
def test_a_signal_that_became_another_error(number, status, said, capsys):
    def work():
        try:
            signal.raise_signal(number)
        except (KeyboardInterrupt, SystemExit) as error:
            raise ImportError("initialization failed") from error

    assert heeding_signals(work) == status
    assert capsys.readouterr().err == said


@SIGNALS
def test_a_signal_that_something_has_caught(number, status, said, capsys):
    def work():
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            signal.raise_signal(number)
        return 0

    assert heeding_signals(work) == status
    assert capsys.readouterr().err == said


@SIGNALS
def test_a_signal_while_an_object_is_destroyed(number, status, said, capsys):
    """Python prints what is raised then, and goes on."""

    class Object:
        def __del__(self):
            signal.raise_signal(number)

    def work():
        Object()
        for _ in range(3000):
            time.sleep(0.01)
        return 0

    assert heeding_signals(work) == status
    assert capsys.readouterr().err == said


def test_the_status_of_a_command_line_that_cannot_be_parsed():
    with pytest.raises(SystemExit) as ended:
        heeding_signals(lambda: sys.exit(2))
    assert ended.value.code == 2


def test_other_errors_stay():
    def work():
        raise ImportError("gone")

    with pytest.raises(ImportError, match="gone"):
        heeding_signals(work)


@SIGNALS
def test_a_signal_that_became_an_error_of_a_verb(number, status, said, monkeypatch, capsys):
    def run(_options):
        try:
            signal.raise_signal(number)
        except (KeyboardInterrupt, SystemExit) as error:
            raise UnsupportedError("'x' is not installed") from error

    monkeypatch.setattr("trtint8.cli.table.run", run)
    assert heeding_signals(lambda: main.main(["table", "show", "x"])) == status
    assert capsys.readouterr().err == said


def test_where_ctrl_c_is_ignored_it_stays_so():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert heeding_signals(lambda: signal.raise_signal(signal.SIGINT) or 0) == 0
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@SIGNALS
def test_a_signal_waits_for_the_end_of_the_import_of_a_compiled_module(number, status, said, capsys):
    """Some end the process with a signal of another kind where an exception comes while they begin."""
    begun = []

    class Loader(ExtensionFileLoader):
        def exec_module(self, _module):
            signal.raise_signal(number)
            begun.append("not interrupted")

    def work():
        Loader("compiled", "compiled.so").exec_module(None)
        for _ in range(3000):
            time.sleep(0.01)
        return 0

    assert heeding_signals(work) == status
    assert begun == ["not interrupted"]
    assert capsys.readouterr().err == said
