"""What users install is what counts: the package, and its tests, with some of the extras or none."""

import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import trtint8
from tests.installations import missing
from tests.sampling import sample

ROOT = Path(__file__).parents[1]

README = re.search(r'`pip install "\.(\[.+?\])"`', (ROOT / "README.md").read_text())[1]

EXTRAS = [f"[{extra}]" for extra in importlib.metadata.metadata("trtint8").get_all("Provides-Extra")]


def run(code, *requirements):
    """Runs a statement where only these requirements are installed."""
    code = f"from tests.installations import limit_to; limit_to(*{requirements}); {code}"
    # Options for this run of pytest are not for that one.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=inherited, capture_output=True, text=True
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "extras",
    sample(["", README, *(extra for extra in EXTRAS if extra != "[dev]")], [""]),
)
def test_every_verb_and_public_name_works_or_names_its_extra(extras):
    if lacking := missing(f"trtint8{extras}"):
        pytest.skip(f"{', '.join(lacking)} is not installed")
    script = "import runpy; runpy.run_path('scripts/check_installation.py', run_name='__main__')"
    done = run(script, f"trtint8{extras}")
    assert done.returncode == 0, done.stdout + done.stderr
    [tried] = re.findall(r"of (\d+) things", done.stdout)
    pages = (page.read_text() for page in (ROOT / "docs/reference").rglob("*.md"))
    assert int(tried) > len(trtint8.__all__) + sum(page.count("\n::: ") for page in pages)


@pytest.mark.slow
def test_no_extra_is_needed_to_collect_the_suite():
    collect = "import pytest; raise SystemExit(pytest.main(['--collect-only', '-q', '-pno:cacheprovider']))"
    done = run(collect, "trtint8", "pytest", "hypothesis")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    for extra in ("Ray", "Pillow", "scikit-learn", "Polygraphy", "jinja2"):
        assert f"{extra} is not installed" in done.stdout
