"""Engines as far as a deployment looks at them: a sidecar, and the files beside it."""

import numpy as np
import pytest

from calibrators.tables.table import CalibrationTable, Provenance
from tests.trtint8.onnx_models import parsed
from trtint8.deployment.source import read_source
from trtint8.engine.file import EngineInfo, TensorSpec, save_engine
from trtint8.engine.profiles import ShapeRange

PLAN = b"a plan"
AMAX = {"images": 2.5, "conv": 12.75}
IMAGES = TensorSpec("images", "float32", ("batch", 3, 8, 6))
LOGITS = TensorSpec("logits", "float32", ("batch", 10))


def qdq_model(dtype="float"):
    """What stands beside an engine as its Q/DQ model, with images and logits of a type."""
    model = parsed(
        f"{dtype}[batch, 3, 8, 6] images",
        f"{dtype}[batch, 10] logits",
        "flat = Flatten (images) logits = Slice (flat, begin, end, axis)",
        begin=np.array([0]),
        end=np.array([10]),
        axis=np.array([1]),
    )
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
