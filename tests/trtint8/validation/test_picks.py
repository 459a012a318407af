"""Picks that a network makes by comparing what it has computed, and how many of them INT8 changes."""

import numpy as np
import onnx
import pytest

import trtint8
from tests.trtint8.onnx_models import normal, parsed
from trtint8.models.model import load_model, prepare
from trtint8.models.outputs.picked import find_shown_picks
from trtint8.models.session import open_graph_model

IMAGE = "float[N, 3, 8, 8] x"
HEAD = "h = Conv <pads = [1, 1, 1, 1]> (x, w) "
WEIGHTS = {"w": normal(4, 3, 3, 3, seed=1)}
DATA = normal(12, 3, 8, 8, seed=5)
PEAKS = HEAD + "m = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (h) e = Equal (h, m) "


def i64(*numbers):
    return np.array(numbers, np.int64)


#: Nodes, outputs, constants, and the tensors that show what is picked, to how.
KINDS = {
    "classes of pixels": (
        HEAD + "y = ArgMax <axis = 1, keepdims = 0> (h)",
        "int64[N, 8, 8] y",
        {},
        {"y": "ArgMax"},
    ),
    "classes as bytes": (
        HEAD + "a = ArgMax <axis = 1> (h) y = Cast <to = 2> (a)",
        "uint8[N, 1, 8, 8] y",
        {},
        {"y": "ArgMax"},
    ),
    "the least distance": (HEAD + "y = ArgMin <axis = 1> (h)", "int64[N, 1, 8, 8] y", {}, {"y": "ArgMin"}),
    "the best places": (
        HEAD + "f = Flatten (h) v, y = TopK <axis = 1> (f, k)",
        "float[N, 9] v, int64[N, 9] y",
        {"k": i64(9)},
        {"y": "TopK"},
    ),
    "places inside, of which values are gathered": (
        HEAD + "f = Flatten (h) v, i = TopK (f, k) g = Neg (f) y = GatherElements <axis = 1> (g, i)",
        "float[N, 9] y",
        {"k": i64(9)},
        {"i": "TopK"},
    ),
    "the best values without their places": (
        HEAD + "f = Flatten (h) y, i = TopK (f, k)",
        "float[N, 9] y",
        {"k": i64(9)},
        {},
    ),
    "peaks as a mask": (PEAKS + "y = Cast <to = 1> (e)", "float[N, 4, 8, 8] y", {}, {"y": "Equal"}),
    "peaks with their values": (
        PEAKS + "c = Cast <to = 1> (e) y = Mul (c, h)",
        "float[N, 4, 8, 8] y",
        {},
        {"y": "Equal"},
    ),
    "peaks above a bound": (
        PEAKS + "g = Greater (h, bound) b = And (e, g) p = NonZero (b) y = Transpose (p)",
        "int64[n, 4] y",
        {"bound": np.float32(1)},
        {"b": "Equal"},
    ),
    "peaks by Where": (
        PEAKS + "y = Where (e, h, zero)",
        "float[N, 4, 8, 8] y",
        {"zero": np.float32(0)},
        {"y": "Equal"},
    ),
    "a mask": (
        HEAD + "y = GreaterOrEqual (h, bound)",
        "bool[N, 4, 8, 8] y",
        {"bound": np.float32(0)},
        {"y": "GreaterOrEqual"},
    ),
    "a function defined piece by piece": (
        HEAD + "n = Mul (h, slope) l = Less (h, zero) y = Where (l, n, h)",
        "float[N, 4, 8, 8] y",
        {"zero": np.float32(0), "slope": np.float32(0.1)},
        {},
    ),
    "a bound with a layer behind it": (
        HEAD + "g = Less (h, zero) c = Cast <to = 1> (g) y = Conv (c, v)",
        "float[N, 2, 8, 8] y",
        {"zero": np.float32(0), "v": normal(2, 4, 1, 1, seed=2)},
        {},
    ),
    "places with a layer behind them": (
        HEAD + "a = ArgMax <axis = 1> (h) c = Cast <to = 1> (a) y = Conv (c, v)",
        "float[N, 2, 8, 8] y",
        {"v": normal(2, 1, 1, 1, seed=2)},
        {"a": "ArgMax"},
    ),
    "a guard": (
        HEAD + "z = Equal (h, zero) y = Where (z, one, h)",
        "float[N, 4, 8, 8] y",
        {"zero": np.float32(0), "one": np.float32(1)},
        {},
    ),
    "classes that nothing computes": (
        HEAD + "y = Relu (h) a = ArgMax <axis = 1> (x)",
        "float[N, 4, 8, 8] y, int64[N, 1, 8, 8] a",
        {},
        {},
    ),
    "values that are not zero": (
        HEAD + "r = Relu (h) p = NonZero (r) y = Transpose (p)",
        "int64[n, 4] y",
        {},
        {"p": "NonZero"},
    ),
    "a choice of one": (HEAD + "y = Hardmax <axis = 1> (h)", "float[N, 4, 8, 8] y", {}, {"y": "Hardmax"}),
    "boxes": (
        HEAD
        + """f = Reshape (h, flat) s = Sigmoid (f) b = Transpose <perm = [0, 2, 1]> (s)
        y = NonMaxSuppression (b, s, most, overlap, least)""",
        "int64[n, 3] y",
        {"flat": i64(0, 4, 64), "most": i64(5), "overlap": np.float32([0.3]), "least": np.float32([0.5])},
        {"y": "NonMaxSuppression"},
    ),
}


