"""Models that are run part by part."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from calibrators.data.inputs import InputSpec
from calibrators.data.opening import open_batches
from calibrators.histograms.histogram import Histogram
from calibrators.host import cuda_session, observer
from calibrators.host.observer import Observer
from calibrators.host.plan import divided, plan_observation
from calibrators.host.weights import LightModel
from tests.calibrators.histograms.kernels import whole


def _model():
    nodes = [
        helper.make_node("Transpose", ["x"], ["moved"], perm=[1, 0]),
        helper.make_node("MatMul", ["w", "moved"], ["product"]),
        helper.make_node("Reshape", ["product", "shape"], ["flat"]),
        helper.make_node("Identity", ["flat"], ["again"]),
        helper.make_node("Relu", ["again"], ["y"]),
        helper.make_node("Flatten", ["w"], ["constant"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [
            onnx.numpy_helper.from_array(np.arange(12, dtype=np.float32).reshape(4, 3) - 5, "w"),
            onnx.numpy_helper.from_array(np.array([-1]), "shape"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


TENSORS = ("again", "x", "moved", "flat", "constant", "y")


@pytest.mark.parametrize("form", ["light", "bytes", "path"])
def test_what_only_rearranges_is_observed_once(form, tmp_path):
    (tmp_path / "m.onnx").write_bytes(_model().SerializeToString())
    given = {
        "light": LightModel.parse(_model().SerializeToString()),
        "bytes": _model().SerializeToString(),
        "path": tmp_path / "m.onnx",
    }[form]
    plan = plan_observation(given, ["x"], TENSORS)
    assert plan.fed == ("x",)
    (only,) = plan.parts
    assert only.computed == ("product", "constant", "y")
    assert plan.observed == ("x", "product", "constant", "y")
    assert plan.sources == {
        "again": "product",
        "x": "x",
        "moved": "x",
        "flat": "product",
        "constant": "constant",
        "y": "y",
    }
    outputs = [output.name for output in onnx.ModelProto.FromString(only.model).graph.output]
    assert outputs == ["y", "product", "constant"]


def test_every_tensor_gets_a_histogram_of_its_own_in_the_order_that_was_asked():
    data = np.random.default_rng(1).standard_normal((5, 3)).astype(np.float32)
    inputs = (InputSpec("x", np.dtype(np.float32), ("n", 3)),)
    observer = Observer(_model().SerializeToString(), inputs, TENSORS)
    seen = observer.observe(open_batches(data, inputs), progress=False)
    expected = Histogram()
    expected.observe(data)
    assert seen.histograms["x"] == seen.histograms["moved"] == expected
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


def _relus():
    """Two of one input, one of the output of another, and one of the model's input."""
    pairs = {"a": "x", "b": "middle", "c": "middle", "d": "b", "e": "x"}
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Sub", ["a", "x"], ["half"]),
        helper.make_node("Sub", ["half", "one"], ["middle"]),
        *(helper.make_node("Relu", [pairs[name]], [name]) for name in "bcde"),
        helper.make_node("Sum", list("bcde"), ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(np.float32([0.5]), "one")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_only_what_is_counted_itself_shows_a_relu():
    names = ("x", "a", "half", "middle", "b", "c", "d", "e", "y")
    model = _relus().SerializeToString()
    plan = plan_observation(model, ["x"], names, rectify=True)
    assert plan.rectified == {"a": "x", "b": "middle"}
    assert plan.parts[0].computed == ("half", "middle", "c", "d", "e", "y")
    data = np.random.default_rng(3).standard_normal((50, 3)).astype(np.float32)
    inputs = (InputSpec("x", np.dtype(np.float32), ("n", 3)),)
    seen = Observer(model, inputs, names).observe(open_batches(data, inputs), progress=False)
    positive, middle = np.maximum(data, 0), np.maximum(data, 0) - data - np.float32(0.5)
    assert seen.histograms["a"] == seen.histograms["e"] == whole(positive)
    assert seen.histograms["middle"] == whole(middle)
    for name in "bcd":
        assert seen.histograms[name] == whole(np.maximum(middle, 0))


def test_of_a_divided_model_every_relu_is_observed_itself():
    model = _relus()
    model.graph.value_info.extend(
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3])
        for name in ("a", "half", "middle", "b", "c", "d", "e")
    )
    names = ("x", "a", "middle", "b", "y")
    plan = plan_observation(model.SerializeToString(), ["x"], names, bytes_per_part=1, rectify=True)
    assert len(plan.parts) > 1 and plan.rectified == {}
    assert plan.observed == names


