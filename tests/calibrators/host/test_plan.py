"""Models that are run part by part."""

import numpy as np
import onnx
import pytest

from calibrators.data.opening import open_batches
from calibrators.host import cuda_session, observer
from calibrators.host.observer import Observer
from calibrators.host.plan import divided, plan_observation
from calibrators.host.weights import LightModel
from tests.calibrators.histograms.kernels import whole
from tests.calibrators.networks import network
from tests.calibrators.specs import floats, normal


def _model():
    return network(
        """(float[n,3] x) => (float y) {
            moved = Transpose <perm = [1, 0]> (x)
            product = MatMul(w, moved)
            flat = Reshape(product, shape)
            again = Identity(flat)
            y = Relu(again)
            constant = Flatten(w)
        }""",
        w=np.arange(12, dtype=np.float32).reshape(4, 3) - 5,
        shape=np.array([-1]),
    )


def observed(model, inputs, names, data, **options):
    batches = open_batches(data, inputs, **options)
    return Observer(model, inputs, names).observe(batches)


TENSORS = ("again", "x", "moved", "flat", "constant", "y")
ROWS = (floats("x", "n", 3),)


@pytest.mark.parametrize("form", ["light", "bytes", "path"])
def test_what_only_rearranges_is_observed_once(form, tmp_path):
    content = _model().SerializeToString()
    (tmp_path / "m.onnx").write_bytes(content)
    given = {"light": LightModel.parse(content), "bytes": content, "path": tmp_path / "m.onnx"}[form]
    plan = plan_observation(given, ["x"], TENSORS)
    (only,) = plan.parts
    assert (plan.fed, only.computed) == (("x",), ("product", "constant", "y"))
    assert plan.observed == ("x", "product", "constant", "y")
    itself = {name: name for name in ("x", "constant", "y")}
    assert plan.sources == {**itself, "again": "product", "moved": "x", "flat": "product"}
    outputs = [output.name for output in onnx.ModelProto.FromString(only.model).graph.output]
    assert outputs == ["y", "product", "constant"]


def test_every_tensor_gets_a_histogram_of_its_own_in_the_order_that_was_asked():
    data = normal(1, 5, 3)
    seen = observed(_model().SerializeToString(), ROWS, TENSORS, data)
    assert seen.histograms["x"] == seen.histograms["moved"] == whole(data)
    assert seen.histograms["x"] is not seen.histograms["moved"]
    assert seen.histograms["flat"] == seen.histograms["again"]
    assert seen.histograms["flat"].total == 20
    assert tuple(seen.histograms) == TENSORS


@pytest.mark.parametrize(
    ("tensors", "computed", "rectified"),
    [
        (("product", "y"), ("product",), {"y": "product"}),
        (("flat", "y"), ("product",), {"y": "product"}),
        (("x", "y"), ("y",), {}),
        (("y",), ("y",), {}),
    ],
)
def test_a_relu_is_observed_by_its_input_where_that_is_observed_too(tensors, computed, rectified):
    plan = plan_observation(_model().SerializeToString(), ["x"], tensors, rectify=True)
    assert (plan.parts[0].computed, plan.rectified) == (computed, rectified)
    assert plan.observed == (*plan.fed, *computed, *rectified)
    assert plan.sources["y"] == "y"


def _relus(types=""):
    """Two of one input, one of the output of another, and one of the model's input."""
    return network(
        f"""(float[n,3] x) => (float y) {types} {{
            a = Relu(x)
            half = Sub(a, x)
            middle = Sub(half, one)
            b = Relu(middle)
            c = Relu(middle)
            d = Relu(b)
            e = Relu(x)
            y = Sum(b, c, d, e)
        }}""",
        one=np.float32([0.5]),
    )


def test_only_what_is_counted_itself_shows_a_relu():
    names = ("x", "a", "half", "middle", "b", "c", "d", "e", "y")
    model = _relus().SerializeToString()
    plan = plan_observation(model, ["x"], names, rectify=True)
    assert plan.rectified == {"a": "x", "b": "middle"}
    assert plan.parts[0].computed == ("half", "middle", "c", "d", "e", "y")
    data = normal(3, 50, 3)
    seen = observed(model, ROWS, names, data)
    positive, middle = np.maximum(data, 0), np.maximum(data, 0) - data - np.float32(0.5)
    assert seen.histograms["a"] == seen.histograms["e"] == whole(positive)
    assert seen.histograms["middle"] == whole(middle)
    for name in "bcd":
        assert seen.histograms[name] == whole(np.maximum(middle, 0))


def test_of_a_divided_model_every_relu_is_observed_itself():
    types = ", ".join(f"float[n,3] {name}" for name in ("a", "half", "middle", "b", "c", "d", "e"))
    names = ("x", "a", "middle", "b", "y")
    model = _relus(f"<{types}>").SerializeToString()
    plan = plan_observation(model, ["x"], names, bytes_per_part=1, rectify=True)
    assert len(plan.parts) > 1 and plan.rectified == {}
    assert plan.observed == names


def rearranged(node, **constants):
    """The model of one node that rearranges an input of (2, 4, 2, 2), and the network's output."""
    return network(f"(float[n,4,2,2] x) => (float y) {{ moved = {node} y = Relu(moved) }}", **constants)


@pytest.mark.parametrize(
    ("model", "once"),
    [
        (rearranged("DepthToSpace <blocksize = 2> (x)"), True),
        (rearranged("ReverseSequence <batch_axis = 0, time_axis = 1> (x, c)", c=[2, 4]), True),
        (rearranged("Dropout(x)"), True),
        (rearranged("mine.Identity(x)"), False),  # of another domain
        (rearranged("Cast <to = 10> (x)"), False),
        (rearranged("Tile(x, c)", c=[1, 1, 2, 1]), False),
        (rearranged("MaxPool <kernel_shape = [2, 2]> (x)"), False),
    ],
)
def test_only_what_has_the_same_values_as_often_is_observed_by_its_source(model, once):
    plan = plan_observation(model.SerializeToString(), ["x"], ("moved",))
    assert plan.sources == {"moved": "x" if once else "moved"}


