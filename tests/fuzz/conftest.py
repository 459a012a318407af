"""How long cases are made, and what is said about them at the end."""

import pytest

_FINDINGS = pytest.StashKey[dict[str, int]]()


@pytest.fixture
def fuzz_minutes(request):
    """How long the long run goes on; 0 for an ordinary run."""
    return request.config.getoption("--fuzz-minutes")


@pytest.fixture
def fuzz_findings(request):
    """Cause to how often it was found, and how many cases there were."""
    return request.config.stash.setdefault(_FINDINGS, {"cases": 0})


def pytest_terminal_summary(terminalreporter, config):
    """Says how many cases there were, and what was found."""
    found = config.stash.get(_FINDINGS, None)
    if found and found["cases"]:
        causes = {cause: count for cause, count in found.items() if cause != "cases"}
        terminalreporter.write_line(f"fuzz: {found['cases']} cases, {len(causes)} findings")
        for cause, count in sorted(causes.items()):
            terminalreporter.write_line(f"  {count} x {cause}")
