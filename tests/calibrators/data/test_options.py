"""Options of data that make no sense."""

from __future__ import annotations

import pytest

from calibrators.data.batches import open_batches
from tests.calibrators.data.sample_data import RAW, VECTOR, refused, vectors


class TestOptions:
    def test_batches_are_returned_as_they_are(self):
        batches = open_batches(vectors(4), [VECTOR])
        assert open_batches(batches, [VECTOR]) is batches

    @pytest.mark.parametrize(
        "option",
        [{"batch_size": 2}, {"limit": 2}, {"shuffle": True}, {"preprocessing": RAW}, {"labels": [0]}],
        ids=lambda option: next(iter(option)),
    )
    def test_batches_take_no_more_options(self, option):
        refused(
            open_batches(vectors(4), [VECTOR]), f"opened already, so {next(iter(option))} would", **option
        )

    @pytest.mark.parametrize("name", ["batch_size", "limit"])
    @pytest.mark.parametrize("value", [0, -1, 2.0, True])
    def test_refuses_numbers_that_are_not_positive(self, name, value):
        refused(vectors(4), f"{name} is {value}; give a positive integer", **{name: value})

    def test_refuses_a_negative_seed(self):
        refused(vectors(4), "seed is -1; give", shuffle=True, seed=-1)
