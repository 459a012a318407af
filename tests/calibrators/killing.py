"""Processes that are killed once they have written something."""

import signal
import subprocess
import time


def kill_after_write(command, file, moments, **options):
    """Starts a process and kills it some time after it has written a file, or written it anew."""
    before = file.stat().st_mtime_ns if file.exists() else None
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, **options)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if file.exists() and file.stat().st_mtime_ns != before:
            break
        time.sleep(0.005)
    time.sleep(moments.uniform(0, 0.2))
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.returncode == -signal.SIGKILL