def rearranged(operator, *others, **attributes):
    """The model of one node that rearranges an input of (2, 4, 2, 2), and the network's output."""
    constants = [onnx.numpy_helper.from_array(np.array(one), f"c{index}") for index, one in enumerate(others)]
    graph = helper.make_graph(
        [
            helper.make_node(operator, ["x", *(one.name for one in constants)], ["moved"], **attributes),
            helper.make_node("Relu", ["moved"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4, 2, 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    ("model", "once"),
    [
        (rearranged("DepthToSpace", blocksize=2), True),
        (rearranged("ReverseSequence", [2, 4], batch_axis=0, time_axis=1), True),
        (rearranged("Dropout"), True),
        (rearranged("Cast", to=TensorProto.FLOAT16), False),
        (rearranged("Tile", [1, 1, 2, 1]), False),
        (rearranged("MaxPool", kernel_shape=[2, 2]), False),
    ],
)
def test_only_what_has_the_same_values_as_often_is_observed_by_its_source(model, once):
    plan = plan_observation(model.SerializeToString(), ["x"], ("moved",))
    assert plan.sources == {"moved": "x" if once else "moved"}


def test_moved_names_of_other_domains_are_observed_themselves():
    model = rearranged("Identity")
    model.graph.node[0].domain = "mine"
    assert plan_observation(model.SerializeToString(), ["x"], ("moved",)).sources == {"moved": "moved"}


def _branching():
    """Two chains after a Conv, the second of which goes on inside an If."""
    inside = helper.make_graph(
        [helper.make_node("Add", ["b", "offset"], ["sum"])],
        "inside",
        [],
        [helper.make_tensor_value_info("sum", TensorProto.FLOAT, None)],
    )
    outside = helper.make_graph(
        [helper.make_node("Identity", ["b"], ["same"])],
        "outside",
        [],
        [helper.make_tensor_value_info("same", TensorProto.FLOAT, None)],
    )
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Relu", ["c"], ["a"]),
        helper.make_node("Sigmoid", ["c"], ["b"]),
        helper.make_node("If", ["condition"], ["d"], then_branch=inside, else_branch=outside),
        helper.make_node("Add", ["a", "d"], ["y"]),
    ]
    random = np.random.default_rng(3)
    weights = random.standard_normal((4, 3, 1, 1)).astype(np.float32)
    shapes = {name: ["n", 4, 8, 8] for name in ("c", "a", "b", "d", "y")}
    infos = {n: helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in shapes.items()}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 8, 8])],
        [infos.pop("y")],
        [
            onnx.numpy_helper.from_array(weights, "w"),
            onnx.numpy_helper.from_array(np.float32(0.25), "offset"),
            onnx.numpy_helper.from_array(np.array(True), "condition"),
        ],
        value_info=list(infos.values()),
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


NAMES = ("x", "c", "a", "b", "d", "y")

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
    parts = parts_of(1)
    graphs = [onnx.ModelProto.FromString(part.model).graph for part in parts]
    assert [[node.op_type for node in graph.node] for graph in graphs] == [
        ["Conv"],
        ["Relu"],
        ["Sigmoid"],
        ["If"],
        ["Add"],
    ]
    assert [[tensor.name for tensor in graph.initializer] for graph in graphs] == [
        ["w"],
        [],
        [],
        ["offset", "condition"],
        [],
    ]
    assert [part.reads for part in parts] == [("x",), ("c",), ("c",), ("b",), ("a", "d")]


