"""What the tests of the report share."""

import os

import pytest

from tests.trtint8.report.browser import CHROMIUM, Browser
from tests.trtint8.report.samples import write_all
from trtint8.report.files import find_report_files


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    if os.name != "posix":
        pytest.skip("speaks to the browser over inherited pipes")
    opened = Browser()
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def found(tmp_path_factory):
    """All files of one model; no test changes them."""
    folder = tmp_path_factory.mktemp("report")
    write_all(folder)
    return find_report_files([folder])
