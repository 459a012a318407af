"""Tables of PPQ."""

import json

import pytest

from calibrators.errors import TableError
from calibrators.tables.formats import ppq
from tests.calibrators.tables.formats.golden_files import golden


def test_ppq():
    assert ppq.PPQ.parse(golden("ppq.json"), "golden") == {"images": 2.64, "relu::out": 6.5}


@pytest.mark.parametrize("values", [{"a": "wide"}, {"a": None}, [1], None])
def test_ppq_malformed(values):
    with pytest.raises(TableError, match="is not a table of PPQ"):
        ppq.PPQ.parse(json.dumps({"act_quant_info": values}).encode(), "it")


def test_a_tensor_that_stands_twice():
    with pytest.raises(TableError, match=r"^'it': 'a' stands twice; remove one of them$"):
        ppq.PPQ.parse(b'{"act_quant_info": {"a": 1.0, "b": 2.0, "a": 3.0}}', "it")
