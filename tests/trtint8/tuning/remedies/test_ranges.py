"""Ranges chosen anew for a table that was made with another method."""

import dataclasses

import numpy as np
import pytest

from trtint8.data import DEMO_MODEL
from trtint8.models.model import load_model, prepare
from trtint8.quantization.placement import place
from trtint8.tuning.remedies.ranges import choose_ranges_anew


@pytest.fixture(scope="module")
def model():
    return prepare(load_model(DEMO_MODEL))


@pytest.fixture
def feeds(split):
    return [{"images": images} for images in np.array_split(split.calibration_images[:40], 3)]


def test_a_table_of_another_method_gets_the_ranges_of_auto(model, table, feeds):
    wild = table.with_method("minmax").override({"images": 3.0})
    names = place(model.graph_model).tensors
    chosen = choose_ranges_anew(model, wild, names, feeds)
    assert (chosen.method, chosen.amax["images"]) == ("auto", 3.0)
    assert set(chosen.choice.samples.values()) <= set(range(1, 41))
    assert chosen.histograms == wild.histograms
    assert any(chosen.amax[name] < wild.amax[name] for name in names)
    assert chosen.overridden == {"images"}


def test_ranges_of_auto_and_imported_ranges_stay(model, table, feeds):
    names = place(model.graph_model).tensors
    assert choose_ranges_anew(model, dataclasses.replace(table, method="auto"), names, feeds) is None
    imported = dataclasses.replace(table, method="minmax", histograms={})
    assert choose_ranges_anew(model, imported, names, feeds) is None
