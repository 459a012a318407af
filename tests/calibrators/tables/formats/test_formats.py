"""Tables of other tools: golden files written by hand from their specifications, and round trips."""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators.errors import TableError
from calibrators.tables.formats import ncnn, onnxruntime, plain, ppq
from calibrators.tables.formats.registry import FORMATS
from calibrators.tables.formats.tensorrt_cache import parse as parse_cache
from calibrators.tables.formats.tensorrt_cache import render as render_cache
from calibrators.tables.table import CalibrationTable

GOLDEN = Path(__file__).parent / "golden"
ONE_ENDED = pytest.mark.filterwarnings("ignore:.*has one number per tensor:UserWarning")


def golden(name):
    return (GOLDEN / name).read_bytes()


# TensorRT's calibration cache.


def test_tensorrt_cache_entropy_2():
    cache = parse_cache(golden("entropy2_8601.cache"), "golden", allow_zero=True)
    assert (cache.version, cache.algorithm) == ("8601", "EntropyCalibration2")
    # 3c010204 is 2^-7 * (1 + 0x010204 / 2^23), and 3d000000 is 2^-5.
    assert dict(cache.scales) == {
        "images": 2**-7 * (1 + 0x010204 / 2**23),
        "backbone::conv 1": 2**-5,
        "dead": 0.0,
        "logits": pytest.approx(0.001, rel=1e-7),
    }


def test_tensorrt_cache_legacy_with_six_digits_and_unpadded_hexadecimals():
    cache = parse_cache(golden("legacy_101600.cache"), "golden")
    assert (cache.version, cache.algorithm) == ("101600", "LegacyCalibration")
    assert cache.scales["small"] == 2**-149
    assert b"small: 00000001\n" in render_cache(cache)


def test_tensorrt_cache_zeros_are_refused_unless_asked():
    with pytest.raises(TableError, match=r"scales that are not positive numbers: 'dead' \(0\.0\)"):
        parse_cache(golden("entropy2_8601.cache"), "golden")


# ncnn.


def test_ncnn():
    table = ncnn.parse(golden("ncnn.table"), "golden")
    assert table.activations == {"conv1": pytest.approx(2.5), "pool": 0.0, "fc": 1.0}
    assert table.weights == {"conv1_param_0": (1.0, 2.0, 0.0), "fc_param_0": (0.5,)}


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
        ("conv1 inf\n", "line 1: a scale of 'conv1' is inf"),
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


# ONNX Runtime.


def test_onnxruntime_json_takes_the_wider_end():
    ranges = onnxruntime.JSON.parse(golden("onnxruntime.json"), "golden")
    assert ranges == {"a": 3.0, "b::c d": 1.5, "scalar": 0.5}


def test_onnxruntime_flatbuffers():
    with pytest.warns(UserWarning, match=r"has one number per tensor.*prefer the calibration\.json"):
        assert onnxruntime.FLATBUFFERS.parse(golden("onnxruntime.flatbuffers"), "golden") == {"ab": 1.5}


def test_onnxruntime_lines():
    with pytest.warns(UserWarning, match="has one number per tensor"):
        assert onnxruntime.parse_lines(golden("onnxruntime.cache"), "golden") == {"a": 2.0, "b::c d": 1.5}


@ONE_ENDED
def test_what_onnxruntime_itself_writes(tmp_path):
    calibrate = pytest.importorskip("onnxruntime.quantization.calibrate")
    from onnxruntime.quantization.quant_utils import write_calibration_table

    ends = {"a": (-3, 2), "b::c d": (0, 1.5)}
    ends = {name: tuple(np.array([end], np.float32) for end in both) for name, both in ends.items()}
    write_calibration_table(calibrate.TensorsData(calibrate.CalibrationMethod.MinMax, ends), str(tmp_path))
    assert CalibrationTable.load(tmp_path / "calibration.json").amax == {"a": 3.0, "b::c d": 1.5}
    # These two hold the larger end, 2, and not the larger magnitude, 3: nothing in them tells.
    assert CalibrationTable.load(tmp_path / "calibration.flatbuffers").amax == {"a": 2.0, "b::c d": 1.5}
    assert CalibrationTable.load(tmp_path / "calibration.cache").amax == {"a": 2.0, "b::c d": 1.5}


@ONE_ENDED
def test_what_we_write_onnxruntime_reads():
    from onnxruntime.quantization.CalTableFlatBuffers.TrtTable import TrtTable

    table = TrtTable.GetRootAs(onnxruntime.FLATBUFFERS.render({"b": 2.5, "a::1": 0.1}), 0)
    read = [(table.Dict(i).Key(), table.Dict(i).Value()) for i in range(table.DictLength())]
    assert read == [(b"a::1", b"0.1"), (b"b", b"2.5")]


@ONE_ENDED
@given(st.binary(max_size=120))
def test_onnxruntime_garbage_is_an_error_or_a_table(data):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ranges = onnxruntime.FLATBUFFERS.parse(data, "it")
    except TableError:
        return
    assert all(amax >= 0 for amax in ranges.values())


@ONE_ENDED
@pytest.mark.parametrize("cut", [0, 3, 10, 30, 60])
def test_onnxruntime_truncated(cut):
    with pytest.raises(TableError, match="'it' is not a FlatBuffers calibration table"):
        onnxruntime.FLATBUFFERS.parse(golden("onnxruntime.flatbuffers")[:cut], "it")


