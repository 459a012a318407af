"""The strip of layers."""

import dataclasses

import pytest

from tests.trtint8.report.samples import HOSTILE, SENSITIVITY
from trtint8.models.model import load_model
from trtint8.report.layers import Cell, make_cells, noise_level


class TestNetwork:
    def test_without_an_engine_it_is_what_the_pairs_ask_for(self, found):
        graph = load_model(found.paths["qdq"]).graph_model
        assert make_cells(graph, None, None) == (
            Cell(HOSTILE, "Conv", "INT8"),
            Cell("second", "Conv", "INT8"),
        )

    def test_without_a_model_it_is_what_the_engine_names(self, found):
        unlisted = dataclasses.replace(found.engine, layers=None)
        assert [cell.precision for cell in make_cells(None, unlisted, None)] == ["INT8", "INT8"]
        unknown = dataclasses.replace(found.engine, quantized_nodes=("gone",))
        assert make_cells(None, unknown, None) == (Cell("gone", "", "unknown"),)

    def test_sensitivity_alone_names_weighted_layers(self):
        assert [cell.node for cell in make_cells(None, None, SENSITIVITY)] == ["second", HOSTILE]
        assert make_cells(None, None, None) == ()

    @pytest.mark.parametrize(
        ("share", "wanted"), [(0.0, 0), (0.0099, 0), (0.01, 1), (0.05, 2), (0.1, 3), (0.3, 4), (1.0, 4)]
    )
    def test_levels(self, share, wanted):
        assert noise_level(share) == wanted