def network(kind):
    nodes, outputs, constants, wanted = KINDS[kind]
    return onnx.shape_inference.infer_shapes(parsed(IMAGE, outputs, nodes, **WEIGHTS, **constants)), wanted


@pytest.mark.parametrize("kind", KINDS)
def test_what_shows_picks_is_found(kind):
    model, wanted = network(kind)
    for graph_model in (load_model(model).graph_model, prepare(load_model(model)).graph_model):
        assert {one.tensor: one.operator for one in find_shown_picks(graph_model)} == wanted


def changes_by_hand(tensor, operator, arrays):
    """Picks, changed, lost and gained: two arrays, sample by sample, as sets of what is picked."""
    counts = np.zeros(4, int)
    if operator == "ArgMax" or operator == "ArgMin":
        changed = int((arrays[0] != arrays[1]).sum())
        return (arrays[0].size, changed, changed, changed)
    for sample in range(len(DATA)):
        wanted, got = (picked(operator, array, sample) for array in arrays)
        lost, gained = len(wanted - got), len(got - wanted)
        counts += (len(wanted), max(lost, gained), lost, gained)
    return tuple(counts.tolist())


def picked(operator, array, sample):
    if operator == "NonMaxSuppression":
        return {tuple(row) for row in array.tolist() if row[0] == sample}
    if operator == "NonZero":
        return {tuple(column) for column in array.T.tolist() if column[0] == sample}
    if operator == "TopK":
        return set(array[sample].tolist())
    return set(np.flatnonzero(array[sample]).tolist())


@pytest.mark.parametrize("kind", [kind for kind, (*_, wanted) in KINDS.items() if wanted])
def test_changed_picks_are_counted_beside_the_noise(kind):
    model, wanted = network(kind)
    ((tensor, operator),) = wanted.items()
    table = trtint8.calibrate(model, DATA, tensors="placed", progress=False)
    quantized = trtint8.quantize(model, table)
    accuracy = trtint8.validate(quantized, DATA, reference=model, batch_size=5, progress=False)
    (found,) = accuracy.picks_changed
    assert (found.tensor, found.operator) == (tensor, operator)
    arrays = []
    for one in (model, quantized):
        session = open_graph_model(load_model(one).graph_model, () if tensor == "y" else (tensor,))
        arrays.append(
            dict(zip((*session.output_names, tensor), session.run({"x": DATA}), strict=False))[tensor]
        )
    assert (found.picks, found.changed, found.lost, found.gained) == changes_by_hand(tensor, operator, arrays)
    assert found.share == found.changed / found.picks
    measured = trtint8.measure_sensitivity(model, table, DATA, batch_size=5, progress=False)
    assert measured.picks_changed == accuracy.picks_changed
