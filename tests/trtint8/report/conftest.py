"""What the tests of the report share."""

import pytest

from tests.trtint8.report.samples import write_all
from trtint8.report.files import find


@pytest.fixture
def found(tmp_path, capsys):
    write_all(tmp_path, capsys)
    return find([tmp_path])
