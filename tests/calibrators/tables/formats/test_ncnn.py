"""Tables and networks of ncnn: golden files written by hand from their specifications."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators.errors import TableError
from calibrators.tables.formats import ncnn
from tests.calibrators.tables.formats.golden_files import golden


# ncnn.
def test_ncnn():
    table = ncnn.parse(golden("ncnn.table"), "golden")
    assert table.activations == {"conv1": pytest.approx(2.5), "pool": 0.0, "fc": 1.0}
    assert table.weights == {"conv1_param_0": (1.0, 2.0, 0.0), "fc_param_0": (0.5,)}


def test_ncnn_scales_of_zeros_are_infinite():
    """ncnn2table divides 127 by the largest magnitude, which is 0 in a channel of zeros."""
    table = ncnn.parse(b"conv1_param_0 127 inf 254\nconv1 63.5\nconv2 inf\n", "it")
    assert table.weights == {"conv1_param_0": (1.0, 0.0, 0.5)}
    assert table.activations == {"conv1": 2.0, "conv2": 0.0}


def test_ncnn_layers_become_tensors_by_the_param_file():
    inputs = ncnn.layer_inputs(golden("ncnn.param"), "golden")
    assert inputs == {"conv1": "data", "pool": "conv1_out", "fc": "pooled", "add": "logits"}
    tensors = ncnn.parse(golden("ncnn.table"), "golden").tensors(inputs)
    assert tensors == {"data": pytest.approx(2.5), "conv1_out": 0.0, "pooled": 1.0}


def test_ncnn_layers_that_read_one_tensor_take_the_widest():
    table = ncnn.NcnnTable({"a": 1.0, "b": 3.0, "c": 2.0}, {})
    assert table.tensors({"a": "x", "b": "x", "c": "x"}) == {"x": 3.0}
    with pytest.raises(TableError, match="the table has a layer 'c' that the network lacks"):
        table.tensors({"a": "x", "b": "x"})


def test_ncnn_winograd_weights_are_recognised():
    weights = np.zeros((2, 3, 3, 3), np.float32)
    weights[0, 0, 0, 0], weights[1, 1, 1, 1] = -0.5, 0.25
    # 31 / amax was written; read as 127 / amax it looks 127 / 31 times as wide.
    assert ncnn.is_winograd([0.5 * 127 / 31, 0.25 * 127 / 31], weights)
    assert not ncnn.is_winograd([0.5, 0.25], weights)
    assert not ncnn.is_winograd([0.52, 0.24], weights)
    assert not ncnn.is_winograd([0.5], weights)
    assert not ncnn.is_winograd([1.0, 1.0], np.zeros_like(weights))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("conv1\n", "line 1: layer 'conv1' has no scales"),
        ("a 1\nconv1 fast\n", "line 2: 'fast' is not a number"),
        ("conv1 -1\n", "line 1: a scale of 'conv1' is -1.0"),
        ("conv1 nan\n", "line 1: a scale of 'conv1' is nan"),
        ("conv1_param_0 1 nan\n", "line 1: a scale of 'conv1_param_0' is nan"),
        ("conv1 1 2\n", "line 1: layer 'conv1' has 2 scales instead of one"),
        ("conv1 1\nconv1 2\n", "line 2: tensor 'conv1' stands twice"),
        ("c_param_0 1\nc_param_0 2\n", "line 2: 'c_param_0' stands twice"),
    ],
)
def test_ncnn_bad_lines(text, message):
    with pytest.raises(TableError, match=message):
        ncnn.parse(text.encode(), "it")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a ncnn .param file: its first line must be 7767517"),
        ("7767517\n1 1\nInput data\n", "line 3 is not 'type name inputs outputs"),
        ("7767517\n1 1\nConv c one 1 a b\n", "line 3 is not 'type name inputs outputs"),
    ],
)
def test_ncnn_bad_param_files(text, message):
    with pytest.raises(TableError, match=message):
        ncnn.layer_inputs(text.encode(), "it")


positive = st.floats(2**-20, 2**20, width=32)


@given(
    st.dictionaries(st.from_regex(r"[a-z]\w{0,9}", fullmatch=True), positive, max_size=5),
    st.dictionaries(
        st.from_regex(r"[a-z]{1,9}_param_\d", fullmatch=True), st.lists(positive, min_size=1, max_size=4)
    ),
)
def test_ncnn_round_trip(activations, weights):
    activations = {name: amax for name, amax in activations.items() if "_param_" not in name}
    table = ncnn.NcnnTable(activations, {name: tuple(amax) for name, amax in weights.items()})
    back = ncnn.parse(ncnn.render(table), "it")
    assert back.activations == pytest.approx(table.activations, rel=1e-7)
    assert back.weights.keys() == table.weights.keys()
    for name, amax in table.weights.items():
        assert back.weights[name] == pytest.approx(amax, rel=1e-7)
