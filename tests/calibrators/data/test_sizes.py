"""The sizes of samples where a model leaves them open."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators.data.samples import SampleSizes

shapes = st.tuples(st.integers(1, 9), st.integers(0, 99), st.integers(0, 99))


def test_the_number_of_samples_is_no_size():
    assert SampleSizes.of((8, 3, 64)) == SampleSizes((3, 64), (3, 64))
    assert SampleSizes.of(()) == SampleSizes((), ())


@given(st.lists(shapes, min_size=1, max_size=5))
def test_both_ends_of_all_shapes(seen):
    found = SampleSizes.of(seen[0])
    for shape in seen[1:]:
        found = SampleSizes.of(shape).merge(found)
    columns = list(zip(*seen, strict=True))[1:]
    assert found == SampleSizes(tuple(map(min, columns)), tuple(map(max, columns)))


@pytest.mark.parametrize(("smallest", "largest"), [((3,), (3, 64)), ((3, 64), (3, 63))])
def test_what_are_no_sizes(smallest, largest):
    with pytest.raises(ValueError, match="sizes"):
        SampleSizes(smallest, largest)
