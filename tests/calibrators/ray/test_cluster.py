"""Calibration over a cluster that another process has started, which asks for a token."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import trtint8
from tests.sampling import sample
from trtint8.data import DEMO_MODEL, load_digits_split

pytest.importorskip("sklearn", reason="scikit-learn is not installed (pip install 'trtint8[demo]')")

pytest.importorskip("ray", reason="Ray is not installed (pip install 'trtint8[ray]')")

TOKEN = "a" * 64


@dataclass(frozen=True)
class Head:
    """A cluster of one machine; `ray start` has made it ask for the user's token, because there is one.

    Attributes:
        port: Where it listens.
        environment: Of a program of the same user on the same machine.
        log: What Ray has to say.
    """

    port: int
    environment: dict
    log: Path


@pytest.fixture(scope="module")
def head():
    # Not a folder of pytest's: the paths of Ray's sockets would be too long.
    folder = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))
    (folder / "home" / ".ray").mkdir(parents=True)
    (folder / "home" / ".ray" / "auth_token").write_text(TOKEN)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"HOME": str(folder / "home"), "RAY_TMPDIR": str(folder), "RAY_USAGE_STATS_ENABLED": "0"}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", f"--port={port}"]
    command += ["--num-cpus=2", "--include-dashboard=false", f"--object-store-memory={100 << 20}"]
    log = folder / "log"
    with log.open("w") as out:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True)
    try:
        found = Head(port, environment, log)
        if not _is_up(found, process):
            pytest.skip(f"Ray does not start here: {log.read_text()[-500:]}")
        yield found
    finally:
        process.terminate()  # it ends all that it has started
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _is_up(head, process):
    for _ in range(60):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1)
            return False
        if "Ray runtime started" in head.log.read_text():
            return True
    return False


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A file of samples, and the table of one process, as bytes."""
    folder = tmp_path_factory.mktemp("data")
    images = load_digits_split().calibration_images[:60]
    np.save(folder / "d.npy", images)
    trtint8.calibrate(DEMO_MODEL, images).save(folder / "alone.json")
    return folder / "d.npy", (folder / "alone.json").read_bytes()


def _calibrate(head, data, output, *ray, **environment):
    command = [sys.executable, "-m", "trtint8.cli.main", "calibrate", str(DEMO_MODEL), str(data)]
    done = subprocess.run(
        [*command, "-o", str(output), "--batch-size", "4", "--ray", *ray],
        env={**head.environment, **environment},
        capture_output=True,
        text=True,
        timeout=1800,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("way", sample(["address", "RAY_ADDRESS", "auto", "found"], ["address", "found"]))
def test_the_table_is_that_of_one_process(way, head, data, tmp_path):
    output = tmp_path / "t.json"
    address = f"127.0.0.1:{head.port}"
    jobs = head.log.parent / "ray" / "session_latest" / "logs"
    before = len(list(jobs.glob("python-core-driver-*")))
    if way == "address":
        said = _calibrate(head, data[0], output, address, RAY_AUTH_MODE="token")
    elif way == "RAY_ADDRESS":
        said = _calibrate(head, data[0], output, RAY_ADDRESS=address, RAY_AUTH_MODE="token")
    else:
        # A cluster that Ray finds by itself is this user's: Ray shows it the user's token unasked.
        said = _calibrate(head, data[0], output, *(["auto"] if way == "auto" else []))
    assert said[0] == 0, said
    assert output.read_bytes() == data[1]
    # It ran there, and not on a cluster of its own.
    assert len(list(jobs.glob("python-core-driver-*"))) == before + 1


@pytest.mark.parametrize(
    "environment",
    [{}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "b" * 64}, {"RAY_AUTH_MODE": "token", "HOME": "/none"}],
    ids=["not asked for", "another", "none"],
)
def test_without_the_token_it_says_at_once_what_to_do(environment, head, data, tmp_path):
    address = f"127.0.0.1:{head.port}"
    code, said = _calibrate(head, data[0], tmp_path / "t.json", address, **environment)
    assert code == 2
    sentence = (
        f"trtint8 calibrate: cannot connect to the Ray cluster '{address}': its token is missing or wrong "
        "here; set RAY_AUTH_MODE=token, and have the cluster's token in ~/.ray/auth_token or RAY_AUTH_TOKEN\n"
    )
    # Ray's own library writes a line, too, once.
    assert re.sub(r"^\[.* gcs_client\.cc.*\n", "", said) == sentence
    assert TOKEN not in said
