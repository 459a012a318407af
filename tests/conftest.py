"""How the suite runs: examples that are the same every time, and the bindings that were tested at the end."""

from hypothesis import HealthCheck, settings

# No verdict may depend on how busy the machine is, nor on what an earlier run left in a database.
settings.register_profile(
    "suite",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("suite")


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
