"""Slices of a Ray Dataset's blocks, of which only references are held; real ones are read over Ray."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators.data.feeds import Binding
from calibrators.data.sources.datasets import Blocks, Slice
from calibrators.data.sources.streams import is_dataset


class Dataset:
    """What is used of a Ray Dataset: blocks named a, b, c ... with so many rows; counts those asked for."""

    def __init__(self, *rows, parts=None):
        self.rows, self.parts, self.asked = rows, parts, 0

    def iter_internal_ref_bundles(self):
        for index, rows in enumerate(self.rows):
            self.asked += 1
            metadata = SimpleNamespace(num_rows=rows)
            yield SimpleNamespace(block_refs=["abcdefgh"[index]], metadata=[metadata], slices=self.parts)


def block_batches(dataset, size, limit, *, whole):
    return Blocks(dataset, Binding(()), limit, whole).batches(size)


def test_arrays_and_the_like_are_no_datasets():
    for other in (np.zeros(3), [{}], "folder", None, Dataset(3)):
        assert not is_dataset(other)


def test_batches_join_what_lies_in_several_blocks():
    assert list(block_batches(Dataset(3, 4), 5, None, whole=False)) == [
        [Slice("a", 0, 3), Slice("b", 0, 2)],
        [Slice("b", 2, 4)],
    ]


@given(st.lists(st.integers(0, 9), max_size=6), st.integers(1, 8), st.none() | st.integers(1, 30))
def test_every_row_is_in_one_batch_in_its_place(rows, size, limit):
    batches = list(block_batches(Dataset(*rows), size, limit, whole=False))
    found = [
        (piece.block, row) for batch in batches for piece in batch for row in range(piece.start, piece.stop)
    ]
    wanted = [("abcdefgh"[index], row) for index, count in enumerate(rows) for row in range(count)]
    assert found == wanted[:limit]
    lengths = [sum(piece.stop - piece.start for piece in batch) for batch in batches]
    assert lengths[:-1] == [size] * (len(lengths) - 1)


def test_rows_that_fill_no_batch_are_left_out_aloud():
    with pytest.warns(UserWarning, match="2"):
        assert len(list(block_batches(Dataset(7), 5, None, whole=True))) == 1


def test_nothing_is_asked_for_beyond_the_limit():
    blocks = Dataset(3, 3, 3)
    assert len(list(block_batches(blocks, 3, 6, whole=False))) == 2
    assert blocks.asked == 2


def test_a_block_may_be_given_in_part():
    part = SimpleNamespace(start_offset=2, end_offset=5)
    assert list(block_batches(Dataset(9, parts=[part]), 8, None, whole=False)) == [[Slice("a", 2, 5)]]
