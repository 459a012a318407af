"""What two samples show that are run joined and apart."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from calibrators.data.feeds import OneSample
from calibrators.data.inputs import InputSpec
from calibrators.data.opening import open_batches
from tests.trtint8.onnx_models import parsed
from trtint8.models.model import load_model, prepare
from trtint8.models.samples.joining import (
    joined_samples,
    takes_joined_samples,
    takes_one_sample,
    two_samples,
)
from trtint8.models.samples.separate import Joined, Joining

_RNG = np.random.default_rng(7)


def _weights(*shape):
    return _RNG.normal(0, 0.5, shape).astype(np.float32)


def _network(body, constants, inputs, outputs):
    return parsed(inputs, outputs, body, ir_version=9, **constants)


def _recurrent(kind, gates, direction="forward", tail="", outputs="float[t,n,5] y", first=""):
    """A recurrent layer over [time, batch, 4], with a layer behind it."""
    count = 2 if direction == "bidirectional" else 1
    body = f"""{first} o, h = {kind} <hidden_size = 6, direction = "{direction}"> (s, W, R)
        p = Transpose <perm = [0, 2, 1, 3]> (o) f = Reshape (p, flat) {tail or "y = MatMul (f, w)"}"""
    constants = {
        "W": _weights(count, gates * 6, 4),
        "R": _weights(count, gates * 6, 6),
        "w": _weights(count * 6, 5),
        "flat": np.array([0, 0, -1]),
        "last": np.array(-1),
        "axes": np.array([0]),
    }
    return _network(body, constants, "float[t,n,4] x", outputs)


_TIME = "s = Identity (x)"
_BATCH_FIRST = "s = Transpose <perm = [1, 0, 2]> (x)"
_BACK = "b = Transpose <perm = [1, 0, 2]> (f) y = MatMul (b, w)"


def _attention(first):
    """Attention over axis 0 of [length, batch, 4], or over axis 1."""
    return _network(
        f"""{first} q = MatMul (s, wq) k = MatMul (s, wk) v = MatMul (s, wv)
        kt = Transpose <perm = [0, 2, 1]> (k) a = MatMul (q, kt) p = Softmax (a) o = MatMul (p, v)
        y = Transpose <perm = [1, 0, 2]> (o)""",
        {name: _weights(4, 4) * 3 for name in ("wq", "wk", "wv")},
        "float[l,n,4] x",
        "float[l,n,4] y",
    )


def _tokens():
    return _network(
        """e = Gather (table, x) c = CumSum (e, zero) y = MatMul (c, w)""",
        {"table": _weights(50, 4), "zero": np.array(0), "w": _weights(4, 5)},
        "int64[t,n] x",
        "float[t,n,5] y",
    )


def _masked():
    return _network(
        """m = Unsqueeze (mask, two) k = Mul (x, m) c = CumSum (k, zero) y = MatMul (c, w)""",
        {"two": np.array([2]), "zero": np.array(0), "w": _weights(4, 5)},
        "float[t,n,4] x, float[t,n] mask",
        "float[t,n,5] y",
    )


def _words(first, back):
    """Scores of words with time and batch flattened into one axis."""
    return _network(
        f"""{first} c = CumSum (s, zero) y1 = MatMul (c, w) {back} y = Reshape (y2, flat)""",
        {"zero": np.array(0), "w": _weights(4, 30), "flat": np.array([-1, 30])},
        "float[t,n,4] x",
        "float[k,30] y",
    )


def _suppressed(tail="y = Identity (i)", outputs="int64[k,3] y"):
    """Boxes that suppression leaves, with the number of their image."""
    return _network(
        f"""b = MatMul (x, w) z = Sub (b, b) corner = Add (b, z) far = Add (corner, one)
        boxes = Concat <axis = 2> (corner, far) v = ReduceMax <axes = [2], keepdims = 0> (x)
        scores = Unsqueeze (v, axis) i = NonMaxSuppression (boxes, scores, most, iou, least) {tail}""",
        {
            "w": _weights(4, 2) * 20,
            "one": np.float32(1),
            "axis": np.array([1]),
            "most": np.array([20]),
            "iou": np.float32([0.5]),
            "least": np.float32([-9.0]),
            "columns": np.array([0, 1]),
        },
        "float[n,30,4] x",
        outputs,
    )


def _numbered():
    """Boxes as rows of image, class, box and the four corners."""
    tail = """pair = Constant <value = int64[2] {0, 2}> () p = Gather <axis = 1> (i, pair)
        chosen = GatherND (boxes, p) ids = Cast <to = 1> (i) y = Concat <axis = 1> (ids, chosen, chosen)"""
    return _suppressed(tail, "float[k,11] y")


def _plain(body, constants=None, outputs="float[n,8,4] y", inputs="float[n,8,4] x"):
    constants = {"w": _weights(4, 4), **(constants or {})}
    return _network(body, constants, inputs, outputs)


NETWORKS = {
    # Time, or a sequence, lies along axis 0.
    "LSTM over time": (_recurrent("LSTM", 4, first=_TIME), Joining.CHANGED),
    "GRU against time": (_recurrent("GRU", 3, "reverse", first=_TIME), Joining.CHANGED),
    "RNN in both directions": (_recurrent("RNN", 1, "bidirectional", first=_TIME), Joining.CHANGED),
    "the last step alone": (
        _recurrent(
            "LSTM", 4, first=_TIME, tail="l = Gather (f, last) y = MatMul (l, w)", outputs="float[n,5] y"
        ),
        Joining.CHANGED,
    ),
    "the last state alone": (
        _recurrent("GRU", 3, first=_TIME, tail="y = MatMul (h, w)", outputs="float[1,n,5] y"),
        Joining.CHANGED,
    ),
    "attention over axis 0": (
        _attention("s = Transpose <perm = [1, 0, 2]> (x)"),
        Joining.CHANGED,
    ),
    "tokens over time": (_tokens(), Joining.CHANGED),
    "a sequence with its mask": (_masked(), Joining.CHANGED),
    "time and batch in one axis": (_words(_TIME, "y2 = Identity (y1)"), Joining.CHANGED),
    # Samples of a batch change each other.
    "normalized by the batch": (
        _plain("m = ReduceMean <axes = [0]> (x) d = Sub (x, m) y = MatMul (d, w)"),
        Joining.CHANGED,
    ),
    "merged into one sequence": (
        _plain(
            "r = Reshape (x, one) t = Transpose <perm = [0, 2, 1]> (r) a = MatMul (r, t) p = Softmax (a)"
            " y = MatMul (p, r)",
            {"one": np.array([1, -1, 4])},
            "float[1,k,4] y",
        ),
        Joining.CHANGED,
    ),
    # A batch of 1 was traced.
    "reshaped to one sample": (
        _plain(
            "m = MatMul (x, w) y = Reshape (m, shape)", {"shape": np.array([1, 16, 2])}, "float[1,16,2] y"
        ),
        Joining.REFUSED,
    ),
    "a token for one sample": (
        _plain("y = Concat <axis = 1> (x, cls)", {"cls": _weights(1, 1, 4)}, "float[n,9,4] y"),
        Joining.REFUSED,
    ),
    "a first state for one sample": (
        _network(
            "s = Transpose <perm = [1, 0, 2]> (x) o, y = LSTM <hidden_size = 6> (s, W, R, , , first)",
            {"W": _weights(1, 24, 4), "R": _weights(1, 24, 6), "first": _weights(1, 1, 6)},
            "float[n,t,4] x",
            "float[1,n,6] y",
        ),
        Joining.REFUSED,
    ),
    # Every sample is computed by itself.
    "the batch first": (_recurrent("LSTM", 4, first=_BATCH_FIRST, tail=_BACK), Joining.ROWS),
    "attention over axis 1": (_attention("s = Identity (x)"), Joining.APART),
    "the state of each sample": (
        _recurrent("GRU", 3, first=_BATCH_FIRST, tail="y = MatMul (h, w)", outputs="float[1,t,5] y"),
        Joining.APART,
    ),
    "samples and time in one axis": (
        _words(_BATCH_FIRST, "y2 = Transpose <perm = [1, 0, 2]> (y1)"),
        Joining.APART,
    ),
    "time and samples in one axis": (_words(_BATCH_FIRST, "y2 = Identity (y1)"), Joining.APART),
    "suppressed boxes": (_suppressed(), Joining.APART),
    "boxes with the number of their image": (_numbered(), Joining.APART),
    "every pair of samples": (
        _plain("f = Flatten (x) t = Transpose (f) y = MatMul (f, t)", outputs="float[n,n] y"),
        Joining.APART,
    ),
    "sorted values": (_plain("a = MatMul (x, w) y = Unique (a)", outputs="float[k] y"), Joining.APART),
    "a constant beside": (
        _plain("y = MatMul (x, w) anchors = Mul (w, w)", outputs="float[n,8,4] y, float[4,4] anchors"),
        Joining.APART,
    ),
    "a row for each": (_plain("a = MatMul (x, w) y = Relu (a)"), Joining.ROWS),
}


#: What the graph shows where it shows nothing.
UNKNOWN = Joined(None, "a node may compute samples from each other")


def _sample(model, number, size):
    rng = np.random.default_rng(number)
    feed = {}
    for value in model.graph.input:
        shape = [1, *(dim.dim_value or size for dim in value.type.tensor_type.shape.dim[1:])]
        is_float = value.type.tensor_type.elem_type == TensorProto.FLOAT
        feed[value.name] = rng.normal(size=shape).astype("f") if is_float else rng.integers(0, 50, shape)
    return feed


def _pair(model):
    return [_sample(model, number, 3) for number in range(2)]


@pytest.mark.parametrize("name", NETWORKS)
def test_what_becomes_of_two_samples(name):
    model, wanted = NETWORKS[name]
    loaded, samples = load_model(model), _pair(model)
    graph_model = prepare(loaded).graph_model
    # What the graph shows and what is tried may not contradict each other.
    for known in (None, UNKNOWN):
        assert joined_samples(graph_model, lambda: [samples], known).joining is wanted
    # Only rows of samples may be joined for several users.
    shapes = {
        spec.name: (4, *(size if isinstance(size, int) else 3 for size in spec.shape[1:]))
        for spec in loaded.inputs
    }
    assert takes_joined_samples(loaded.graph_model, loaded.inputs, shapes) is (wanted is Joining.ROWS)


@pytest.mark.parametrize(("tail", "joins"), [("y = MatMul (g, w)", True), ("y = CumSum (g, zero)", False)])
def test_networks_of_positive_values_are_tried_too(tail, joins):
    model = _plain(f'f = Log (x) g = Einsum <equation = "abc->abc"> (f) {tail}', {"zero": np.array(0)})
    loaded = load_model(model)
    assert takes_joined_samples(loaded.graph_model, loaded.inputs, {"x": (4, 8, 4)}) is joins


def test_the_first_output_that_changes_is_named():
    model = _plain(
        "y = MatMul (x, w) m = ReduceMean <axes = [0]> (x) z = Sub (x, m)",
        outputs="float[n,8,4] y, float[n,8,4] z",
    )
    found = joined_samples(load_model(model).graph_model, lambda: [_pair(model)])
    assert found.joining is Joining.CHANGED and "'z'" in found.reason


@pytest.mark.parametrize(
    "body",
    [
        "m = ReduceMean <axes = [0]> (x) d = Sub (x, m) e = Sqrt (x) y = Add (e, d)",  # NaN
        "y = Reshape (x, shape)",
        "r = RandomNormalLike (x) y = Add (x, r)",
    ],
)
@pytest.mark.filterwarnings("ignore:.*draws random numbers")
def test_what_shows_nothing(body):
    model = _plain(body, {"shape": np.array([1, 7])})
    assert joined_samples(load_model(model).graph_model, lambda: [_pair(model)], UNKNOWN) == UNKNOWN


def test_the_samples_with_the_largest_values_are_chosen():
    x = np.zeros((6, 2), np.float32)
    x[3], x[5] = 4, -3
    first, second = two_samples([{"x": x[:4]}, {"x": x[4:]}])
    assert first["x"].tolist() == [[4, 4]] and second["x"].tolist() == [[-3, -3]]


ONE, FOUR = np.ones((1, 2), np.float32), np.ones((4, 2), np.float32)


@pytest.mark.parametrize(
    "feeds",
    [
        [],
        [{"x": ONE}],
        [{"x": ONE}, {"x": np.ones((1, 3), np.float32)}],
        [OneSample(x=FOUR)],
        [{"x": FOUR, "h": np.ones((1, 4), np.float32)}],
    ],
)
def test_where_there_are_no_two_samples(feeds):
    assert two_samples(feeds) is None


def test_a_model_that_takes_one_sample():
    for name, taken in (("reshaped to one sample", True), ("a row for each", False)):
        model = load_model(NETWORKS[name][0])
        data = open_batches(np.ones((4, 8, 4), np.float32), model.inputs, batch_size=2)
        assert takes_one_sample(model, data) is taken


def test_what_cannot_be_run_is_not_known():
    model = _plain("y = MatMul (x, w)", {})
    model.graph.node[0].op_type, model.graph.node[0].domain = "Plugin", "trt.plugins"
    model.opset_import.append(helper.make_opsetid("trt.plugins", 1))
    loaded = load_model(model)
    assert takes_joined_samples(loaded.graph_model, loaded.inputs, {"x": (2, 8, 4)}) is None


def test_inputs_without_an_open_first_axis_are_not_joined():
    model = _plain("y = MatMul (x, w)", inputs="float[2,8,4] x", outputs="float[2,8,4] y")
    loaded = load_model(model)
    assert takes_joined_samples(loaded.graph_model, loaded.inputs, {}) is False
    scalar = (InputSpec("rate", np.dtype(np.float32), ()),)
    assert takes_joined_samples(loaded.graph_model, scalar, {}) is False


def test_nothing_is_tried_where_the_graph_shows_it_and_what_was_tried_is_no_proof():
    """A batch is run in pieces only where the graph shows that it may be."""
    model = prepare(load_model(NETWORKS["a row for each"][0]))
    found = joined_samples(model.graph_model, lambda: pytest.fail("tried"))
    assert found.has_rows and found.separate
    model, _ = NETWORKS["the batch first"]
    found = joined_samples(load_model(model).graph_model, lambda: [_pair(model)])
    assert found.joining is Joining.ROWS and not found.separate and not found.has_rows
    model = load_model(NETWORKS["normalized by the batch"][0])
    found = joined_samples(model.graph_model, list)
    assert found.joining is None and "ReduceMean" in found.reason


def test_the_first_pair_that_shows_something_decides():
    model = load_model(_plain("a = MatMul (x, w) b = Sqrt (a) y = CumSum (b, zero)", {"zero": np.array(0)}))
    pairs = [({"x": np.full((1, 8, 4), sign, np.float32)},) * 2 for sign in (np.nan, 0)]
    assert joined_samples(model.graph_model, lambda: pairs[:1]).joining is None
    assert joined_samples(model.graph_model, lambda: pairs).joining is not None
