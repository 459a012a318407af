"""A headless Chromium for tests, spoken to over pipes in its DevTools protocol."""

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None
)

#: Seconds to wait for an answer.
_PATIENCE = 60

# Chromium reads commands from descriptor 3 and answers on 4.
_START = "import os, sys; r, w = map(int, sys.argv[1:3]); os.dup2(r, 13); os.dup2(w, 14); os.dup2(13, 3); "
_START += "os.dup2(14, 4); os.execv(sys.argv[3], sys.argv[3:])"


class Browser:
    """One page.

    Attributes:
        messages: What the console, the log and the network had to tell since the page was opened.
        requests: Addresses that were asked for.
    """

    def __init__(self):
        self.messages, self.requests = [], []
        self._profile = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        command_read, self._commands = os.pipe()
        answers, answer_write = os.pipe()
        flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
        ]
        flags += ["--remote-debugging-pipe", f"--user-data-dir={self._profile.name}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, str(command_read), str(answer_write), CHROMIUM, *flags],
            pass_fds=(command_read, answer_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(command_read)
        os.close(answer_write)
        self._answers = os.fdopen(answers, "rb")
        self._buffer, self._last, self._events, self._session = b"", 0, [], None
        target = self("Target.createTarget", url="about:blank")["targetId"]
        self._session = self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self(f"{domain}.enable")

    def __call__(self, method, **parameters):
        """Sends a command and waits for its answer."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._last:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self._note(answer)

    def open(self, path, *, width, height=900, scheme="light"):
        """Loads a file at a size and in a colour scheme."""
        self.messages, self.requests, self._events = [], [], []
        self(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        self("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self("Page.navigate", url=Path(path).resolve().as_uri())
        while "Page.loadEventFired" not in self._events:
            self._note(self._read())

    def evaluate(self, expression):
        """The value of a JavaScript expression."""
        answer = self("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']['text']}")
        return answer["result"].get("value")

    def screenshot(self, path):
        """Writes the whole page as a PNG."""
        shot = self("Page.captureScreenshot", captureBeyondViewport=True)
        Path(path).write_bytes(base64.b64decode(shot["data"]))

    def pdf(self, path):
        """Prints to A4."""
        printed = self("Page.printToPDF", paperWidth=8.27, paperHeight=11.69, preferCSSPageSize=True)
        Path(path).write_bytes(base64.b64decode(printed["data"]))

    def close(self):
        """Ends the browser."""
        os.close(self._commands)
        self._answers.close()
        self._process.terminate()
        self._process.wait(timeout=600)
        self._profile.cleanup()

    def _read(self):
        while b"\0" not in self._buffer:
            if not select.select([self._answers], [], [], _PATIENCE)[0]:
                raise RuntimeError(f"the browser has not answered for {_PATIENCE} s")
            data = os.read(self._answers.fileno(), 1 << 16)
            if not data:
                raise RuntimeError("the browser has gone")
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _note(self, event):
        method, found = event.get("method", ""), event.get("params", {})
        self._events.append(method)
        if method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.messages.append(json.dumps(found))
        elif method == "Network.requestWillBeSent":
            self.requests.append(found["request"]["url"])
