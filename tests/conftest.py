"""Says at the end how many tests ran on which of TensorRT's bindings."""


def pytest_terminal_summary(terminalreporter):
    lines = {
        value
        for reports in terminalreporter.stats.values()
        for report in reports
        for name, value in getattr(report, "user_properties", ())
        if name == "bindings"
    }
    for line in sorted(lines):
        terminalreporter.write_line(line)
