"""Reports with given times, and an engine on a clock that stands still unless something is done."""

import contextlib
from types import MappingProxyType

from calibrators.errors import EngineError
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

    handle = 0

    def clock(self):
        return self.host

    @contextlib.contextmanager
    def active(self):
        yield

    def wait_for_stream(self, _waiting, _producing):
        """Contexts of several timelines do not know of one another."""

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


class Engines:
    """A GPU that copies and computes at once, and the clock of its host, which waits only for events.

    Attributes:
        computed: Beginning and end of every computation, in milliseconds.
    """

    COSTS = Timeline.COSTS

    def __init__(self):
        self.host, self.free, self.streams, self.computed = 0.0, dict.fromkeys(self.COSTS, 0.0), {}, []

    @contextlib.contextmanager
    def active(self):
        yield

    def clock(self):
        return self.host

    def new_event(self):
        return EngineEvent(self)

    def wait_for_stream(self, waiting, producing):
        self.streams[waiting].at = max(self.streams[waiting].at, self.streams[producing].at)

    def run(self, stream, what):
        begin = max(stream.at, self.free[what], self.host * 1e3)
        stream.at = self.free[what] = begin + self.COSTS[what]
        if what == "enqueue":
            self.computed.append((begin, stream.at))


class EngineEvent:
    def __init__(self, engines):
        self.engines = engines

    def record(self, stream):
        self.at = max(stream.at, self.engines.host * 1e3)

    def synchronize(self):
        self.engines.host = max(self.engines.host, self.at / 1e3)

    def milliseconds_since(self, earlier):
        return self.at - earlier.at


class EngineContext:
    """One context on a stream of its own.

    Attributes:
        works: False where it cannot be bound.
    """

    works = True

    def __init__(self, engines):
        self.device, self.stream, self.at, self.handle = engines, self, 0.0, len(engines.streams)
        engines.streams[self.handle] = self

    def bind(self, _feeds):
        if not self.works:
            raise EngineError("TensorRT refuses the optimization profile 0")

    def upload(self):
        self.device.run(self, "upload")

    def enqueue(self):
        self.device.run(self, "enqueue")
        self.device.host += 0.001

    def queue_download(self):
        self.device.run(self, "download")