def test_what_later_parts_read_is_carried():
    light = LightModel.parse(_branching().SerializeToString())
    first, second = divided(light, {"x"}, ("c", "y"), ONE)
    assert (first.computed, first.carried) == (("c",), ("a", "d"))
    assert (second.reads, second.computed, second.carried) == (("a", "d"), ("y",), ())


def test_tensors_of_unknown_type_are_not_cut():
    model = _branching()
    kept = [info for info in model.graph.value_info if info.name != "a"]
    del model.graph.value_info[:]
    model.graph.value_info.extend(kept)
    # `a` crosses every place after the Relu, and is read by the last node.
    assert [part.computed for part in parts_of(1, model)] == [("c",), ("a", "b", "d", "y")]


@pytest.mark.parametrize("form", ["light", "path"])
@pytest.mark.parametrize("most", [1, 2 * ONE])
def test_parts_find_what_the_whole_finds(form, most, tmp_path, monkeypatch):
    model = _branching()
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    inputs = (InputSpec("x", np.dtype(np.float32), ("n", 3, 8, 8)),)
    data = np.random.default_rng(5).standard_normal((7, 3, 8, 8)).astype(np.float32)

    def seen():
        given = tmp_path / "m.onnx" if form == "path" else LightModel.parse(model.SerializeToString())
        return Observer(given, inputs, NAMES).observe(
            open_batches(data, inputs, batch_size=3), progress=False
        )

    whole = seen()
    monkeypatch.setattr(observer, "BYTES_PER_PART", most)
    parts = seen()
    assert tuple(parts.histograms) == NAMES
    assert parts.histograms == whole.histograms
    assert parts.data_fingerprint == whole.data_fingerprint


def test_parts_keep_the_layout_of_activations(monkeypatch):
    """Else each convolution that is a part of its own copies what enters and leaves it."""
    inputs = (InputSpec("x", np.dtype(np.float32), ("n", 3, 8, 8)),)
    opened = []
    monkeypatch.setattr(cuda_session, "open_session", lambda model, **options: opened.append(options))
    for most in (observer.BYTES_PER_PART, 1):
        monkeypatch.setattr(observer, "BYTES_PER_PART", most)
        Observer(LightModel.parse(_branching().SerializeToString()), inputs, NAMES).open().result()
    assert [options["keep_layout"] for options in opened] == [False] + [True] * (len(opened) - 1)
    assert len(opened) > 2


def test_what_crosses_keeps_its_type(monkeypatch):
    """A shape and a double are computed in one part and read in another."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Shape", ["a"], ["sizes"]),
        helper.make_node("Cast", ["a"], ["exact"], to=TensorProto.DOUBLE),
        helper.make_node("Sigmoid", ["a"], ["b"]),
        helper.make_node("Cast", ["exact"], ["rounded"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["b", "rounded"], ["c"]),
        helper.make_node("Reshape", ["c", "sizes"], ["y"]),
    ]
    types = {"exact": TensorProto.DOUBLE, "sizes": TensorProto.INT64}
    shapes = {"sizes": [2], **{name: ["n", 8] for name in ("a", "exact", "b", "rounded", "c", "y")}}
    infos = {
        name: helper.make_tensor_value_info(name, types.get(name, TensorProto.FLOAT), shape)
        for name, shape in shapes.items()
    }
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])
    graph = helper.make_graph(nodes, "g", [x], [infos.pop("y")], value_info=list(infos.values()))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    inputs = (InputSpec("x", np.dtype(np.float32), ("n", 8)),)
    data = np.random.default_rng(5).standard_normal((7, 8)).astype(np.float32)

    def seen():
        light = LightModel.parse(model.SerializeToString())
        names = ("a", "b", "rounded", "c")
        return Observer(light, inputs, names).observe(
            open_batches(data, inputs, batch_size=3), progress=False
        )

    whole = seen()
    monkeypatch.setattr(observer, "BYTES_PER_PART", 1)
    assert seen().histograms == whole.histograms
