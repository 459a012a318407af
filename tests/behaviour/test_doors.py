"""Facts that show at a door only where something is looked at on its way through."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import trtint8
from tests.behaviour.models import CASES, Net


@pytest.fixture
def rtx():
    return pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")


class _SeenError(Exception):
    """Ends a build at the moment that TensorRT would begin."""


@pytest.mark.parametrize("tf32", [True, False])
def test_a_build_is_told_of_tf32(rtx, tf32, tmp_path, monkeypatch):
    told = []

    def begin(builder, network, config, *more):
        told.append(config.get_flag(rtx.BuilderFlag.TF32))
        raise _SeenError

    for call in ("build_serialized_network", "build_serialized_network_to_stream"):
        monkeypatch.setattr(rtx.Builder, call, begin)
    with pytest.raises(_SeenError):
        trtint8.build_int8_engine(
            CASES["three_nodes"].model(),
            None,
            tmp_path / "e.engine",
            target="rtx",
            dynamic_ranges={"images": 3.0, "relu_out": 5.0},
            options=trtint8.BuildOptions(tf32=tf32, fp16=False),
            progress=False,
        )
    assert told == [tf32]


#: Operators that compute each sample by itself, between two convolutions, to how often they change channels.
_APART = {
    "AveragePool": (1, {"kernel_shape": [2, 2]}),
    "DepthToSpace": (0.25, {"blocksize": 2}),
    "GlobalAveragePool": (1, {}),
    "GlobalMaxPool": (1, {}),
    "LRN": (1, {"size": 5, "alpha": 0.2}),
    "LeakyRelu": (1, {}),
    "MaxPool": (1, {"kernel_shape": [2, 2]}),
    "Softmax": (1, {"axis": 1}),
    "SpaceToDepth": (4, {"blocksize": 2}),
}


def _between(op_type, batch):
    n = Net("between")
    factor, attributes = _APART[op_type]
    x = n.conv("first", n.input("images", batch, 3, 8, 8), 3, 8)
    x = n.op(op_type, "middle", x, **attributes)
    return n.model(n.conv("last", x, int(8 * factor), 4, 1))


@pytest.mark.parametrize("op_type", _APART)
def test_a_sample_counts_alone_where_the_network_takes_several(op_type):
    samples = {"images": np.random.default_rng(3).standard_normal((12, 3, 8, 8)).astype(np.float32)}
    found = []
    for batch in ("batch", 4):
        model = _between(op_type, batch)
        table = trtint8.calibrate(model, samples, method="minmax", progress=False)
        found.append(
            trtint8.measure_sensitivity(model, table, samples, tolerance_db=0, batch_size=4, progress=False)
        )
    each, together = ([layer.only.interval_db for layer in one.layers] for one in found)
    # The intervals of three batches of four samples are others than those of twelve samples.
    np.testing.assert_allclose(together, each, rtol=1e-3)


def test_numbers_of_a_table_are_known_behind_a_slice():
    n = Net("sliced_tokens")
    tokens = n.input("tokens", "batch", 9, dtype=TensorProto.INT64)
    most = n.op("Slice", "most", tokens, n.ints("from", 1), n.ints("to", 9), n.ints("axis", 1))
    x = n.op("Gather", "embed", n.weight("embedding", 7, 6, fan_in=6), most)
    model = n.model(n.dense("fc", x, 6, 4, "MatMul"))
    (tokens,) = trtint8.model_inputs(model)
    assert tokens.bound == 7
    with pytest.warns(UserWarning, match="random:16"):
        table = trtint8.calibrate(model, "random:16", method="minmax", progress=False)
    assert table.provenance.samples == 16


def _numbered(version):
    """A network with weights of some size, whose first field is a number that is written with ten bytes."""
    n = Net("numbered")
    model = n.model(n.dense("fc", n.input("x", "batch", 64), 64, 32))
    model.model_version = version
    return model, {"x": np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)}


def test_numbers_in_a_file_take_up_to_ten_bytes(tmp_path):
    tables = []
    for version in (1, -1):
        model, samples = _numbered(version)
        onnx.save(model, tmp_path / "model.onnx")
        for given in (tmp_path / "model.onnx", model):
            tables.append(trtint8.calibrate(given, samples, method="minmax", progress=False))
            trtint8.validate(
                trtint8.quantize(given, tables[-1]), samples, reference=given, metrics="sqnr", progress=False
            )
    assert all(table.amax == tables[0].amax for table in tables)


def test_a_number_of_eleven_bytes_is_refused(tmp_path):
    model, samples = _numbered(-1)
    data = model.SerializeToString()
    ten = b"\x28" + b"\xff" * 9 + b"\x01"  # field 5
    assert data.count(ten) == 1
    (tmp_path / "model.onnx").write_bytes(data.replace(ten, b"\x28" + b"\xff" * 10 + b"\x01"))
    with pytest.raises(trtint8.ModelError, match=r"model\.onnx"):
        trtint8.calibrate(tmp_path / "model.onnx", samples, method="minmax", progress=False)


@pytest.mark.parametrize("op_type", ["BatchNormalization", "InstanceNormalization"])
def test_equalization_keeps_what_a_network_with_a_normalization_computes(op_type):
    factors = np.geomspace(0.02, 3, 8)
    n = Net("normalized")
    x = n.conv("first", n.input("images", "batch", 3, 8, 8), 3, 8)
    x = n.op("MaxPool", "pool", x, kernel_shape=[2, 2])
    x = n.op("Relu", "relu", n.norm("norm", x, 8, op_type))
    model = n.model(n.conv("last", x, 8, 4, 1))
    changed = {"norm.scale": factors, "norm.shift": 0.3 * factors}
    changed["last.weight"] = n.random.standard_normal((4, 8, 1, 1)) / factors.reshape(1, 8, 1, 1)
    for constant in model.graph.initializer:
        if constant.name in changed:
            values = changed[constant.name].astype(np.float32)
            constant.CopyFrom(onnx.numpy_helper.from_array(values, constant.name))
    samples = {"images": n.random.standard_normal((24, 3, 8, 8)).astype(np.float32)}
    table = trtint8.calibrate(model, samples, method="minmax", progress=False)
    decibels = []
    for options in ({}, {"equalize": samples}):
        quantized = trtint8.quantize(model, table, progress=False, **options)
        found = trtint8.validate(quantized, samples, reference=model, metrics="sqnr", progress=False)
        decibels.append(found.outputs[0].sqnr_db)
    assert decibels[1] > decibels[0] + 6
