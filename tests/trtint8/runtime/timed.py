"""Reports with given times, and an engine on a clock that stands still unless something is done."""

import contextlib
from types import MappingProxyType

from trtint8.runtime.bench import BenchReport, Summary


def flat(value):
    return Summary(*[value] * 7)


REPORT = BenchReport(
    "int8",
    8,
    True,
    False,
    400,
    2.0,
    {"latency": flat(4.0), "enqueue": flat(0.1), "compute": flat(3.0), "h2d": flat(0.5), "d2h": flat(0.5)},
)


class Timeline:
    """Our own interfaces of device and context on a clock that stands still unless something is done."""

    COSTS = MappingProxyType({"upload": 2.0, "enqueue": 10.0, "download": 1.0})

    def __init__(self):
        self.device = self
        self.stream = self
        self.calls = []
        self.host = 0.0
        self.gpu = 0.0
        self.waiting = self.most_waiting = 0

    def clock(self):
        return self.host

    @contextlib.contextmanager
    def active(self):
        yield

    def new_event(self):
        timeline = self

        class Event:
            def record(self, _stream):
                self.at = timeline.gpu

            def synchronize(self):
                timeline.waiting -= 1
                timeline.host = max(timeline.host, self.at / 1e3)

            def milliseconds_since(self, earlier):
                return self.at - earlier.at

        return Event()

    def bind(self, _feeds):
        self.calls.append("bind")

    def upload(self):
        self._do("upload")

    def enqueue(self):
        self._do("enqueue")
        self.host += 0.001
        self.waiting += 1
        self.most_waiting = max(self.most_waiting, self.waiting)

    def queue_download(self):
        self._do("download")

    def _do(self, what):
        self.calls.append(what)
        self.gpu = max(self.gpu, self.host * 1e3) + self.COSTS[what]
