import signal
import time
from importlib.machinery import ExtensionFileLoader

import pytest

from calibrators.errors import UnsupportedError
from trtint8.cli import interruption, main
from trtint8.cli.interruption import heeding_interruption


@pytest.fixture(autouse=True)
def ctrl_c(monkeypatch):
    """As in a program in the foreground; the suite may run in the background."""
    monkeypatch.setattr(interruption, "_times", 0)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def test_the_status_of_the_program(capsys):
    assert heeding_interruption(lambda: 7) == 7
    assert capsys.readouterr().err == ""


def test_ctrl_c(capsys):
    assert heeding_interruption(lambda: signal.raise_signal(signal.SIGINT)) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_ctrl_c_that_became_another_error(capsys):
    def work():
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt as error:
            raise ImportError("initialization failed") from error

    assert heeding_interruption(work) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_other_errors_stay():
    def work():
        raise ImportError("gone")

    with pytest.raises(ImportError, match="gone"):
        heeding_interruption(work)


def test_ctrl_c_that_became_an_error_of_a_verb(monkeypatch, capsys):
    def run(_options):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt as error:
            raise UnsupportedError("'x' is not installed") from error

    monkeypatch.setattr("trtint8.cli.table.run", run)
    assert heeding_interruption(lambda: main.main(["table", "show", "x"])) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_where_ctrl_c_is_ignored_it_stays_so():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert heeding_interruption(lambda: signal.raise_signal(signal.SIGINT) or 0) == 0
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def test_ctrl_c_waits_for_the_end_of_the_import_of_a_compiled_module(capsys):
    """Some end the process with a signal of another kind where an exception comes while they begin."""
    begun = []

    class Loader(ExtensionFileLoader):
        def exec_module(self, _module):
            signal.raise_signal(signal.SIGINT)
            begun.append("not interrupted")

    def work():
        Loader("compiled", "compiled.so").exec_module(None)
        for _ in range(3000):
            time.sleep(0.01)
        return 0

    assert heeding_interruption(work) == 130
    assert begun == ["not interrupted"]
    assert capsys.readouterr().err == "interrupted\n"