@pytest.mark.parametrize(
    "document",
    [
        {"CLS": "TensorsData"},
        {"CLS": "TensorsData", "data": {"a": {"lowest": 1}}},
        {"CLS": "TensorsData", "data": 3},
        {"CLS": "TensorsData", "data": {"a": {"lowest": {"data": []}, "highest": {"data": []}}}},
    ],
)
def test_onnxruntime_malformed_json(document):
    with pytest.raises(TableError, match="is not a calibration table of ONNX Runtime"):
        onnxruntime.JSON.parse(json.dumps(document).encode(), "it")


def test_onnxruntime_json_with_an_end_that_is_not_a_number():
    document = {"CLS": "TensorsData", "data": {"a": {"lowest": -1.0, "highest": float("nan")}}}
    with pytest.raises(TableError, match="the range of 'a' is nan"):
        onnxruntime.JSON.parse(json.dumps(document).encode(), "it")


# PPQ.


def test_ppq():
    assert ppq.PPQ.parse(golden("ppq.json"), "golden") == {"images": 2.64, "relu::out": 6.5}


@pytest.mark.parametrize("values", [{"a": "wide"}, {"a": None}, [1], None])
def test_ppq_malformed(values):
    with pytest.raises(TableError, match="is not a table of PPQ"):
        ppq.PPQ.parse(json.dumps({"act_quant_info": values}).encode(), "it")


# Text and CSV.


def test_text():
    with pytest.warns(UserWarning, match=r"ranges got wider.*'scope::relu' \(-1\.5, 6\)"):
        assert plain.TEXT.parse(golden("ranges.txt"), "golden") == {"images": 2.64, "scope::relu": 6.0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# only a comment\n\n", "holds no ranges; write one line 'tensor: range' per tensor"),
        ("a: 1\n\nwide\n", "line 3 is not 'tensor: range': 'wide'"),
        ("a: 1, 2, 3\n", "line 1 is not 'tensor: range'"),
        ("a: 1\na: 2\n", "line 2: tensor 'a' stands twice"),
        ("a: 1, nan\n", "line 1: the range of 'a' is nan"),
    ],
)
def test_text_malformed(text, message):
    with pytest.raises(TableError, match=message):
        plain.TEXT.parse(text.encode(), "it")


def test_csv():
    assert plain.CSV.parse(golden("ranges.csv"), "golden") == {"images": 2.64, "scope, relu": 6.5}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no column 'tensor'; its first line must be tensor,amax"),
        ("tensor,scale\na,1\n", "has no column 'amax'"),
        ("tensor,amax\na,wide\n", "line 2: 'wide' is not a number"),
        ("tensor,amax\na\n", "line 2: '' is not a number"),
        ("tensor,amax\na,1\na,2\n", "line 3: tensor 'a' stands twice"),
        ("tensor,amax\na,-1\n", "line 2: the range of 'a' is -1.0"),
        ("tensor,amax\na,nan\n", "line 2: the range of 'a' is nan"),
    ],
)
def test_csv_malformed(text, message):
    with pytest.raises(TableError, match=message):
        plain.CSV.parse(text.encode(), "it")


# All of them.


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("value", ["nan", "inf"])
@ONE_ENDED
def test_no_format_takes_what_is_no_range(name, value):
    written = FORMATS[name].render({"a": float(value)})
    with pytest.raises(TableError, match=rf"the range of 'a' is {value}"):
        FORMATS[name].parse(written, "it")


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("data", [b"\xff\xfe\x00", b"{", b""])
@ONE_ENDED
def test_no_format_takes_garbage(name, data):
    with pytest.raises(TableError):
        FORMATS[name].parse(data, "it")


names = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=12)


@pytest.mark.parametrize("name", FORMATS)
@given(
    ranges=st.dictionaries(names.filter(lambda n: not n.startswith("#")), st.floats(1e-30, 1e30), min_size=1)
)
@ONE_ENDED
def test_round_trips_are_exact(name, ranges):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert FORMATS[name].parse(FORMATS[name].render(ranges), "it") == ranges


@pytest.mark.parametrize(
    ("file", "format_name"),
    [
        ("t.json", None),
        ("t.txt", None),
        ("t.csv", None),
        ("t.flatbuffers", None),
        ("t.json", "ppq"),
        ("t.json", "onnxruntime-json"),
        ("t.ranges.json", None),
    ],
)
@ONE_ENDED
def test_tables_find_their_format_again(tmp_path, file, format_name):
    table = CalibrationTable({"a": 1.5, "b::c": 0.1})
    path = table.save(tmp_path / file, format_name=format_name)
    assert CalibrationTable.load(path).amax == table.amax


def test_a_cache_gives_back_every_scale():
    for name in ("entropy2_8601.cache", "legacy_101600.cache"):
        cache = parse_cache(golden(name), name, allow_zero=True)
        assert parse_cache(render_cache_with_zeros(cache), name, allow_zero=True) == cache


def render_cache_with_zeros(cache):
    alive = {name: scale for name, scale in cache.scales.items() if scale}
    dead = "".join(f"{name}: 0\n" for name, scale in cache.scales.items() if not scale)
    rendered = render_cache(type(cache)(cache.version, cache.algorithm, alive))
    return rendered + dead.encode()
