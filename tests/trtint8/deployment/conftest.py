"""Engines as far as a deployment looks at them: a sidecar, and the files beside it."""

import pytest
from onnx import TensorProto, helper

from calibrators.tables.table import CalibrationTable, Provenance
from trtint8.deployment.source import read_source
from trtint8.engine.file import EngineInfo, TensorSpec, save_engine
from trtint8.engine.profiles import ShapeRange

PLAN = b"a plan"
AMAX = {"images": 2.5, "conv": 12.75}
IMAGES = TensorSpec("images", "float32", ("batch", 3, 8, 6))
LOGITS = TensorSpec("logits", "float32", ("batch", 10))


def qdq_model(dtype=TensorProto.FLOAT):
    """What stands beside an engine as its Q/DQ model, with images and logits of a type."""
    nodes = [
        helper.make_node("Flatten", ["images"], ["flat"]),
        helper.make_node("Slice", ["flat", "from", "to", "axis"], ["logits"]),
    ]
    constants = [
        helper.make_tensor(name, TensorProto.INT64, [1], [value])
        for name, value in (("from", 0), ("to", 10), ("axis", 1))
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("images", dtype, list(IMAGES.shape))],
        [helper.make_tensor_value_info("logits", dtype, list(LOGITS.shape))],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model.SerializeToString()


QDQ = qdq_model()


def shapes(smallest, optimal, largest, rest=(3, 8, 6)):
    return ShapeRange((smallest, *rest), (optimal, *rest), (largest, *rest))


@pytest.fixture
def make_engine(tmp_path):
    """Writes an engine and its sidecar, with a Q/DQ model and a table unless they are unwanted."""

    def make(name="net", *, qdq=True, table=True, **changes):
        engine = tmp_path / f"{name}.engine"
        known = CalibrationTable(AMAX, "entropy", Provenance(model="0" * 64)) if table else None
        facts = {
            "flavor": "tensorrt",
            "tensorrt_version": "10.9.0.34",
            "compute_capabilities": ("8.6", "8.9"),
            "inputs": (IMAGES,),
            "outputs": (LOGITS,),
            "profiles": ({"images": shapes(1, 8, 32)},),
            "layers": None,
            "quantized_nodes": (),
            "weights_bytes": None,
            "model_fingerprint": "0" * 64,
            "table_fingerprint": known.fingerprint if known else None,
            "method": "entropy" if known else None,
            "qdq_model": f"{name}.qdq.onnx" if qdq else None,
        }
        save_engine(engine, PLAN, EngineInfo(**{**facts, **changes}))
        if qdq:
            (tmp_path / f"{name}.qdq.onnx").write_bytes(QDQ)
        if known:
            known.save(tmp_path / f"{name}.table.json")
        return engine

    return make


@pytest.fixture
def make_source(make_engine):
    """Reads such an engine for a deployment."""

    def make(name="net", preprocessing=None, **changes):
        return read_source(make_engine(name, **changes), preprocessing)

    return make
