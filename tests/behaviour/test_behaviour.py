"""Every public call and verb does what is kept in ``expected``, which ``write.py`` writes."""

import pytest

from tests.behaviour.records import EXPECTED, MANY, RECORDS, expected_file, missing
from tests.behaviour.text import difference

#: The most lines of a difference that are shown.
_SHOWN = 40


@pytest.mark.filterwarnings("ignore:ONNX Runtime's optimizer")
@pytest.mark.parametrize(
    "name",
    [
        # Each record by itself may run on any worker of xdist.
        pytest.param(
            name,
            marks=[
                pytest.mark.xdist_group(f"behaviour {name}"),
                *([pytest.mark.nightly] if name in MANY and name not in MANY[::4] else []),
            ],
        )
        for name in RECORDS
    ],
)
def test_what_is_expected_happens(name, tmp_path):
    if reason := missing(name):
        pytest.skip(reason)
    changed = difference(expected_file(name).read_text().splitlines(), RECORDS[name](tmp_path))
    if changed:
        rest = f"\n... and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
        pytest.fail("\n".join(changed[:_SHOWN]) + rest, pytrace=False)


def test_every_file_is_of_a_record():
    found = {path for path in EXPECTED.rglob("*") if path.is_file()}
    assert found == {expected_file(name) for name in RECORDS}


def test_numbers_may_differ_by_rounding_and_nothing_else():
    expected = ["x 2.641 3", "a scale 0.01", "b 12 of 14", "gone"]
    assert not difference(expected, ["x 2.6415 3", "a scale 0.010001", "b 12 of 14", "gone"])
    found = difference(expected, ["x 2.8 3", "a scale 0.01", "b 13 of 14", "new"])
    assert [line for line in found if line[0] in "+-"][2:] == [
        "-x 2.641 3",
        "+x 2.8 3",
        "-b 12 of 14",
        "-gone",
        "+b 13 of 14",
        "+new",
    ]
