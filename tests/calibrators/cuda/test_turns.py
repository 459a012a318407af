"""One process at a time on a GPU, with the lock alone: no GPU is touched."""

import os
import subprocess
import sys
import tempfile
import threading
import time
import uuid

import pytest

from calibrators.cuda import turn_on_gpu
from calibrators.errors import GpuUnavailableError, UnsupportedError

HOLD = """
import sys
from calibrators.cuda import turn_on_gpu
with turn_on_gpu(sys.argv[1], "testing"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def gpu(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.delenv("TRTINT8_GPU_LOCK", raising=False)
    return uuid.uuid4().hex


@pytest.fixture
def other(gpu):
    """Another process that has the GPU until its standard input is closed."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, gpu], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "held\n"
        yield process


def test_a_process_waits_for_another_one_and_says_so(gpu, other):
    closing = threading.Timer(0.2, other.stdin.close)
    closing.start()
    with pytest.warns(UserWarning, match=str(other.pid)), turn_on_gpu(gpu, "timing"):
        assert other.wait(30) == 0


def test_waiting_is_refused(gpu, other, monkeypatch):
    monkeypatch.setenv("TRTINT8_GPU_LOCK", "refuse")
    with pytest.raises(GpuUnavailableError, match=str(other.pid)), turn_on_gpu(gpu, "timing"):
        pass


def test_no_lock(gpu, other, monkeypatch):
    monkeypatch.setenv("TRTINT8_GPU_LOCK", "off")
    with turn_on_gpu(gpu, "timing"):
        assert other.poll() is None


def test_another_gpu_is_free(gpu, other, monkeypatch):
    monkeypatch.setenv("TRTINT8_GPU_LOCK", "refuse")
    with turn_on_gpu(f"{gpu}1", "timing"):
        assert other.poll() is None


def test_a_killed_process_holds_nothing(gpu, other, monkeypatch):
    monkeypatch.setenv("TRTINT8_GPU_LOCK", "refuse")
    other.kill()
    other.wait()
    with turn_on_gpu(gpu, "timing"):
        pass


def test_a_thread_may_take_it_again_and_others_wait(gpu, monkeypatch):
    monkeypatch.setenv("TRTINT8_GPU_LOCK", "refuse")
    order = []

    def second():
        with turn_on_gpu(gpu, "timing"):
            order.append("second")

    thread = threading.Thread(target=second)
    with turn_on_gpu(gpu, "building"):
        thread.start()
        with turn_on_gpu(gpu, "timing"):
            time.sleep(0.05)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_a_value_that_is_none_of_the_choices(gpu, monkeypatch):
    monkeypatch.setenv("TRTINT8_GPU_LOCK", "perhaps")
    with pytest.raises(UnsupportedError, match="TRTINT8_GPU_LOCK is 'perhaps'"), turn_on_gpu(gpu, "timing"):
        pass


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="every folder can be written")
def test_a_folder_without_room_for_a_lock(gpu, tmp_path):
    tmp_path.chmod(0o500)
    with pytest.warns(UserWarning, match="cannot be locked"), turn_on_gpu(gpu, "timing"):
        pass
