"""How the suite runs: which tests are slow, which share a worker, and examples that are always the same."""

import gc
import os
import signal
from collections import Counter

import pytest

try:
    from hypothesis import HealthCheck, settings
except ModuleNotFoundError:
    settings = None  # The tests of a GPU alone run on a machine that has little else.

# Tests report no usage to Ray. Where they did, a thread of Ray Data would log a traceback every ten seconds,
# for which Python parses the line at fault, and in Python 3.11 ast.parse fails with a SystemError in any test
# that parses at that moment: the two share one counter.
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

# Nor to ONNX Runtime, which some tests import before trtint8.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

# The suite may run in the background, where shells and nohup have programs ignore these signals. A program
# that ignores a signal hands that on to those that it starts, but no handler. So what a test starts is as in
# the foreground, and so is Ctrl-C here.
for _number, _handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGQUIT, lambda *_: None),
    (signal.SIGHUP, lambda *_: None),
):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)

#: Fixtures that start a Ray cluster; the first two share one for all tests of a process.
RAY_FIXTURES = ("cluster", "ray_data", "head", "machines")


def pytest_addoption(parser):
    """How much is tried."""
    parser.addoption(
        "--fuzz-minutes", type=float, default=0.0, metavar="N", help="make cases of tests/fuzz for N minutes"
    )
    parser.addoption(
        "--nightly", action="store_true", help="try all of what an ordinary run takes a sample of, in hours"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    """How many random examples each test has, and how many seconds it may take on a slow machine."""
    is_nightly = config.getoption("--nightly")
    os.environ.setdefault("PYTEST_TIMEOUT", "14400" if is_nightly else "900")
    if settings:
        # No verdict may depend on how busy the machine is, nor on what an earlier run left in a database.
        settings.register_profile(
            "suite",
            max_examples=1000 if is_nightly else 25,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
        )
        settings.load_profile("suite")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What is collected stays to the end, so searches for garbage need not look at it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def nightly(request):
    """True where everything is tried, not a sample of it."""
    return request.config.getoption("--nightly")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Marks what starts Ray, and keeps each file, and all tests of one cluster, on one worker of xdist.

    Workers begin with what has the most slow tests, so that all of them end at about the same time.
    """
    slow = Counter()
    for item in items:
        names = getattr(item, "fixturenames", ())
        if any(name in names for name in RAY_FIXTURES):
            item.add_marker("slow")
        if item.get_closest_marker("nightly") and not config.getoption("--nightly"):
            item.add_marker(pytest.mark.skip(reason="only with --nightly"))
        group = "Ray" if "cluster" in names else item.nodeid.split("::")[0]
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(group))
        slow[_group(item)] += item.get_closest_marker("slow") is not None
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: -slow[_group(item)])


def _group(item):
    return item.get_closest_marker("xdist_group").args[0]


def pytest_terminal_summary(terminalreporter):
    """Says how many tests ran on which of TensorRT's bindings."""
    lines = {
        value
        for reports in terminalreporter.stats.values()
        for report in reports
        for name, value in getattr(report, "user_properties", ())
        if name == "bindings"
    }
    for line in sorted(lines):
        terminalreporter.write_line(line)
