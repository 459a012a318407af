"""A model whose weights are more than a protobuf message holds, over Ray: 3 GiB of disk, 12 GiB of memory.

TRTINT8_LARGE=1 pytest tests/calibrators/host/test_large_model.py
"""

import os

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import trtint8
from calibrators.ray.cluster import RayExecutor

pytestmark = pytest.mark.skipif(
    "TRTINT8_LARGE" not in os.environ, reason="takes 20 s and up to 12 GiB of memory; set TRTINT8_LARGE=1"
)

WIDTH = 4_400_000


def _weight(name, shape, offset):
    size = 4 * int(np.prod(shape))
    tensor = TensorProto(name=name, dims=shape, data_type=TensorProto.FLOAT)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "weights"), ("offset", offset), ("length", size)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


@pytest.fixture
def model(tmp_path):
    """Two products, through a tensor of many elements; the file of its weights is mostly a hole."""
    path, size = tmp_path / "large.onnx", 4 * 64 * WIDTH
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "a"], ["y"]), helper.make_node("MatMul", ["y", "b"], ["z"])],
        "large",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 64])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, ["n", 64])],
        [_weight("a", (64, WIDTH), 0), _weight("b", (WIDTH, 64), size)],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    with (tmp_path / "weights").open("wb") as file:
        file.truncate(2 * size)
        rng = np.random.default_rng(0)
        for start in range(0, 2 * size, 64 << 20):
            file.seek(start)
            file.write(rng.standard_normal(1 << 16, dtype=np.float32).tobytes())
    assert (tmp_path / "weights").stat().st_size > 2 << 30
    return path


def test_it_is_a_file_that_all_workers_open(model, cluster, tmp_path):
    data = np.random.default_rng(1).standard_normal((12, 64), dtype=np.float32)
    alone = trtint8.calibrate(model, data, batch_size=2)
    executor = RayExecutor(workers=2, shard_batches=1)
    shared = trtint8.calibrate(model, data, batch_size=2, executor=executor)
    alone.save(tmp_path / "alone.json")
    shared.save(tmp_path / "shared.json")
    assert (tmp_path / "shared.json").read_bytes() == (tmp_path / "alone.json").read_bytes()
    assert min(alone.amax.values()) > 0
