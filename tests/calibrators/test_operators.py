"""The table of operators: rows that agree with ONNX, and the safe side for operators without one."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from calibrators.operators import OPERATORS, Axes, Operator, Values, operator_named, operator_of

ONNX = {name: row for (domain, name), row in OPERATORS.items() if not domain}


OPSET = 21


def computed(operator, *inputs, **attributes):
    """What ONNX Runtime makes of some inputs."""
    if not onnx.defs.has(operator, OPSET, ""):
        pytest.skip(f"opset {OPSET} has no {operator}")
    names = [f"x{index}" for index in range(len(inputs))]
    count = attributes.get("num_outputs", 1)
    node = helper.make_node(operator, names, [f"y{index}" for index in range(count)], **attributes)
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in zip(names, inputs, strict=True)
    ]
    graph = helper.make_graph([node], "one", values, [helper.make_empty_tensor_value_info("y0")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, dict(zip(names, inputs, strict=True)))[0]


#: What nodes read beside their data, and their attributes, where they need some.
OTHERS = {
    "Compress": ([np.array([True, False])], {"axis": 0}),
    "Concat": ([], {"axis": 0}),
    "DepthToSpace": ([], {"blocksize": 2}),
    "Expand": ([np.array([2, 4, 4, 4, 6])], {}),
    "Gather": ([np.array([1, 1])], {}),
    "GatherElements": ([np.zeros((1, 4, 4, 6), np.int64)], {}),
    "GatherND": ([np.array([[1], [0]])], {}),
    "MaxPool": ([], {"kernel_shape": [2, 2]}),
    "AveragePool": ([], {"kernel_shape": [2, 2]}),
    "LpPool": ([], {"kernel_shape": [2, 2]}),
    "Reshape": ([np.array([2, -1])], {}),
    "ReverseSequence": ([np.array([3, 1, 2, 4])], {"time_axis": 0, "batch_axis": 1}),
    "Slice": ([np.array([0]), np.array([1]), np.array([2])], {}),
    "SpaceToDepth": ([], {"blocksize": 2}),
    "Split": ([], {"num_outputs": 2}),
    "Squeeze": ([np.array([], np.int64)], {}),
    "Tile": ([np.array([1, 2, 1, 1])], {}),
    "Trilu": ([], {}),
    "Unsqueeze": ([np.array([0])], {}),
}
SAMPLES = np.random.default_rng(0).standard_normal((4, 4, 4, 6)).astype(np.float32)


@pytest.mark.parametrize(
    "operator",
    [
        name
        for name, row in ONNX.items()
        if row.selects and row.data == (0,) and name not in ("TopK", "Unique", "Dropout")
    ],
)
def test_operators_that_select_give_values_of_their_data(operator):
    others, attributes = OTHERS.get(operator, ([], {}))
    given = computed(operator, SAMPLES, *others, **attributes)
    if ONNX[operator].rearranges:
        assert np.array_equal(np.sort(given, axis=None), np.sort(SAMPLES, axis=None))
    if ONNX[operator].keeps_order:
        assert np.array_equal(given.ravel(), SAMPLES.ravel())
    assert np.isin(given, SAMPLES).all()


@pytest.mark.parametrize(
    ("operator", "inputs", "attributes"),
    [
        ("Clip", [SAMPLES, np.float32(-0.5), np.float32(0.25)], {}),
        ("Concat", [SAMPLES, 2 * SAMPLES], {"axis": 1}),
        ("Max", [SAMPLES, -SAMPLES], {}),
        ("Min", [SAMPLES, -SAMPLES], {}),
        ("Pad", [SAMPLES, np.array([0, 0, 1, 1] * 2), np.float32(7)], {}),
        ("Where", [SAMPLES > 0, SAMPLES, np.float32(7)], {}),
    ],
)
def test_several_inputs_of_which_values_are_selected(operator, inputs, attributes):
    row = ONNX[operator]
    assert row.selects and len(row.data_among(len(inputs))) > 1
    given = computed(operator, *map(np.asarray, inputs), **attributes)
    data = [inputs[index] for index in row.data_among(len(inputs))]
    assert np.isin(given, np.concatenate([np.ravel(one) for one in data])).all()
    assert not any(np.isin(given, np.ravel(one)).all() for one in data)


def schemas(axes):
    """The rows of operators that work along some axes, with the schemas of ONNX."""
    known = {schema.name: schema for schema in onnx.defs.get_all_schemas() if not schema.domain}
    return {name: (row, known[name]) for name, row in ONNX.items() if row.axes is axes and name in known}


def test_axes_are_where_onnx_has_them():
    along_one, along_several = schemas(Axes.ONE), schemas(Axes.SEVERAL)
    assert len(along_one) > 8 and len(along_several) > 8
    for name, (row, schema) in along_one.items():
        default = schema.attributes["axis"].default_value
        assert (default.i if default.name else 0) == row.axis, name
    for name, (row, schema) in along_several.items():
        assert [one.name for one in schema.inputs].index("axes") == row.axes_input, name


@pytest.mark.parametrize("operator", [name for name, row in ONNX.items() if row.homogeneous])
def test_homogeneous_operators_pass_a_factor_on(operator):
    others, attributes = OTHERS.get(operator, ([], {}))
    if operator == "PRelu":
        others = [np.full(6, 0.25, np.float32)]
    if operator == "GridSample":
        others = [np.random.default_rng(1).uniform(-1.2, 1.2, (4, 3, 3, 2)).astype(np.float32)]
    once, twice = (computed(operator, s * SAMPLES, *others, **attributes) for s in (1, np.float32(3)))
    np.testing.assert_allclose(twice, 3 * once, rtol=1e-5, atol=1e-6)


def is_bounded(row):
    return row.axes is Axes.ELEMENTWISE and (row.bound is not None or row.ends != (-np.inf, np.inf))


@pytest.mark.parametrize("operator", [name for name, row in ONNX.items() if is_bounded(row)])
def test_results_lie_between_the_ends_and_within_the_bound(operator):
    row = ONNX[operator]
    x = np.linspace(-0.999, 0.999, 41, dtype=np.float32) * (
        1 if operator in ("Acos", "Asin", "Atanh") else 30
    )
    with np.errstate(all="ignore"):
        given = computed(operator, x)
    kept = np.isfinite(given)
    low, high = row.ends
    assert (given[kept] >= np.float32(low)).all()
    assert (given[kept] <= np.float32(high)).all()
    if row.bound is not None:
        assert (np.abs(given) <= row.bound.factor * np.abs(x) + row.bound.added + 1e-6)[kept].all()


def test_an_operator_without_a_row_has_the_safe_side():
    unknown = operator_named("Unheard")
    assert operator_named("Conv", "mine") == unknown and unknown.loses_in_fp16
    assert unknown.values is Values.COMPUTED
    assert unknown.ends == (-np.inf, np.inf)
    assert not (unknown.multiplies or unknown.is_weighted or unknown.selects or unknown.homogeneous)
    assert unknown.axes is unknown.bound is None


def test_nodes_are_asked_for_by_their_domain():
    assert operator_of(helper.make_node("MatMulInteger", ["a", "b"], ["c"])).integer_weights == (1, 3)
    attention = helper.make_node("QAttention", ["a"], ["b"], domain="com.microsoft")
    assert operator_of(attention).integer_weights == (1, 7)
    assert operator_of(helper.make_node("QAttention", ["a"], ["b"])) == operator_named("Unheard")


def test_what_quantization_speeds_up():
    assert [name for name, row in ONNX.items() if row.is_weighted] == [
        "Conv",
        "ConvTranspose",
        "Gemm",
        "MatMul",
    ]
    assert [name for name, row in ONNX.items() if row.is_convolution] == ["Conv", "ConvTranspose"]


@pytest.mark.parametrize(
    ("data", "inputs", "found"), [(None, 3, (0, 1, 2)), ((0, 2), 2, (0,)), ((0,), 1, (0,))]
)
def test_the_inputs_that_hold_data(data, inputs, found):
    assert Operator(data=data).data_among(inputs) == found
