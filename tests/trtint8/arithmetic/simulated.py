"""Runs small networks in an arithmetic."""

import numpy as np

from calibrators.tables.table import CalibrationTable
from trtint8.arithmetic.simulation import simulate
from trtint8.models.model import load_model, prepare
from trtint8.models.session import open_graph_model
from trtint8.quantization.config import arithmetic_named


def table_of(ranges):
    """A table of ranges that were set by hand."""
    return CalibrationTable(ranges, overridden=frozenset(ranges))


def simulated(model, ranges, arithmetic):
    """The simulation of a model by an arithmetic's name."""
    return simulate(prepare(load_model(model)), table_of(ranges), arithmetic_named(arithmetic))


def outputs_of(simulation, feeds):
    """The outputs by name, and the largest sum of each layer."""
    session = open_graph_model(simulation.graph_model)
    found = dict(zip(session.output_names, session.run(feeds), strict=True))
    return found, dict(zip(simulation.layers, found.pop(simulation.sums).tolist(), strict=True))


def output_of(model, ranges, arithmetic, feeds):
    """The first output."""
    found, _ = outputs_of(simulated(model, ranges, arithmetic), feeds)
    return next(iter(found.values()))


def values(shape, seed=0, spread=1.0):
    """Normal values, float32."""
    return (np.random.default_rng(seed).standard_normal(shape) * spread).astype(np.float32)


def amax_of(array):
    """The largest magnitude."""
    return float(np.abs(array).max())
