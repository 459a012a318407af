"""Tables of ONNX Runtime: golden files, what it writes itself, and what it reads of ours."""

import json
import warnings

import flatbuffers
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators.errors import TableError
from calibrators.tables.formats import onnxruntime
from calibrators.tables.table import CalibrationTable
from tests.calibrators.tables.formats.golden_files import ONE_ENDED, golden


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
    ends = {name: tuple(np.float32([end]) for end in both) for name, both in ends.items()}
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
    ],
)
def test_onnxruntime_malformed_json(document):
    with pytest.raises(TableError, match="is not a calibration table of ONNX Runtime"):
        onnxruntime.JSON.parse(json.dumps(document).encode(), "it")


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_an_empty_file_is_refused(tmp_path, recwarn, content):
    path = tmp_path / "t.cache"
    path.write_bytes(content)
    with pytest.raises(TableError, match=r"t\.cache' holds no ranges; calibrate again"):
        CalibrationTable.load(path)
    with pytest.raises(TableError, match="holds no ranges"):
        onnxruntime.FLATBUFFERS.parse(onnxruntime.FLATBUFFERS.render({}), "f")
    with pytest.raises(TableError, match="holds no ranges"):
        onnxruntime.JSON.parse(onnxruntime.JSON.render({}), "f")
    assert not recwarn.list


def _flatbuffers(entries, keys):
    """A file of so many entries, all with the same key; ``keys`` are its bytes."""
    builder = flatbuffers.Builder(1024)
    key, value = builder.CreateString(keys), builder.CreateString("1.0")
    builder.StartObject(2)
    builder.PrependUOffsetTRelativeSlot(0, key, 0)
    builder.PrependUOffsetTRelativeSlot(1, value, 0)
    entry = builder.EndObject()
    builder.StartVector(4, entries, 4)
    for _ in range(entries):
        builder.PrependUOffsetTRelative(entry)
    vector = builder.EndVector()
    builder.StartObject(1)
    builder.PrependUOffsetTRelativeSlot(0, vector, 0)
    builder.Finish(builder.EndObject())
    return bytes(builder.Output())


def test_a_small_file_of_large_texts_is_refused(monkeypatch):
    """Thousands of entries may point to one text, which would be copied for each."""
    with pytest.raises(TableError, match="its texts overlap"):
        onnxruntime.FLATBUFFERS.parse(_flatbuffers(1000, "k" * 100_000), "f")
    monkeypatch.setattr(onnxruntime, "MOST_TENSORS", 10)
    with pytest.raises(TableError, match="it has 11 entries"):
        onnxruntime.FLATBUFFERS.parse(_flatbuffers(11, ""), "f")