def _branching(crossing=("c", "a", "b", "d")):
    """Two chains after a Conv, the second of which goes on inside an If."""
    types = ", ".join(f"float[n,4,8,8] {name}" for name in crossing)
    return network(
        f"""(float[n,3,8,8] x) => (float[n,4,8,8] y) <{types}> {{
            c = Conv(x, w)
            a = Relu(c)
            b = Sigmoid(c)
            d = If(condition) <
                then_branch = inside () => (float sum) {{ sum = Add(b, offset) }},
                else_branch = outside () => (float same) {{ same = Identity(b) }}
            >
            y = Add(a, d)
        }}""",
        w=normal(3, 4, 3, 1, 1),
        offset=np.float32(0.25),
        condition=np.array(True),
    )


NAMES = ("x", "c", "a", "b", "d", "y")
IMAGES = (floats("x", "n", 3, 8, 8),)


#: Bytes of one of these tensors per sample.
ONE = 4 * 4 * 8 * 8


def parts_of(most, model=None):
    light = LightModel.parse((model or _branching()).SerializeToString())
    return divided(light, {"x"}, NAMES[1:], most)


@pytest.mark.parametrize(
    ("most", "groups"),
    [
        (5 * ONE, [("c", "a", "b", "d", "y")]),
        (5 * ONE - 1, [("c", "a", "b", "d"), ("y",)]),
        (2 * ONE, [("c", "a"), ("b", "d"), ("y",)]),
        (1, [("c",), ("a",), ("b",), ("d",), ("y",)]),
    ],
)
def test_what_does_not_fit_together_is_observed_part_by_part(most, groups):
    assert [part.computed for part in parts_of(most)] == groups


def test_a_part_has_its_own_nodes_and_reads_what_crosses():
    found = []
    for part in parts_of(1):
        graph = onnx.ModelProto.FromString(part.model).graph
        (node,) = graph.node
        found.append((node.op_type, [tensor.name for tensor in graph.initializer], part.reads))
    assert found == [
        ("Conv", ["w"], ("x",)),
        ("Relu", [], ("c",)),
        ("Sigmoid", [], ("c",)),
        ("If", ["offset", "condition"], ("b",)),
        ("Add", [], ("a", "d")),
    ]


def test_what_later_parts_read_is_carried():
    light = LightModel.parse(_branching().SerializeToString())
    first, second = divided(light, {"x"}, ("c", "y"), ONE)
    assert (first.computed, first.carried) == (("c",), ("a", "d"))
    assert (second.reads, second.computed, second.carried) == (("a", "d"), ("y",), ())


def test_tensors_of_unknown_type_are_not_cut():
    # `a` crosses every place after the Relu, and is read by the last node.
    parts = parts_of(1, _branching(("c", "b", "d")))
    assert [part.computed for part in parts] == [("c",), ("a", "b", "d", "y")]


@pytest.mark.parametrize("form", ["light", "path"])
@pytest.mark.parametrize("most", [1, 2 * ONE])
def test_parts_find_what_the_whole_finds(form, most, tmp_path, monkeypatch):
    content = _branching().SerializeToString()
    (tmp_path / "m.onnx").write_bytes(content)
    data = normal(5, 7, 3, 8, 8)

    def seen():
        given = tmp_path / "m.onnx" if form == "path" else LightModel.parse(content)
        return observed(given, IMAGES, NAMES, data, batch_size=3)

    expected = seen()
    monkeypatch.setattr(observer, "BYTES_PER_PART", most)
    parts = seen()
    assert tuple(parts.histograms) == NAMES
    assert parts.histograms == expected.histograms
    assert parts.data_fingerprint == expected.data_fingerprint


def test_parts_keep_the_layout_of_activations(monkeypatch):
    """Else each convolution that is a part of its own copies what enters and leaves it."""
    opened = []
    monkeypatch.setattr(cuda_session, "open_session", lambda model, **options: opened.append(options))
    for most in (observer.BYTES_PER_PART, 1):
        monkeypatch.setattr(observer, "BYTES_PER_PART", most)
        Observer(LightModel.parse(_branching().SerializeToString()), IMAGES, NAMES).open().result()
    assert [options["keep_layout"] for options in opened] == [False] + [True] * (len(opened) - 1)
    assert len(opened) > 2


def test_what_crosses_keeps_its_type(monkeypatch):
    """A shape and a double are computed in one part and read in another."""
    types = "double[n,8] exact, int64[2] sizes, float[n,8] a, float[n,8] b, float[n,8] rounded, float[n,8] c"
    model = network(
        f"""(float[n,8] x) => (float[n,8] y) <{types}> {{
            a = Relu(x)
            sizes = Shape(a)
            exact = Cast <to = 11> (a)
            b = Sigmoid(a)
            rounded = Cast <to = 1> (exact)
            c = Add(b, rounded)
            y = Reshape(c, sizes)
        }}"""
    )
    inputs = (floats("x", "n", 8),)
    data = normal(5, 7, 8)

    def seen():
        light = LightModel.parse(model.SerializeToString())
        return observed(light, inputs, ("a", "b", "rounded", "c"), data, batch_size=3).histograms

    expected = seen()
    monkeypatch.setattr(observer, "BYTES_PER_PART", 1)
    assert seen() == expected
