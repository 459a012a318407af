"""What the tests of the report share."""

import pytest

from tests.trtint8.report.samples import write_all
from trtint8.report.files import find_report_files


@pytest.fixture(scope="session")
def found(tmp_path_factory):
    """All files of one model; no test changes them."""
    folder = tmp_path_factory.mktemp("report")
    write_all(folder)
    return find_report_files([folder])
