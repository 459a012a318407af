"""How the suite runs: which tests are slow, which share a worker, and examples that are always the same."""

import os

import pytest

try:
    from hypothesis import HealthCheck, settings
except ModuleNotFoundError:
    pass  # The tests of a GPU alone run on a machine that has little else.
else:
    # No verdict may depend on how busy the machine is, nor on what an earlier run left in a database.
    settings.register_profile(
        "suite",
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("suite")

# Tests report no usage to Ray. Where they did, a thread of Ray Data would log a traceback every ten seconds,
# for which Python parses the line at fault, and in Python 3.11 ast.parse fails with a SystemError in any test
# that parses at that moment: the two share one counter.
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

# Nor to ONNX Runtime, which some tests import before trtint8.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

#: Fixtures that start a Ray cluster; the first two share one for all tests of a process.
RAY_FIXTURES = ("cluster", "ray_data", "head", "machines")


def pytest_addoption(parser):
    """How long hostile files are tried, and how many of ONNX's own tests."""
    parser.addoption(
        "--fuzz-minutes", type=float, default=0.0, metavar="N", help="make cases of tests/fuzz for N minutes"
    )
    parser.addoption(
        "--all-node-cases", action="store_true", help="take all of ONNX's own tests in tests/onnx_nodes"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Marks what starts Ray, and keeps each file, and all tests of one cluster, on one worker of xdist."""
    for item in items:
        names = getattr(item, "fixturenames", ())
        if any(name in names for name in RAY_FIXTURES):
            item.add_marker("slow")
        group = "Ray" if "cluster" in names else item.nodeid.split("::")[0]
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(group))


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
